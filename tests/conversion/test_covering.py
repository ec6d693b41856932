"""A pattern names the tensors that are wanted, briefly, and no other one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.conversion.name_patterns import Covering, matching

TENSORS = [
    *(f"model.layers.{i}.{part}" for i in range(3) for part in (
        "attn.q.weight", "attn.q.bias", "attn.norm.weight", "mlp.experts.0.up", "mlp.experts.1.up",
    )),
    "model.layers.2.extra.weight", "model.norm.weight", "head.weight",
]  # fmt: skip
COVERING = Covering(TENSORS)
INSIDE = list(
    dict.fromkeys(
        ".".join(name.split(".")[:length])
        for name in TENSORS
        for length in range(1, len(name.split(".")) + 1)
    )
)


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        (r"head", "head"),
        (r"attn\.", "model.layers.*.attn"),
        (r"attn\.q", "model.layers.*.attn.q"),
        (r"1\.attn\.q\.bias", "model.layers.1.attn.q.bias"),
        (r"experts", "model.layers.*.mlp"),
        (r"1\.mlp.experts", "model.layers.1.mlp"),
        (r"norm", "model.layers.*.attn.norm,model.norm"),
        (r"extra", "model.layers.2.extra"),
        (r"[01]\.mlp", "model.layers.0.mlp,model.layers.1.mlp"),
        (r".", "model,head"),
    ],
)
def test_tensors_are_named_as_briefly_as_can_be(wanted: str, pattern: str) -> None:
    assert COVERING.pattern([name for name in TENSORS if re.search(wanted, name)]) == pattern


@given(st.sets(st.sampled_from(TENSORS), min_size=1))
def test_a_covering_pattern_names_these_tensors_and_no_other(wanted: set[str]) -> None:
    named = matching(COVERING.pattern(wanted), INSIDE, setting="s")
    assert {t for t in TENSORS if any(t == n or t.startswith(f"{n}.") for n in named)} == wanted
