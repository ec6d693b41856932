"""A small GitHub: the comments of one repository's pull requests, over HTTP on this machine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "ghs_0123456789abcdefghij0123456789"
BOT = {"login": "github-actions[bot]", "type": "Bot"}


@dataclass
class FakeGithub:
    """What it holds, what it was asked, and how it fails.

    ``failures``: status of the next answers, each used once, with its Retry-After.
    """

    address: str = ""
    comments: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    user: dict[str, str] = field(default_factory=lambda: dict(BOT))
    knows_user: bool = False
    redirect: str = ""

    def add(self, body: str, user: dict[str, str] | None = None) -> dict[str, Any]:
        number = len(self.comments) + 1
        made = {"id": number, "body": body, "user": user or self.user, "html_url": f"url-{number}"}
        self.comments.append(made)
        return made

    def answer(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        if path == "/user":
            return (200, self.user) if self.knows_user else (403, {"message": "no user here"})
        listed = re.fullmatch(r"/repos/org/repo/issues/7/comments\?per_page=100&page=(\d+)", path)
        if method == "GET" and listed:
            start = (int(listed[1]) - 1) * 100
            return 200, self.comments[start : start + 100]
        if method == "POST" and path == "/repos/org/repo/issues/7/comments":
            return 201, self.add(content["body"])
        one = re.fullmatch(r"/repos/org/repo/issues/comments/(\d+)", path)
        if method == "PATCH" and one:
            comment = self.comments[int(one[1]) - 1]
            comment["body"] = content["body"]
            return 200, comment
        return 404, {"message": "Not Found"}


class _Handler(BaseHTTPRequestHandler):
    github: FakeGithub

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        content = json.loads(self.rfile.read(size)) if size else None
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.github.asked.append((self.command, self.path))
        if self.github.redirect:
            self._send(302, {}, {"Location": self.github.redirect})
        elif self.github.failures:
            status, after = self.github.failures.pop(0)
            self._send(status, {"message": "not now"}, {"Retry-After": after} if after else {})
        else:
            self._send(*self.github.answer(self.command, self.path, content))

    do_GET = do_POST = do_PATCH = _serve

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests' output is their own."""


@contextmanager
def fake_github() -> Iterator[FakeGithub]:
    """One that runs until the block ends."""
    github = FakeGithub()
    handler = type("Handler", (_Handler,), {"github": github})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    github.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield github
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
