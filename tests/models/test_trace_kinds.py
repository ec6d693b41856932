"""What a fault is made of is told: one number, rotary positions, a tie, a nan, a class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from traced_faults import DOCUMENTS, after
from traced_models import changed, make_llama

from evalguard.core.tracing.sums import ErrorSums
from evalguard.models.tracing.model_trace import trace_models


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("module", "function", "says"),
    [
        ("lm_head", lambda x: x * 6.0, "output is 6.00 times the base's, cosine 1.000000"),
        ("model.embed_tokens", lambda x: x * 12.0, "output is 12.00 times the base's, cosine 1"),
        ("lm_head", lambda x: x / 6.0, "output is 0.16667 times the base's, cosine 1.0"),
        ("model.norm", lambda x: x * 1.02, "output is 1.02 times the base's"),
        ("model.layers.1.mlp.down_proj", lambda x: -x, "output is the base's with the other sign"),
        ("model.layers.1.mlp.up_proj", lambda x: x + 0.25, "output is the base's plus 0.25"),
        ("model.layers.0.self_attn.o_proj", lambda x: x * 0.0, "output is zero"),
    ],
)
def test_one_number_that_is_the_whole_error_is_told(
    module: str, function: Any, says: str, dtype: torch.dtype
) -> None:
    base = make_llama()
    found = trace_models(base, changed(base, after(module, function), dtype), DOCUMENTS)
    assert found.first is not None
    assert found.first.module == module
    if dtype is torch.float32:  # the other one rounds the number, too
        assert says in found.first.operation
    assert found.first.relation is not None


@pytest.mark.parametrize(
    "function",
    [
        torch.tanh,
        lambda x: x * torch.linspace(0.5, 2.0, x.shape[-1]),
        lambda x: x.roll(1, -1),
        lambda x: x + torch.linspace(0.5, 2.0, x.shape[-1]),
        lambda x: x.abs(),
    ],
)
def test_what_is_no_constant_is_not_called_one(function: Any) -> None:
    base = make_llama()
    found = trace_models(base, changed(base, after("lm_head", function)), DOCUMENTS)
    assert found.first is not None
    assert found.first.relation is None
    assert "computes something else" in found.first.operation


def test_factors_and_offsets_are_read_off_the_sums() -> None:
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    for made, kind, value in (
        (values * 3, "factor", 3.0), (values * -1, "factor", -1.0),
        (values * 1.001, "factor", 1.001), (values + 2, "offset", 2.0),
        (values - 0.01, "offset", -0.01),
    ):  # fmt: skip
        sums = ErrorSums()
        sums.add(values, made.astype(np.float32))
        relation = sums.relation()
        assert relation is not None
        assert relation.kind == kind
        assert relation.value == pytest.approx(value, rel=1e-3)
