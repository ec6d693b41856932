"""llama.cpp's own server, started by evalguard: a healthy port passes, a bad flag is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from system_models import MODEL, ORIGINAL, Compare, healthy, named, perplexity

# One after the other: each looks whether a server is left.
pytestmark = pytest.mark.systems

FLAGS: dict[str, Any] = {
    "rope": {"reference": 4000.0, "candidate": 40.0, "target": "serve.rope-freq-base"},
    "keys": {"reference": "f32", "candidate": "q8_0", "target": "serve.cache-type-k"},
    "slots": {"reference": 1, "candidate": 2, "target": "serve.parallel"},
}
SERVER: dict[str, Any] = {
    "model": "llama_server",
    "requirements": ["xllamacpp==2026.10.11549", "gguf==0.19.0", "safetensors", "numpy"],
    "build": {
        "call": "evalguard.recipes.gguf:convert",
        "output": "model.gguf",
        "inputs": {"source": str(MODEL), "type": "F32"},
    },
    "serve": {
        "command": [
            "python", "-m", "evalguard.recipes.llama_server", "--model", "{build}",
            "--port", "{port}", "--flash-attn", "off", "--cache-type-v", "f32",
            "--cache-type-k", "f32",
        ],
        "url": "http://127.0.0.1:{port}",
        "ready": "/health",
    },
    "settings": FLAGS,
}  # fmt: skip


def running(folder: Path) -> list[int]:
    """Servers that were started in this folder and are still there."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "evalguard.recipes.llama_server" in words and process.info["cwd"] == str(folder):
            found.append(process.pid)
    return found


def test_a_served_gguf_with_every_flag_at_reference_is_the_model(
    compare: Compare, tmp_path: Path
) -> None:
    found = compare({"original": ORIGINAL, "port": SERVER}, *healthy(FLAGS))
    drift = perplexity(found)
    assert drift["n"] == 48
    assert abs(drift["sigma"]) < 0.01
    assert not drift["bit_identical"]
    assert not running(tmp_path)


def test_a_rope_base_on_the_command_line_of_the_server_is_named(
    compare: Compare, tmp_path: Path
) -> None:
    found = compare({"original": ORIGINAL, "port": SERVER}, "--bisect", "auto", code=1)
    assert named(found) == {"rope"}
    assert not running(tmp_path)


def test_a_flag_that_the_server_does_not_have_is_an_error_with_its_words(
    compare: Compare, tmp_path: Path
) -> None:
    settings = {"cache": {"reference": "f16", "candidate": "q9", "target": "serve.cache-type-k"}}
    found = compare({"original": ORIGINAL, "port": {**SERVER, "settings": settings}}, code=3)
    assert "invalid choice: 'q9'" in found["error"]["message"]
    assert not running(tmp_path)


def test_its_completions_endpoint_is_refused_for_log_probabilities(
    compare: Compare, tmp_path: Path
) -> None:
    completions = {
        **SERVER,
        "model": "local-completions",
        "model_args": {"model": "{build}", "tokenizer": str(MODEL), "add_bos_token": True},
        "serve": {**SERVER["serve"], "url": "http://127.0.0.1:{port}/v1/completions"},
        "settings": {},
    }
    found = compare({"original": ORIGINAL, "port": completions}, "--batch_size", "1", code=3)
    assert "log-probabilities for a prompt" in found["error"]["message"]
    assert not running(tmp_path)
