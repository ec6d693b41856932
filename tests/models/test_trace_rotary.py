"""Rotary positions of another base, layout or number of dimensions are told as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from traced_faults import DOCUMENTS, differing
from traced_models import changed, make_llama

from evalguard.models.hyperparameters_read import read_rotary, rope_base
from evalguard.tracing.measure.forced_trace import trace_models


def inverse(base: float, n: int = 4) -> torch.Tensor:
    return base ** (-torch.arange(n, dtype=torch.float64) / n)


def set_frequencies(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        rotary = model.model.rotary_emb
        rotary.inv_freq = make(rotary.inv_freq)

    return change


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda f: inverse(50_000.0, len(f)).to(f.dtype), "rope_theta"),
        (lambda f: f / 8.0, "rope_frequencies"),
        (lambda f: torch.where(f < 0.05, f / 8.0, f), "rope_frequencies"),
        (lambda f: f.bfloat16().float(), "rope_frequencies"),
        (lambda f: f.flip(0), "rope_frequencies"),
    ],
    ids=["another base", "linear scaling", "long ones scaled", "rounded", "reversed"],
)
def test_frequencies_that_differ_are_named_and_located(make: Any, name: str) -> None:
    base = make_llama()
    candidate = changed(base, set_frequencies(make))
    assert set(differing(base, candidate)) == {name}
    found = trace_models(base, candidate, DOCUMENTS)
    assert found.first is not None
    assert found.first.module == "model.rotary_emb"


def test_frequencies_that_other_kernels_computed_are_equal() -> None:
    base = make_llama()
    other = changed(base, set_frequencies(lambda f: f * (1 + 1e-7)))
    assert not differing(base, other)


def test_fewer_frequencies_are_another_number_of_rotated_dimensions() -> None:
    base = make_llama()
    found = differing(base, changed(base, set_frequencies(lambda f: inverse(1e4, 2))))
    assert (found["rope_dimensions"].base, found["rope_dimensions"].candidate) == (8, 4)


class Tables(nn.Module):
    """Rotary positions as tables, in the ways of other code."""

    def __init__(self, key: str, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer(key, table)


def angles(base: float) -> torch.Tensor:
    return torch.outer(torch.arange(16, dtype=torch.float64), inverse(base))


@pytest.mark.parametrize(
    ("key", "make"),
    [
        ("inv_freq", inverse),
        ("sliding_attention_inv_freq", inverse),
        ("sin_cached", lambda base: torch.cat([angles(base).sin()] * 2, -1)[None, None]),
        ("sin", lambda base: angles(base).sin().repeat_interleave(2, -1)),
        ("freqs_cis", lambda base: torch.polar(torch.ones_like(angles(base)), angles(base))),
        (
            "embed_positions",
            lambda base: torch.cat([angles(base).sin(), angles(base).cos()], -1),
        ),
    ],
)
def test_the_base_is_read_off_whatever_a_module_holds(key: str, make: Any) -> None:
    told = {
        one.name.partition(" ")[0]: one.value for one in read_rotary("r", Tables(key, make(1e4)))
    }
    assert told["rope_theta"] == 10_000.0
    base, other = Tables(key, make(1e4)), Tables(key, make(5e5))
    (name,) = (one for one in differing(base, other))
    assert name.startswith("rope_theta")


def test_neighbours_and_halves_are_two_layouts() -> None:
    halves = Tables("sin", torch.cat([angles(1e4).sin()] * 2, -1))
    pairs = Tables("sin", angles(1e4).sin().repeat_interleave(2, -1))
    assert differing(halves, pairs)["rope_interleaved"].candidate is True


def test_each_kind_of_attention_has_its_own_base() -> None:
    module, other = Tables("inv_freq", inverse(1e4)), Tables("inv_freq", inverse(1e4))
    module.register_buffer("sliding_attention_inv_freq", inverse(1e4))
    other.register_buffer("sliding_attention_inv_freq", inverse(1e6))
    assert set(differing(module, other)) == {"rope_theta (sliding_attention)"}
    assert rope_base(np.array([1.0])) is None
