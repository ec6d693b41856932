"""llama.cpp's own server, started by evalguard: a healthy port passes, a bad flag is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from system_models import MODEL, ORIGINAL, Compare, healthy, kl_mean, named, perplexity

# One after the other: each looks whether a server is left.
pytestmark = [pytest.mark.systems, pytest.mark.nightly]

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


def test_its_shown_tokens_bound_the_kl_of_a_quantised_file_from_below(
    compare: Compare, tmp_path: Path
) -> None:
    build = {**SERVER["build"], "inputs": {"source": str(MODEL), "type": "Q4_0"}}
    served = {**SERVER, "build": build, "settings": {}, "model_args": {"top_logprobs": 40}}
    whole = {
        "model": "llama_cpp",
        "model_args": {"type_k": "f32", "type_v": "f32"},
        "requirements": SERVER["requirements"],
        "build": build,
    }
    exact = compare({"original": ORIGINAL, "port": whole}, "--distributions", "reference")
    found = compare({"original": ORIGINAL, "port": served})
    (estimate,) = found["kl_estimates"]
    assert estimate["failure"] == ""
    assert estimate["mass_seen"]["value"] > 0.5
    # The exact one is of the same file by the same library, in this process.
    assert 0.3 * kl_mean(exact) < estimate["kl_at_least"]["value"] < 1.01 * kl_mean(exact)
    assert perplexity(found)["candidate"] == pytest.approx(perplexity(exact)["candidate"], rel=1e-4)
    sound = {**SERVER, "settings": {}, "model_args": {"top_logprobs": 40}}
    (none,) = compare({"original": ORIGINAL, "port": sound})["kl_estimates"]
    assert none["kl_at_least"]["value"] < 1e-5
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
