"""A small local server that speaks the part of W&B's protocol that its client needs for a run.

GraphQL at /graphql, history and summary at /files/ENTITY/PROJECT/RUN/file_stream, and uploads to
the addresses that the answers name. It keeps what arrived, and can misbehave as ``Trouble`` says.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "a-team"
KEY = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Trouble:
    """How the server misbehaves.

    Attributes:
        status: every request is answered with this code; 0: as it should be.
        hangs: no request is answered at all.
        after: the first requests of this number are answered properly.
        drops: connections are closed without an answer.
        runs: it goes wrong from the moment on that a run after so many is opened; None: at once.
    """

    status: int = 0
    hangs: bool = False
    drops: bool = False
    after: int = 0
    runs: int | None = None


@dataclass
class Arrived:
    """What came in: runs by id, uploaded files by path, alerts, artifacts, reports."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    complete: list[Any] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    committed: list[str] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    requests: int = 0

    @property
    def run(self) -> dict[str, Any]:
        """The only run."""
        (run,) = self.runs.values()
        return run

    @property
    def config(self) -> dict[str, Any]:
        """Its config, without W&B's own."""
        values = json.loads(self.run["config"])
        return {name: one["value"] for name, one in values.items() if name != "_wandb"}

    def uploaded(self, part: str) -> bytes:
        """The only uploaded file whose path holds ``part``."""
        (content,) = [content for path, content in self.uploads.items() if part in path]
        return content


class WandbServer(ThreadingHTTPServer):
    """Listens on a free port of this machine."""

    daemon_threads = True

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.trouble = trouble
        self.arrived = Arrived()
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.gone = trouble.runs is None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def misbehaves(self) -> bool:
        """Count a request, and say whether it is one of those that go wrong."""
        with self.lock:
            self.arrived.requests += 1
            trouble = self.trouble
            wrong = bool(trouble.status or trouble.hangs or trouble.drops)
            return wrong and self.gone and self.arrived.requests > trouble.after

    def sees(self, body: bytes) -> None:
        """Look whether a request opens the run with which the trouble begins."""
        with self.lock:
            if self.gone or b"UpsertBucket" not in body:
                return
            opened = {json.loads(body)["variables"]["name"], *self.arrived.runs}
            self.gone = len(opened) > (self.trouble.runs or 0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is not a news."""


Serve = Callable[..., WandbServer]


@contextmanager
def wandb_server(trouble: Trouble | None = None) -> Iterator[WandbServer]:
    """Run a server for the length of a test."""
    server = WandbServer(trouble or Trouble())
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self._body()
        self.server.sees(body)
        if self.server.misbehaves():
            self._misbehave()
            return
        with self.server.lock:
            if self.path == "/graphql":
                request = json.loads(body)
                self._answer(_graphql(self.server, request))
            elif self.path.endswith("/file_stream"):
                _stream(self.server.arrived, json.loads(body))
                self._answer({"exitcode": None, "limits": {}})
            else:
                self.server.arrived.unknown.append(f"POST {self.path}")
                self._answer({}, 404)

    def do_PUT(self) -> None:
        body = self._body()
        if self.server.misbehaves():
            self._misbehave()
            return
        with self.server.lock:
            self.server.arrived.uploads[self.path] = body
        self._answer({})

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.arrived.unknown.append(f"GET {self.path}")
        self._answer({}, 404)

    def _misbehave(self) -> None:
        trouble = self.server.trouble
        if trouble.hangs:
            self.server.closing.wait()
        if trouble.hangs or trouble.drops:
            self.close_connection = True
            self.connection.close()
            return
        self._answer({"errors": [{"message": "trouble"}]}, trouble.status)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().strip() or b"0", 16)
        chunk = self.rfile.read(size)
        self.rfile.readline()
        return chunk

    def _answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _stream(arrived: Arrived, request: dict[str, Any]) -> None:
    files = request.get("files") or {}
    for line in files.get("wandb-history.jsonl", {}).get("content", []):
        arrived.history.append(json.loads(line))
    for line in files.get("wandb-summary.json", {}).get("content", []):
        arrived.summary = json.loads(line)
    if request.get("complete"):
        arrived.complete.append(request.get("exitcode"))


def _graphql(server: WandbServer, request: dict[str, Any]) -> dict[str, Any]:
    name = re.findall(r"(?:query|mutation)\s+(\w+)", request["query"])[0]
    variables = request.get("variables") or {}
    answer = _ANSWERS.get(name)
    if answer is None:
        server.arrived.unknown.append(f"{name}: {request['query']} {variables}")
        return {"errors": [{"message": f"unknown operation {name}"}]}
    return {"data": answer(server, variables)}


def _viewer(server: WandbServer, _: dict[str, Any]) -> dict[str, Any]:
    teams = {"edges": [{"node": {"name": ENTITY}}]}
    return {
        "viewer": {
            "id": "viewer", "entity": ENTITY, "username": "someone", "email": "someone@a-team",
            "flags": "{}", "teams": teams,
        }
    }  # fmt: skip


def _upsert_bucket(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    run = server.arrived.runs.setdefault(given["name"], {})
    run.update({name: value for name, value in given.items() if value is not None})
    project = run.get("project") or "uncategorized"
    entity = {"id": "entity", "name": run.get("entity") or ENTITY}
    return {
        "upsertBucket": {
            "bucket": {
                "id": f"run:{given['name']}",
                "name": given["name"],
                "displayName": run.get("displayName"),
                "description": "",
                "config": run.get("config") or "{}",
                "sweepName": None,
                "project": {"id": "project", "name": project, "entity": entity},
                "historyLineCount": 0,
            },
            "inserted": True,
        }
    }


def _create_run_files(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    files = [
        {"name": name, "uploadUrl": f"{server.url}/upload/{given['run']}/{name}"}
        for name in given["files"]
    ]
    return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}


def _create_artifact(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    wanted = given["input"]
    name = wanted["artifactCollectionName"]
    server.arrived.artifacts[f"artifact:{name}"] = wanted
    artifact = {"id": f"artifact:{name}", "state": "PENDING"}
    return {
        "createArtifact": {"artifact": {**artifact, "artifactSequence": {"latestArtifact": None}}}
    }


def _create_manifest(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    artifact = given.get("artifactID") or given["input"]["artifactID"]
    file = {
        "id": "file", "name": "wandb_manifest.json", "displayName": "wandb_manifest.json",
        "uploadUrl": f"{server.url}/upload/{artifact}/manifest",
        "uploadHeaders": [],
    }  # fmt: skip
    return {
        "createArtifactManifest": {"artifactManifest": {"id": f"manifest:{artifact}", "file": file}}
    }


def _create_artifact_files(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    nodes = [
        {
            "storagePath": f"{file['artifactID']}/{file['name']}",
            "uploadUrl": f"{server.url}/upload/{file['artifactID']}/{file['name']}",
            "uploadHeaders": [],
            "uploadMultipartUrls": None,
            "artifact": {"id": file["artifactID"]},
        }
        for file in given["input"]["artifactFiles"]
    ]
    return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}


def _commit_artifact(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    server.arrived.committed.append(given["artifactID"])
    return {"commitArtifact": {"artifact": {"id": given["artifactID"], "digest": ""}}}


def _alert(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    server.arrived.alerts.append(given)
    return {"notifyScriptableRunAlert": {"success": True}}


def _view(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    server.arrived.views.append(given)
    project = {"id": "project", "name": given["projectName"], "entityName": given["entityName"]}
    view = {
        "id": "VmlldzoxMjM=", "type": given["type"], "name": given["name"],
        "displayName": given["displayName"], "description": given["description"],
        "project": project, "spec": given["spec"], "updatedAt": "2026-11-21T00:00:00",
    }  # fmt: skip
    return {"upsertView": {"view": view, "inserted": True}}


def _projects(server: WandbServer, given: dict[str, Any]) -> dict[str, Any]:
    node = {
        "__typename": "Project", "id": "project", "name": "evalguard", "entityName": ENTITY,
        "createdAt": "2026-11-20T00:00:00", "isBenchmark": False, "user": None,
    }  # fmt: skip
    info = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
    return {"models": {"pageInfo": info, "edges": [{"node": node}]}}


_ANSWERS = {
    "GetProjects": _projects,
    "upsertView": _view,
    "ProjectInternalId": lambda *_: {"project": {"id": "project", "internalId": "UHJvamVjdDox"}},
    "GetDefaultEntity": lambda *_: {"viewer": {"id": "viewer", "entity": ENTITY}},
    "ArtifactType": lambda *_: {"project": None},
    "ServerFeaturesQuery": lambda *_: {"serverInfo": {"features": []}},
    "CreateArtifact": _create_artifact,
    "CreateArtifactManifest": _create_manifest,
    "CreateArtifactFiles": _create_artifact_files,
    "CommitArtifact": _commit_artifact,
    "NotifyScriptableRunAlert": _alert,
    "RunStoppedStatus": lambda *_: {"project": {"run": {"stopped": False}}},
    "Viewer": _viewer,
    "UpsertBucket": _upsert_bucket,
    "CreateRunFiles": _create_run_files,
}
