"""Patterns over module names: one star stays within a part, two cross dots."""

from __future__ import annotations

import pytest

from evalguard.conversion.name_patterns import matching
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
