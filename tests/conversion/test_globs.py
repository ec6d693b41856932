"""Patterns over module names: one star stays within a part, two cross dots."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.conversion.globs import covering, matching
from evalguard.errors import SettingError

NAMES = [
    "", "model", "model.norm", "model.layers", "model.layers.0", "model.layers.0.self_attn",
    "model.layers.0.self_attn.q_proj", "model.layers.0.input_layernorm", "model.layers.1",
    "model.layers.1.self_attn", "model.layers.1.input_layernorm", "model.layers.12.self_attn",
    "lm_head",
]  # fmt: skip


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("lm_head", ["lm_head"]),
        ("model.layers.*", ["model.layers.0", "model.layers.1"]),
        (
            "model.layers.*.self_attn",
            ["model.layers.0.self_attn", "model.layers.1.self_attn", "model.layers.12.self_attn"],
        ),
        ("model.layers.?.self_attn", ["model.layers.0.self_attn", "model.layers.1.self_attn"]),
        ("model.layers.[1-3].self_attn", ["model.layers.1.self_attn"]),
        ("model.layers.[!1].self_attn", ["model.layers.0.self_attn"]),
        ("**.q_proj", ["model.layers.0.self_attn.q_proj"]),
        (
            "**norm",
            ["model.norm", "model.layers.0.input_layernorm", "model.layers.1.input_layernorm"],
        ),
        ("*", ["model", "lm_head"]),
        ("**", NAMES[1:]),
    ],
)
def test_a_pattern_matches_these(glob: str, found: list[str]) -> None:
    assert matching(glob, NAMES, setting="s") == found


def test_a_dot_in_a_pattern_is_a_dot() -> None:
    with pytest.raises(SettingError):
        matching("model?norm", NAMES, setting="s")


def test_a_pattern_that_matches_nothing_names_the_nearest_modules() -> None:
    with pytest.raises(SettingError, match=r"setting 'eps': no module is named") as raised:
        matching("model.layers.*.inputlayernorm", NAMES, setting="eps")
    assert "model.layers.*.input_layernorm" in raised.value.hint


def test_a_comma_stands_between_patterns_of_which_each_must_match() -> None:
    assert matching("lm_head, model.norm", NAMES, setting="s") == ["model.norm", "lm_head"]
    assert matching("model.layers.[0,1]", NAMES, setting="s") == [
        "model.layers.0",
        "model.layers.1",
    ]
    with pytest.raises(SettingError, match="no module is named 'lm_haed'"):
        matching("model.norm,lm_haed", NAMES, setting="s")


TENSORS = [
    *(f"model.layers.{i}.{part}" for i in range(3) for part in (
        "attn.q.weight", "attn.q.bias", "attn.norm.weight", "mlp.experts.0.up", "mlp.experts.1.up",
    )),
    "model.layers.2.extra.weight", "model.norm.weight", "head.weight",
]  # fmt: skip
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
    assert covering([name for name in TENSORS if re.search(wanted, name)], TENSORS) == pattern


@given(st.sets(st.sampled_from(TENSORS), min_size=1))
def test_a_covering_pattern_names_these_tensors_and_no_other(wanted: set[str]) -> None:
    named = matching(covering(wanted, TENSORS), INSIDE, setting="s")
    assert {t for t in TENSORS if any(t == n or t.startswith(f"{n}.") for n in named)} == wanted
