"""A small GitLab: the notes of one project's merge request, over HTTP on this machine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GITLAB_TOKEN = "glpat-0123456789.01.abcdefghij"
_NOTES = "/api/v4/projects/42/merge_requests/7/notes"


@dataclass
class FakeGitlab:
    """What it holds, what it was asked, and how it fails.

    ``failures``: status of the next answers, each used once.
    """

    address: str = ""
    notes: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    user: int = 5

    def add(self, body: str, author: int | None = None, *, system: bool = False) -> dict[str, Any]:
        made = {
            "id": 1000 + len(self.notes),
            "body": body,
            "author": {"id": author or self.user, "username": "project_42_bot"},
            "system": system,
        }
        self.notes.append(made)
        return made

    def answer(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        if path == "/api/v4/user":
            return 200, {"id": self.user, "username": "project_42_bot"}
        listed = re.fullmatch(rf"{_NOTES}\?sort=asc&per_page=100&page=(\d+)", path)
        if method == "GET" and listed:
            start = (int(listed[1]) - 1) * 100
            return 200, self.notes[start : start + 100]
        if method == "POST" and path == _NOTES:
            return 201, self.add(content["body"])
        one = re.fullmatch(rf"{_NOTES}/(\d+)", path)
        if method == "PUT" and one:
            (note,) = (note for note in self.notes if note["id"] == int(one[1]))
            note["body"] = content["body"]
            return 200, note
        return 404, {"message": "404 Not found"}


class _Handler(BaseHTTPRequestHandler):
    gitlab: FakeGitlab

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        content = json.loads(self.rfile.read(size)) if size else None
        self.gitlab.asked.append((self.command, self.path))
        if self.headers["PRIVATE-TOKEN"] != GITLAB_TOKEN:
            self._send(401, {"message": "401 Unauthorized"})
        elif self.gitlab.failures:
            self._send(self.gitlab.failures.pop(0), {"message": {"base": ["not now"]}})
        else:
            self._send(*self.gitlab.answer(self.command, self.path, content))

    do_GET = do_POST = do_PUT = _serve

    def _send(self, status: int, content: Any) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests' output is their own."""


@contextmanager
def fake_gitlab() -> Iterator[FakeGitlab]:
    """One that runs until the block ends."""
    gitlab = FakeGitlab()
    handler = type("Handler", (_Handler,), {"gitlab": gitlab})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    gitlab.address = f"http://127.0.0.1:{server.server_port}/api/v4"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield gitlab
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
