"""A package's version that makes a server's answers loop is named among its flags."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import evalguard

pytestmark = pytest.mark.slow

_SAY = {
    "1.0": "def say(question):\n    return f'An answer to {question}: all is well.'\n",
    "2.0": "def say(question):\n    text = f'An answer to {question}: all is well.'\n"
    "    return text + ' and so on,' * 40 if int(question.split()[-1]) % 3 == 0 else text\n",
}
_SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import plantedvoice

class Chat(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = plantedvoice.say(asked["messages"][-1]["content"])
        told = {"role": "assistant", "content": text}
        said = {"index": 0, "finish_reason": "stop", "message": told}
        self.answer({"model": asked["model"], "choices": [said]})

    def do_GET(self):
        self.answer({"data": [{"id": "voice"}]})

    def answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Chat).serve_forever()
"""


def write_wheel(folder: Path, version: str) -> None:
    about = f"plantedvoice-{version}.dist-info"
    with zipfile.ZipFile(folder / f"plantedvoice-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("plantedvoice.py", _SAY[version])
        metadata = f"Metadata-Version: 2.1\nName: plantedvoice\nVersion: {version}\n"
        wheel.writestr(f"{about}/METADATA", metadata)
        wheel.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        names = ("plantedvoice.py", f"{about}/METADATA", f"{about}/WHEEL", f"{about}/RECORD")
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in names))


def test_the_version_of_a_package_that_makes_answers_loop_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join(["/usr/bin", "/bin"]))  # without uv
    for version in _SAY:
        write_wheel(tmp_path, version)
    (tmp_path / "voice_server.py").write_text(_SERVER)
    lines = [{"messages": [{"role": "user", "content": f"question {n}"}]} for n in range(18)]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model: dict[str, Any] = {
        "model": "local-chat-completions",
        "revision": "planted",
        "requirements": ["plantedvoice==1.0"],
        "model_args": {"model": "voice", "max_retries": 1},
        "serve": {
            "command": ["python", str(tmp_path / "voice_server.py"), "--port", "{port}"],
            "url": "http://127.0.0.1:{port}/v1/chat/completions",
        },
    }
    settings = {
        "package.plantedvoice": {"reference": "1.0", "candidate": "2.0"},
        "calm": {"reference": 0, "candidate": 1, "target": "serve.calm"},
        "loud": {"reference": 0, "candidate": 1, "target": "serve.loud"},
    }
    port = {"extends": "orig", "revision": "planted", "settings": settings}
    guard = tmp_path / "guard.yaml"
    guard.write_text(
        yaml.safe_dump(
            {
                "models": {"orig": model, "port": port},
                "requests": str(tmp_path / "calls.jsonl"),
                "gate": {"metrics": {"loops": 0}},
            }
        )
    )
    places = {"output_path": tmp_path / "reports", "cache_dir": tmp_path / "cache"}
    report = evalguard.compare(
        "orig", "port", config=guard, bisect="auto", quiet=True, **places
    ).report
    assert report.exit_code == 1
    assert report.bisect is not None, report.bisect_reason
    assert {one.setting for one in report.bisect.culprits} == {"package.plantedvoice"}
