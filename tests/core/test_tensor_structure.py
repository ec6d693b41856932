"""Faults of layout are named with what undoes them, through rounding too, and never by chance."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from evalguard.core.name_map import Permutation, parse_name_map
from evalguard.core.precision_vote import round_integer, round_mantissa
from evalguard.core.tensor_structure import (
    find_factor,
    find_structure,
    find_swapped,
    fingerprint_places,
)


def make_weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * np.float32(0.02)


def shuffle(size: int) -> np.ndarray:
    return np.random.default_rng(9).permutation(size)


def permute_heads(values: np.ndarray, heads: int) -> np.ndarray:
    return values.reshape(heads, -1, values.shape[1])[shuffle(heads)].reshape(values.shape)


def pair_last_rows(values: np.ndarray, heads: int) -> np.ndarray:
    """Of each head of DeepSeek's queries the last rows alone are rotated: here 8, beside each other
    as 0 4 1 5 2 6 3 7."""
    rows = values.reshape(heads, -1, values.shape[1])
    pairs = rows[:, -8:].reshape(heads, 2, 4, -1).swapaxes(1, 2).reshape(heads, 8, -1)
    return np.concatenate([rows[:, :-8], pairs], axis=1).reshape(values.shape)


SQUARE, WIDE, CUBE = make_weights(64, 64), make_weights(48, 64), make_weights(4, 3, 2)
STACK = make_weights(4, 12, 16)
FAULTS = {
    "transposed": (SQUARE, SQUARE.T),
    "transposed, of another shape": (WIDE, WIDE.T),
    "transposed, three axes": (CUBE, CUBE.transpose(2, 0, 1)),
    "reshaped": (WIDE, WIDE.reshape(64, 48)),
    "rows permuted": (WIDE, WIDE[shuffle(48)]),
    "columns permuted": (WIDE, WIDE[:, shuffle(64)]),
    "heads permuted": (SQUARE, permute_heads(SQUARE, 8)),
    "rotary pairs": (SQUARE, SQUARE[Permutation(heads=4, order="halves").index(64)]),
    "rotary pairs, back": (WIDE, WIDE[Permutation(heads=2, order="interleaved").index(48)]),
    "rotary pairs, the last rows of a head": (WIDE, pair_last_rows(WIDE, 3)),
    "scaled": (WIDE, WIDE * np.float32(1.02)),
    "scaled, other sign": (WIDE, -WIDE),
    "plus a constant": (WIDE[0], WIDE[0] + 1),
    "swapped": (STACK, np.roll(STACK, 6, axis=1)),
    "swapped, turned": (STACK, np.roll(STACK, 8, axis=2)),
    "heads permuted, two": (WIDE, np.roll(WIDE, 24, axis=0)),
    "zeroed": (WIDE, WIDE * 0),
    "zeroed, a vector": (WIDE[0], WIDE[0] * 0),
    "rows permuted, a vector": (WIDE[0], WIDE[0][shuffle(64)]),
    "rows permuted, two of a vector": (WIDE[0], WIDE[0][[7, *range(1, 7), 0, *range(8, 64)]]),
    "shifted": (WIDE, np.roll(WIDE, 1, axis=0)),
    "shifted, back": (WIDE, np.roll(WIDE, -1, axis=1)),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_layout_is_named(case: str) -> None:
    base, candidate = FAULTS[case]
    found = find_structure(base, np.ascontiguousarray(candidate), heads=True)
    assert found is not None
    assert found.fault == case.partition(",")[0]
    assert found.left < 1e-5 or found.fault == "zeroed"


@pytest.mark.parametrize("case", [case for case in FAULTS if "scaled" not in case])
def test_a_fault_of_layout_is_named_through_a_rounding(case: str) -> None:
    base, candidate = FAULTS[case]
    found = find_structure(base, round_mantissa(candidate, 7), heads=True)
    assert found is not None
    assert found.fault == case.partition(",")[0]


@pytest.mark.parametrize("case", FAULTS)
def test_the_rule_that_is_proposed_undoes_the_fault(case: str) -> None:
    base, candidate = FAULTS[case]
    found = find_structure(base, np.ascontiguousarray(candidate), heads=True)
    assert found is not None
    if found.fault in ("shifted", "zeroed", "swapped"):
        assert not found.rule, "elements were lost, or no rule says it"
        return
    text = f'map:\n- base: "x"\n  cand: "y"\n  {found.rule}\n'
    pair = parse_name_map(yaml.safe_load(text), where="map").find("x", {"y"})
    assert pair is not None
    np.testing.assert_allclose(pair.layout.apply(candidate), base, rtol=1e-4, atol=1e-6)


def test_a_vector_with_an_axis_of_one_beside_it_is_a_vector() -> None:
    base = make_weights(1, 8)
    found = find_structure(base, np.ascontiguousarray(base[:, ::-1]))
    assert found is not None
    assert (found.fault, found.detail, found.rule) == (
        "rows permuted",
        "all 8 elements reversed",
        "",
    )


@pytest.mark.parametrize("size", [16, 64, 4096])
def test_vectors_of_one_distribution_are_no_order_of_each_other(size: int) -> None:
    """Sorted, two norms' weights of 4,096 elements are within what bfloat16 loses of each other."""
    named = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        base = 1 + rng.normal(0, 0.05, size).astype(np.float32)
        held = round_mantissa(base, 7)
        step = np.float32(2.0**-7) * rng.choice([-1, 0, 0, 0, 1], size).astype(np.float32)
        others = {
            "another": (base, 1 + rng.normal(0, 0.05, size).astype(np.float32)),
            "another, in bfloat16": (held, round_mantissa(rng.permutation(base) + 1e-3, 7)),
            "tuned by single steps": (held, round_mantissa(held + step, 7)),
            "two that moved by a step": (
                np.where(np.arange(size) == 0, np.float32(1.0078125), held),
                np.where(np.arange(size) == 0, np.float32(1.0), held),
            ),
            "a mask": (np.sign(base - 1), np.sign(rng.permutation(base) - 1)),
            "one number": (base * 0 + 1, base * 0 + 2),
        }
        for kind, (one, other) in others.items():
            found = find_structure(one, other)
            named += [(seed, kind)] if found is not None and "rows" in found.fault else []
    assert not named


def test_two_exchanged_rows_are_enough() -> None:
    found = find_structure(WIDE, WIDE[[1, 0, *range(2, 48)]])
    assert found is not None
    assert (found.fault, found.detail) == ("rows permuted", "rows 0 and 1 exchanged")


@pytest.mark.parametrize("heads", [True, False])
def test_rotary_pairs_are_rows_of_heads(heads: bool) -> None:
    found = find_structure(WIDE, pair_last_rows(WIDE, 3), heads=heads)
    assert found is not None
    told = {True: "rotary pairs (beside each other, 3 x 8 rows)", False: "rows permuted"}
    assert f"{found.fault} ({found.detail})".startswith(told[heads])


@pytest.mark.parametrize("block", [[0, 4, 1, 5, 2, 3, 6, 7], [3, 4, 1, 5, 2, 6, 0, 7]])
def test_another_order_inside_heads_is_none_of_rotary_pairs(block: list[int]) -> None:
    rows = np.arange(48)
    for first in (8, 24, 40):
        rows[first : first + 8] = first + np.array(block)
    found = find_structure(WIDE, WIDE[rows], heads=True)
    assert found is not None
    assert found.fault == "rows permuted"


def test_a_factor_is_seen_on_a_part_of_a_tensor() -> None:
    found = find_factor(WIDE[:4], WIDE[:4] * np.float32(1.0005))
    assert found is not None
    assert (found.fault, found.detail) == ("scaled", "by 1.0005")


def test_what_is_seen_in_a_part_of_a_tensor_is_told_of_all_of_it() -> None:
    """Every third of 200 rows, and every fourth of 25,600 elements, are looked at first."""
    base = make_weights(200, 128)
    curve = np.exp(base)
    found = find_structure(base, curve)
    assert found is not None
    assert found.fault == "stored as its exponential"
    curve[0, 1] *= 2  # the second element
    assert find_structure(base, curve) is None
    moved = base[shuffle(200)]
    moved[np.flatnonzero(shuffle(200) == 0)] = 0  # where the first row went
    found = find_structure(base, moved)
    assert found is not None
    assert found.fault == "rows permuted"


def test_roundings_and_other_weights_are_no_faults_of_layout() -> None:
    """None of two hundred."""
    named = []
    for seed in range(50):
        base = make_weights(32, 32, seed=seed)
        others = {
            "bf16": round_mantissa(base, 7),
            "int4": round_integer(base, 4, group=32),
            "other": make_weights(32, 32, seed=seed + 1000),
            "tuned": base + make_weights(32, 32, seed=seed + 2000) * np.float32(0.1),
        }
        named += [(seed, k, f) for k, one in others.items() if (f := find_structure(base, one))]
    assert not named


def test_tensors_of_other_sizes_have_nothing_in_common() -> None:
    assert find_structure(WIDE, SQUARE) is None
    assert find_structure(WIDE, WIDE) is None
    assert find_structure(make_weights(0), make_weights(0)) is None


def test_tensors_under_one_anothers_names_are_found_through_int8() -> None:
    places = fingerprint_places(SQUARE.size)
    one, other = make_weights(64, 64, seed=1), make_weights(64, 64, seed=2)
    third = make_weights(64, 64, seed=3)
    base = {"a": one, "b": other, "c": third}
    candidate = {"a": other, "b": one, "c": make_weights(64, 64, seed=4)}
    pick = {k: v.reshape(-1)[places] for k, v in base.items()}
    rounded = {k: round_integer(v, 8).reshape(-1)[places] for k, v in candidate.items()}
    assert find_swapped(pick, rounded) == {"a": "b", "b": "a"}


def test_fingerprints_are_spread_over_a_tensor() -> None:
    places = fingerprint_places(4096 * 4096)
    assert len(set((places % 4096).tolist())) > 60
    assert len(set((places // 4096).tolist())) > 60
    assert fingerprint_places(5).tolist() == [0, 1, 2, 3, 4]
