"""RWKV-7: neither side is a model of this environment."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from system_models import MODEL, ROOT
from traced_ports import IDS, accumulated_errors, fla, opened, port, suspects

from evalguard.core.hyperparameters import compare_hyperparameters
from evalguard.core.settings import Setting, Target, Variant
from evalguard.core.trace_points import token_inputs
from evalguard.core.trace_record import Trace

pytestmark = [pytest.mark.systems, pytest.mark.nightly]


def trace_there(base: Variant, candidates: Sequence[Variant], cache_dir: Path) -> list[Trace]:
    """Both models in environments of their own: the base is traced in its worker."""
    sequences = [token_inputs(ids) for ids in IDS]
    found = []
    with opened(base, cache_dir) as original:
        for candidate in candidates:
            with opened(candidate, cache_dir) as side:
                recorded = side.record(sequences)
            with contextlib.closing(recorded):
                found.append(original.trace(recorded, sequences))
    return found


def test_rwkv7_chunks_differ_from_the_recurrence_before_the_group_norm_and_pip_does_not(
    cache_dir: Path,
) -> None:
    rounded = Setting(
        name="g_norm", reference="float32", candidate="bfloat16",
        target=Target.parse("dtype:model.layers.1.attn.g_norm"),
    )  # fmt: skip
    pip = port(
        "rwkv", "rwkv", ROOT / "demo/rwkv7/rwkv7.pth", tokenizer=str(MODEL), max_length=512
    )  # fmt: skip
    chunks, norm, other = trace_there(
        fla(prefill="recurrent"),
        [
            fla(prefill="chunk"),
            fla(prefill="recurrent", SETTINGS=(rounded,), ASSIGNMENT={"g_norm": "bfloat16"}),
            pip,
        ],
        cache_dir,
    )
    assert suspects(chunks) == {
        f"model.layers.{n}.attn": f"model.layers.{n}.attn.g_norm:in" for n in range(2)
    }
    assert list(suspects(norm)) == ["model.layers.1.attn.g_norm"]
    assert not other.suspects
    assert not other.unaligned
    assert max(accumulated_errors(other).values()) < 5e-6


def test_rwkv_what_both_libraries_hold_agrees_by_name(cache_dir: Path) -> None:
    pip = port("rwkv", "rwkv", ROOT / "demo/rwkv7/rwkv7.pth", tokenizer=str(MODEL))
    held = []
    for variant in (fla(prefill="recurrent"), pip):
        with opened(variant, cache_dir) as side:
            held.append(side.held_values())
    rows = {one.name: one for one in compare_hyperparameters(*held)}
    sizes = ("layers", "hidden_size", "head_size", "vocabulary", "dtype")
    assert {name: rows[name].verdict for name in sizes} == dict.fromkeys(sizes, "equal")
    for own in held:
        epsilons = {one.module: one.value for one in own if one.name == "norm_eps"}
        assert epsilons["model.layers.1.attn.g_norm"] == 64e-5
        assert epsilons["model.layers.1.ffn_norm"] == epsilons["model.norm"] == 1e-5
