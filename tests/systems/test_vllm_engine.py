"""vLLM itself, without a GPU, in a process of its own: KL is the Hugging Face path's, and named.

The base is the demo's model by Hugging Face in float32; a reference of all 1,344 tokens makes KL
exact. A comparison with the same change made by Hugging Face, in lock-step, is what it is held to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from system_models import MODEL, ORIGINAL, Compare, healthy, kl_mean, named, perplexity
from test_vllm import vllm_python

__all__ = ["vllm_python"]  # a fixture

# One after the other: an engine takes all cores while it starts, half a minute.
pytestmark = [pytest.mark.systems, pytest.mark.nightly, pytest.mark.xdist_group("vllm")]

EXACT = {"run": {"distributions": "reference", "reference_top_k": 2000}}
CAP = 4.0  # of the final logits; 30 in the model
SETTINGS: dict[str, Any] = {
    "cap": {
        "reference": None,
        "candidate": {"final_logit_softcapping": CAP},
        "target": "model_args.hf_overrides",
    },
    "dtype": {"reference": "float32", "candidate": "bfloat16", "target": "model_args.dtype"},
    "chunks": {
        "reference": None, "candidate": 64, "target": "model_args.max_num_batched_tokens",
    },
    "prefixes": {
        "reference": False, "candidate": True, "target": "model_args.enable_prefix_caching",
    },
    "beside": {"reference": 16, "candidate": 4, "target": "model_args.max_num_seqs"},
    "length": {"reference": 400, "candidate": 300, "target": "model_args.max_model_len"},
    "seed": {"reference": 0, "candidate": 1, "target": "model_args.seed"},
    "space": {"reference": "1", "candidate": "2", "target": "env.VLLM_CPU_KVCACHE_SPACE"},
}  # fmt: skip


@pytest.fixture
def engine(vllm_python: str) -> dict[str, Any]:
    return {
        "model": "vllm",
        "python": vllm_python,
        "model_args": {"pretrained": str(MODEL), "dtype": "float32", "enforce_eager": True},
        "settings": SETTINGS,
    }


def test_the_model_in_vllm_is_the_model(compare: Compare, engine: dict[str, Any]) -> None:
    found = compare({"original": ORIGINAL, "port": engine}, *healthy(SETTINGS), **EXACT)
    assert abs(perplexity(found)["sigma"]) < 1e-4
    assert 0.0 <= kl_mean(found) < 1e-9
    (one,) = found["distributions"]
    assert one["same_top1"]["value"] == 1.0


def test_kl_of_a_change_is_that_of_the_same_change_by_hugging_face(
    compare: Compare, engine: dict[str, Any], tmp_path: Path
) -> None:
    words = [word for name in SETTINGS if name != "cap" for word in ("--set", f"{name}=reference")]
    ours = compare({"original": ORIGINAL, "port": engine}, *words, code=1, **EXACT)
    changed = {
        "model_args": ORIGINAL["model_args"],
        "settings": {
            "cap": {
                "reference": 30.0, "candidate": CAP, "target": "config.final_logit_softcapping",
            }
        },
    }  # fmt: skip
    theirs = compare({"original": ORIGINAL, "changed": changed}, code=1)
    assert kl_mean(theirs) > 0.01
    assert kl_mean(ours) == pytest.approx(kl_mean(theirs), abs=1e-4, rel=1e-4)


def test_a_limit_on_kl_names_two_of_eight_flags(compare: Compare, engine: dict[str, Any]) -> None:
    found = compare(
        {"original": ORIGINAL, "port": engine},
        "--bisect", "auto", "--gate-metric", "kl_mean=1e-6",
        code=1, limit=24, run={"distributions": "reference"},
    )  # fmt: skip
    assert named(found) == {"cap", "dtype"}
