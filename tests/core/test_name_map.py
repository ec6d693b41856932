"""Which tensor of the candidate is which of the base, and how it is laid out there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalguard.core.name_map import NameMap, parse_name_map
from evalguard.errors import UsageError
from evalguard.tensor_files.name_map_file import read_name_map


def make_map(*rules: dict[str, Any], ignore: tuple[str, ...] = ()) -> NameMap:
    return parse_name_map({"map": list(rules), "ignore": list(ignore)}, where="map.yaml")


def apply(rule: dict[str, Any], array: np.ndarray, name: str = "x") -> np.ndarray:
    found = make_map({"base": "x", "cand": "y", **rule}).find(name, ["y"])
    assert found is not None
    return found.layout.apply(array)


def test_wildcards_of_both_names_stand_for_the_same_text() -> None:
    names = make_map({"base": "model.layers.*.q.weight", "cand": "blk.*.attn_q.weight"})
    aligned = names.align(
        ["model.layers.0.q.weight", "model.layers.11.q.weight", "model.layers.0.x.q.weight"],
        ["blk.11.attn_q.weight", "blk.0.attn_q.weight"],
    )
    assert [(pair.base, pair.cand) for pair in aligned.pairs] == [
        ("model.layers.0.q.weight", "blk.0.attn_q.weight"),
        ("model.layers.11.q.weight", "blk.11.attn_q.weight"),
    ]
    assert aligned.base_only == ("model.layers.0.x.q.weight",), "* stands for no dot"


def test_points_of_a_trace_are_names_too() -> None:
    names = make_map({"base": "model.layers.*.input_layernorm:out", "cand": "attn_norm-*"})
    found = names.find("model.layers.7.input_layernorm:out", {"attn_norm-7"})
    assert found is not None
    assert found.cand == "attn_norm-7"


def test_names_in_no_rule_belong_together_where_they_are_equal() -> None:
    aligned = make_map(ignore=("**.inv_freq",)).align(["a", "b", "r.inv_freq"], ["b", "c"])
    assert [pair.base for pair in aligned.pairs] == ["b"]
    assert (aligned.base_only, aligned.cand_only) == (("a",), ("c",))
    assert aligned.ignored == ("r.inv_freq",)


def test_the_first_rule_with_both_names_counts() -> None:
    names = make_map({"base": "x", "cand": "absent"}, {"base": "x", "cand": "y"})
    found = names.find("x", {"y"})
    assert found is not None
    assert found.cand == "y"


def test_several_tensors_of_the_base_may_be_parts_of_one() -> None:
    fused = np.arange(24.0).reshape(8, 3)
    parts = [apply({"split": {"sizes": [4, 2, 2], "index": index}}, fused) for index in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), fused)
    np.testing.assert_array_equal(
        apply({"split": {"axis": -1, "parts": 3, "index": 2}}, fused), fused[:, 2:]
    )


def test_experts_are_slices_of_a_stack() -> None:
    names = make_map({"base": "l.*.experts.*.up", "cand": "blk.*.up_exps", "take": {"index": "$2"}})
    found = names.find("l.3.experts.1.up", {"blk.3.up_exps"})
    assert found is not None
    stack = np.arange(12).reshape(3, 2, 2)
    np.testing.assert_array_equal(found.layout.apply(stack), stack[1])


def test_rotary_pairs_are_put_half_a_head_apart_and_back() -> None:
    halves = np.arange(16).reshape(16, 1)  # 2 heads of 8
    interleaved = halves.reshape(2, 2, 4, 1).swapaxes(1, 2).reshape(16, 1)  # as ggml wants them
    rule = {"permute": {"heads": 2, "order": "interleaved"}}
    np.testing.assert_array_equal(apply(rule, interleaved), halves)
    back = {"permute": {"heads": 2, "order": "halves"}}
    np.testing.assert_array_equal(apply(back, halves), interleaved)


def test_heads_can_be_put_in_any_order() -> None:
    rule = {"permute": [{"axis": 1, "heads": 2, "order": [1, 0]}, {"order": [2, 0, 1]}]}
    array = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(apply(rule, array), array[[2, 0, 1]][:, [2, 3, 0, 1]])


def test_reshape_comes_before_transpose_and_arithmetic_last() -> None:
    rule = {"reshape": [2, -1], "transpose": [1, 0], "scale": 2.0, "add": -1.0}
    array = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(apply(rule, array), array.reshape(2, 3).T * 2 - 1)


def test_what_needs_no_copy_is_a_view() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(apply({"transpose": [1, 0]}, array), array)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"base": "a.*", "cand": "b"}, "wildcards"),
        ({"base": "a"}, "cand"),
        ({"base": "a", "cand": "b", "transposed": [1, 0]}, "did you mean 'transpose'"),
        ({"base": "a", "cand": "b", "transpose": [1, 1]}, "each axis once"),
        ({"base": "a", "cand": "b", "permute": {"order": "rotated", "heads": 2}}, "interleaved"),
        ({"base": "a", "cand": "b", "permute": {"order": "halves"}}, "needs heads"),
        ({"base": "a", "cand": "b", "split": {"parts": 2, "index": 2}}, "no index 2"),
        ({"base": "a", "cand": "b", "take": {"index": "$1"}}, "must be a number"),
        ({"base": "a", "cand": "b", "scale": 0}, "other than 0"),
        ({"base": "a", "cand": "b", "scale": "banana"}, "scale must be a number, got 'banana'"),
        ({"base": "a", "cand": "b", "scale": True}, "scale must be a number, got True"),
        ({"base": "a", "cand": "b", "add": [1]}, r"add must be a number, got [1]"),
    ],
)
def test_a_wrong_rule_is_named(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=r"map\.yaml: rule 1") as caught:
        make_map(rule)
    assert said in str(caught.value)


def test_a_layout_that_does_not_fit_says_why() -> None:
    with pytest.raises(ValueError, match="not 4 heads"):
        apply({"permute": {"heads": 4}}, np.zeros(6))
    with pytest.raises(ValueError, match="do not make 6"):
        apply({"split": {"sizes": [2, 2], "index": 0}}, np.zeros(6))
    with pytest.raises(ValueError, match="no axis 1"):
        apply({"split": {"axis": 1, "parts": 2, "index": 0}}, np.zeros(6))


def test_a_map_is_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text('map:\n- {base: "a.*", cand: "b.*", transpose: [1, 0]}\nignore: ["c"]\n')
    names = read_name_map(path)
    found = names.find("a.1", {"b.1"})
    assert found is not None
    assert found.layout.transpose == (1, 0)
    assert names.ignores("c")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("map: [", "is not YAML: line"),
        ("map: []\nmap: []\n", "line 2: key 'map' is there twice"),
        ("maps: []\n", "did you mean 'map'"),
        ("- 1\n", "must be a mapping"),
        ("map: {base: a, cand: b}\n", "must be a list"),
    ],
)
def test_a_file_that_is_no_map_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_name_map(path)
    assert said in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_name_map(tmp_path / "absent.yaml")
