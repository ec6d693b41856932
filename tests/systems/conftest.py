"""Each system in its own environment, made from pinned requirements and kept between runs.

``EVALGUARD_SYSTEMS_CACHE`` names the folder that keeps them; default: one of the user's cache.
``EVALGUARD_SYSTEMS_TABLE`` names a file to which every comparison adds a row of Markdown: what
`benchmarks/results/systems.md` is made of.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from small_world import run_here
from system_models import MODEL, ROOT, Compare, kl_mean, named, perplexity
from tiny_models import save_tokenizer


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    named = os.environ.get("EVALGUARD_SYSTEMS_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "evalguard-systems"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A random Llama whose matrices are whole blocks of 32."""
    size = save_tokenizer(tmp_path / "llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.2, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def compare(
    tmp_path: Path,
    cache_dir: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Compare:
    """Writes a guard file of a base and a candidate, and runs ``evalguard compare`` on it.

    In this process, which has imported torch; a model with packages of its own has a process of
    its own. Returns its JSON document; the exit code has to be the one that is expected.
    """
    monkeypatch.chdir(tmp_path)

    def run(
        models: dict[str, Any], *words: str, code: int = 0, limit: int = 48, **more: Any
    ) -> dict[str, Any]:
        base, candidate = models
        told = {
            "models": models,
            "pairs": [{"base": base, "cand": candidate}],
            "include_path": str(ROOT / "tasks"),
            **({} if "requests" in more else {"tasks": ["evalguard_lastword"]}),
            **more,
        }
        file = tmp_path / "guard.yaml"
        file.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
        command: list[object] = ["compare", "--config", file, "--base", base, "--cand", candidate]
        command += ["--cache-dir", cache_dir, "--limit", limit, "--json", "--quiet", *words]
        ran = run_here(command, capfd)
        assert ran.code == code, ran.err[-3000:] + ran.out[-3000:]
        found: dict[str, Any] = json.loads(ran.out) if ran.out else {"error": ran.err}
        if table := os.environ.get("EVALGUARD_SYSTEMS_TABLE"):
            with Path(table).open("a", encoding="utf-8") as sink:
                sink.write(_row(request.node.name, found, code))
        return found

    return run


def _row(test: str, found: dict[str, Any], code: int) -> str:
    """Test, exit code, KL in nats a token, drift of the perplexity in sigma, and what is named."""
    if "comparisons" not in found:
        return f"| {test} | {code} | | | refused |\n"
    kl = f"{kl_mean(found):.2g}" if found.get("distributions") else ""
    likely = any(one["metric"] == "perplexity" for one in found["comparisons"])
    drift = f"{perplexity(found)['sigma']:+.3f}" if likely else ""
    culprits = ", ".join(sorted(named(found))) if found.get("bisect") else ""
    return f"| {test} | {code} | {kl} | {drift} | {culprits} |\n"


@pytest.fixture
def noisy_model(tmp_path: Path) -> Path:
    """The demo's model with noise on every matrix: what a merge has to take away again."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "noisy"
    shutil.copytree(MODEL, folder)
    generator = torch.Generator().manual_seed(5)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if tensor.ndim == 2:
            noise = torch.randn(tensor.shape, generator=generator)
            weights[name] = tensor + tensor.std() * noise
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
