"""Every class of difference is said where its form is what was done, and not where it is another.

The tensors are as training leaves them: rows and columns of many sizes, a few large elements, a
part of low rank.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from evalguard.core.tensor_structure import Fault
from evalguard.models.unloaded_models import may_have_heads
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors

Weights = dict[str, np.ndarray]
Change = Callable[[Weights], None]
QUERY, KEY, VALUE = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
GATE, UP, DOWN = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
FUSED, EXPERTS = (f"model.layers.1.mlp.{name}gate_up_proj" for name in ("", "experts."))
NORM, DECAY, RATES, RATE = (
    f"model.layers.0.{name}"
    for name in ("input_layernorm.weight", "mixer.A_log", "mixer.rates", "mixer.A")
)
# These are about more than a pair of tensors, or of packed ones, and have tests of their own.
ELSEWHERE: dict[Fault, str] = {
    "stale tied head": "test_compare_tensors.py",
    "rotated": "test_rotated_weights.py",
    "rescaled": "test_moved_errors.py",
    "never calibrated": "test_activation_scales.py",
    "adapter scaled": "test_lora_adapters.py",
}


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def train(rows: int, columns: int, seed: int) -> np.ndarray:
    drawn = draw(seed)
    sizes = 0.02 * np.exp(0.5 * drawn.standard_normal((rows, 1)))
    made = drawn.standard_normal((rows, columns)) * sizes
    made *= np.exp(0.3 * drawn.standard_normal((1, columns)))
    made += 0.006 * drawn.standard_normal((rows, 4)) @ drawn.standard_normal((4, columns))
    made.flat[drawn.integers(made.size, size=16)] *= 20
    return made.astype(np.float32)


def make_base() -> Weights:
    return {
        QUERY: train(128, 128, 1),
        KEY: train(64, 128, 2),
        VALUE: train(64, 128, 3),
        GATE: train(262, 128, 4),
        UP: train(262, 128, 5),
        DOWN: train(128, 262, 6),
        NORM: (0.4 + 0.2 * draw(7).standard_normal(128)).astype(np.float32),
        DECAY: np.log(np.arange(1, 25)).astype(np.float32),
        RATE: -np.arange(1, 25, dtype=np.float32),
        FUSED: train(192, 128, 8),
        EXPERTS: train(4 * 96, 64, 9).reshape(4, 96, 64),
        RATES: np.log(np.tile(np.arange(1, 17), (64, 1))).astype(np.float32),
    }


def at(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(weights: Weights) -> None:
        weights[name] = np.ascontiguousarray(make(weights[name]), dtype=np.float32)

    return change


def put(name: str, where: object, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Change some rows, or a part of one."""

    def change(weights: Weights) -> None:
        weights[name][where] = make(weights[name][where])  # type: ignore[index]

    return change


def swap(one: str, other: str) -> Change:
    def change(weights: Weights) -> None:
        weights[one], weights[other] = weights[other], weights[one]

    return change


def interleave(values: np.ndarray, heads: int = 1) -> np.ndarray:
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def permute(values: np.ndarray, width: int = 1) -> np.ndarray:
    blocks = values.reshape(-1, width, values.shape[1])
    return blocks[draw(9).permutation(len(blocks))].reshape(values.shape)


def noise(values: np.ndarray, share: float = 1.0) -> np.ndarray:
    return values + share * values.std() * draw(10).standard_normal(values.shape)


def insert(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values[:50], values[3:9].mean(axis=0, keepdims=True), values[50:-1]])


def quantise(values: np.ndarray, off: int = 0, rolled: int = 0) -> np.ndarray:
    steps = np.ptp(values, axis=1, keepdims=True) / 15
    return (np.rint(values / steps) - off) * np.roll(steps, rolled, axis=0)


def average(values: np.ndarray) -> np.ndarray:
    return (values + np.roll(values, 1, axis=0)) / 2


def prune(values: np.ndarray, share: float = 0.5, axis: int | None = None) -> np.ndarray:
    """Set a share of the smallest to zero, of all or of each row or column."""
    sizes = np.abs(values)
    return np.where(sizes <= np.quantile(sizes, share, axis=axis, keepdims=True), 0, values)


def keep_of(values: np.ndarray, kept: int, of: int) -> np.ndarray:
    """Keep the largest few of each group of neighbours."""
    groups = values.reshape(-1, of)
    ranks = np.argsort(np.argsort(-np.abs(groups), axis=1), axis=1)
    return np.where(ranks < kept, groups, 0).reshape(values.shape)


def adapt(values: np.ndarray, rank: int = 8, size: float = 0.1) -> np.ndarray:
    """Add an adapter's update, of a share of the weights' size."""
    rows, columns = values.shape
    update = draw(4).standard_normal((rows, rank)) @ draw(5).standard_normal((rank, columns))
    return values + size * values.std() * update / np.sqrt(rank)


def split_by_head(weights: Weights) -> None:
    """Two heads of queries, keys and values beside each other, cut as if all queries came first."""
    parts = [weights[name].reshape(2, -1, 128) for name in (QUERY, KEY, VALUE)]
    fused = np.concatenate(parts, axis=1).reshape(256, 128)
    weights[QUERY], weights[KEY], weights[VALUE] = fused[:128], fused[128:192], fused[192:]


def gate_in_turn(weights: Weights) -> None:
    fused = interleave(np.concatenate([weights[GATE], weights[UP]]))
    weights[GATE], weights[UP] = fused[:262], fused[262:]


BLOCK, LONG = (7, slice(32, 64)), (7, slice(32, 96))
# What each class is said of (the tensor, what was done to it), and what it must not be said of.
TABLE: dict[Fault, tuple[tuple[str, Change], tuple[str, Change]]] = {
    "transposed": (
        (QUERY, at(QUERY, lambda one: one.T)),
        (QUERY, at(QUERY, lambda one: (one + one.T) / 2)),
    ),
    "reshaped": (
        (UP, at(UP, lambda one: one.reshape(131, 256))),
        (UP, at(UP, lambda one: one.T)),
    ),
    "columns permuted": (
        (DOWN, at(DOWN, lambda one: permute(one.T).T)),
        (DOWN, at(DOWN, lambda one: np.sort(one, axis=1))),
    ),
    "rotary pairs": (
        (QUERY, at(QUERY, lambda one: interleave(one, heads=4))),
        (UP, at(UP, interleave)),
    ),
    "scaled": (
        (NORM, at(NORM, lambda one: 8 * one)),
        (DECAY, at(DECAY, lambda one: -np.exp(one))),
    ),
    "plus a constant": (
        (NORM, at(NORM, lambda one: one + 1)),
        (NORM, at(NORM, np.exp)),
    ),
    "stored as its exponential": (
        (DECAY, at(DECAY, lambda one: -np.exp(one))),
        (DECAY, at(DECAY, lambda one: 1 + one + one**2 / 2)),
    ),
    "stored as its logarithm": (
        (RATE, at(RATE, lambda one: np.log(-one))),
        (RATE, at(RATE, lambda one: np.log1p(-one))),
    ),
    "shifted": (
        (UP, at(UP, lambda one: np.roll(one, 1, axis=0))),
        (UP, at(UP, average)),
    ),
    "swapped": (
        (GATE, swap(GATE, UP)),
        (GATE, gate_in_turn),
    ),
    "rows appended": (
        (UP, at(UP, lambda one: np.concatenate([one, noise(one[:9])]))),
        (UP, at(UP, lambda one: permute(np.concatenate([one, noise(one[:9])])))),
    ),
    "rows cut off": (
        (UP, at(UP, lambda one: one[:-9])),
        (UP, at(UP, lambda one: permute(one)[:-9])),
    ),
    "rows permuted": (
        (UP, at(UP, permute)),
        (UP, at(UP, lambda one: noise(permute(one)))),
    ),
    "heads permuted": (
        (QUERY, at(QUERY, lambda one: permute(one, width=32))),
        (UP, at(UP, lambda one: permute(one, width=2))),
    ),
    "rows duplicated": (
        (UP, put(UP, slice(5, 7), lambda one: one[:1])),
        (UP, at(UP, lambda one: np.repeat(one.reshape(131, 2, -1).mean(axis=1), 2, axis=0))),
    ),
    "rows zeroed": (
        (UP, put(UP, slice(5, 9), np.zeros_like)),
        (UP, put(UP, slice(5, 9), lambda one: 0.5 * one)),
    ),
    "rows negated": (
        (UP, put(UP, slice(5, 9), np.negative)),
        (UP, at(UP, np.abs)),
    ),
    "rows scaled": (
        (UP, put(UP, slice(5, 9), lambda one: 3 * one)),
        (RATES, at(RATES, lambda one: -np.exp(one))),
    ),
    "not finite": (
        (UP, put(UP, (9, 3), lambda one: np.nan * one)),
        (UP, put(UP, (9, 3), lambda one: 1e4 * one)),
    ),
    "constant": (
        (NORM, at(NORM, np.ones_like)),
        (NORM, put(NORM, slice(1, None), np.ones_like)),
    ),
    "pruned": (
        (UP, at(UP, prune)),
        (UP, at(UP, lambda one: np.where(draw(3).random(one.shape) < 0.5, 0, one))),
    ),
    "low rank": (
        (UP, at(UP, adapt)),
        (UP, at(UP, lambda one: noise(adapt(one), share=0.05))),
    ),
    "rows damaged": (
        (UP, put(UP, slice(12, 13), noise)),
        (UP, at(UP, lambda one: noise(one, share=0.1))),
    ),
    "zeroed": (
        (UP, at(UP, np.zeros_like)),
        (UP, put(UP, slice(0, 261), np.zeros_like)),
    ),
    "blocks zeroed": (
        (UP, put(UP, BLOCK, np.zeros_like)),
        (UP, put(UP, BLOCK, noise)),
    ),
    "blocks negated": (
        (UP, put(UP, LONG, np.negative)),
        (UP, put(UP, LONG, np.abs)),
    ),
    "blocks scaled": (
        (UP, put(UP, BLOCK, lambda one: 3 * one)),
        (UP, at(UP, average)),
    ),
    "blocks damaged": (
        (UP, put(UP, BLOCK, noise)),
        (UP, at(UP, lambda one: np.tanh(30 * one) / 10)),
    ),
    "zero points off": (
        (KEY, at(KEY, lambda one: quantise(one, 1))),
        (KEY, at(KEY, lambda one: quantise(one, 0))),
    ),
    "scales rolled": (
        (UP, at(UP, lambda one: quantise(one, rolled=1))),  # of more rows than a sample has
        (UP, at(UP, lambda one: quantise(one))),
    ),
}  # fmt: skip
OTHERS: dict[str, tuple[str, str, Change]] = {
    "rows scaled: an outlier alone": (UP, "scaled", at(UP, lambda one: np.clip(one, -0.1, 0.1))),
    "rows scaled: averaged": (QUERY, "scaled", at(QUERY, average)),
    "scaled: a square": (NORM, "scaled", at(NORM, np.square)),
    "scaled: a part of an affine one": (NORM, "scaled", at(NORM, lambda one: 2 * one + 1)),
    "heads in an MLP": (DOWN, "heads", at(DOWN, lambda one: permute(one.T, width=2).T)),
    "heads of two rows": (QUERY, "heads", at(QUERY, lambda one: permute(one, width=2))),
    "halves of an MLP": (UP, "heads", at(UP, lambda one: np.roll(one, 131, axis=0))),
    "damaged: centred": (UP, "damaged", at(UP, lambda one: one - one.mean(axis=1)[:, None])),
    "damaged: all columns": (
        UP, "damaged", at(UP, lambda one: one * np.exp(0.5 * draw(3).standard_normal(128))),
    ),
    "damaged: rows of others": (KEY, "damaged", split_by_head),
    "a precision: a merge": (
        UP, "int", at(UP, lambda one: one + 0.02 * draw(4).standard_normal((262, 8))
                      @ draw(5).standard_normal((8, 128))),
    ),
}  # fmt: skip


def words(change: Change, name: str, folder: Path, dtype: torch.dtype) -> str:
    """What a tensor is said to look like."""
    base = make_base()
    weights = {key: one.copy() for key, one in base.items()}
    change(weights)
    for side, held, kind in (("a", base, torch.float32), ("b", weights, dtype)):
        tensors = {
            key: torch.from_numpy(np.ascontiguousarray(one)).to(kind) for key, one in held.items()
        }
        save_file(tensors, folder / f"{side}.safetensors")
    paths = (str(folder / f"{side}.safetensors") for side in "ab")
    report = compare_tensors(*paths, TensorOptions())
    found = next(delta for delta in report.deltas if delta.name == name)
    assert not found.passed
    return "" if found.likeness is None else found.likeness.words


def test_every_class_has_a_case_in_which_it_is_said_and_one_in_which_not() -> None:
    assert {*TABLE} | {*ELSEWHERE} == {*get_args(Fault)}
    assert not {*TABLE} & {*ELSEWHERE}


@pytest.mark.parametrize("fault", TABLE)
def test_a_class_is_said_of_its_own_form(fault: Fault, tmp_path: Path) -> None:
    name, change = TABLE[fault][0]
    assert words(change, name, tmp_path, torch.float32).partition(" (")[0] == fault


@pytest.mark.parametrize("fault", TABLE)
def test_a_class_is_not_said_of_another_form(fault: Fault, tmp_path: Path) -> None:
    name, change = TABLE[fault][1]
    for dtype in (torch.float32, torch.bfloat16):
        said = words(change, name, tmp_path, dtype)
        assert said.partition(" (")[0] != fault
        assert f"{fault}:" not in said


@pytest.mark.parametrize("case", OTHERS)
def test_no_word_is_said_that_does_not_fit(case: str, tmp_path: Path) -> None:
    name, word, change = OTHERS[case]
    assert word not in words(change, name, tmp_path, torch.float32)


def snap(values: np.ndarray, bits: int, group: int = 0) -> np.ndarray:
    """Round to a grid around 0, of each row or group."""
    groups = values.reshape(len(values), -1, group or values.shape[1])
    steps = np.abs(groups).max(axis=2, keepdims=True) / (2 ** (bits - 1) - 1)
    return (np.rint(groups / steps) * steps).reshape(values.shape)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda one: snap(keep_of(one, 2, 4), 8), "pruned (2:4, otherwise 8 bits (per row))"),
        (lambda one: keep_of(snap(one, 8), 2, 4), "pruned (2:4, otherwise 8 bits (per row))"),
        (lambda one: snap(keep_of(one, 1, 4), 4, 64),
         "pruned (1:4, otherwise 4 bits (groups of 64))"),
        (lambda one: snap(prune(one), 8), "pruned (the smallest, otherwise 8 bits (per row))"),
        (lambda one: snap(prune(one, axis=1), 4, 32),
         "pruned (the smallest of each row, otherwise 4 bits (groups of 32))"),
        (lambda one: snap(prune(one, axis=0), 8, 64),
         "pruned (the smallest of each column, otherwise 8 bits (groups of 64))"),
    ],
)  # fmt: skip
def test_pruned_and_rounded_weights_are_said_to_be_both(
    make: Any, said: str, tmp_path: Path
) -> None:
    assert words(at(UP, make), UP, tmp_path, torch.float32) == said


@pytest.mark.parametrize(("bits", "group"), [(8, 0), (4, 64), (3, 32)])
@pytest.mark.parametrize("lost", [0.0, 0.2, 0.5])
def test_zeros_by_lot_are_no_pruning_and_no_rounding_and_those_of_a_rounding_are_one(
    bits: int, group: int, lost: float, tmp_path: Path
) -> None:
    def change(one: np.ndarray) -> np.ndarray:
        return snap(np.where(draw(3).random(one.shape) < lost, 0, one), bits, group)

    said = words(at(UP, change), UP, tmp_path, torch.float32)
    assert not said.startswith("pruned")
    assert said.startswith("int") == (lost == 0.0)


def turned(axis: int, order: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """Put what lies along an axis into the order of its two halves' places."""

    def turn(one: np.ndarray) -> np.ndarray:
        places = np.arange(one.shape[axis]).reshape(2, -1)
        return np.take(one, order(places).ravel(), axis=axis)

    return turn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda halves: halves[::-1], "swapped (two halves along axis {})"),
        (lambda halves: halves[::-1].T, "swapped (two interleaved halves along axis {})"),
        (lambda halves: halves.T, "{} permuted (two halves along axis {} interleaved)"),
        (lambda halves: halves.ravel().reshape(-1, 2).T,
         "{} permuted (every second one of axis {} first)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("name", "axis"), [(FUSED, 0), (EXPERTS, 1), (EXPERTS, 2)])
def test_halves_of_a_fused_matrix_are_told_from_rows_in_any_order(
    name: str, axis: int, order: Any, said: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    found = words(at(name, turned(axis, order)), name, tmp_path, dtype)
    rows = ("columns" if axis == 2 else "rows",) if said.startswith("{") else ()
    assert found == said.format(*rows, axis)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        (DECAY, np.exp, "stored as its exponential (exp(x))"),
        (RATES, lambda one: -np.exp(one), "stored as its exponential (-exp(x))"),
        (NORM, np.exp, "stored as its exponential (exp(x))"),
        (RATE, lambda one: np.log(-one), "stored as its logarithm (log(-x))"),
    ],
)
def test_decay_rates_are_known_by_their_exponential_whatever_they_are_stored_in(
    name: str, make: Any, said: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    assert words(at(name, make), name, tmp_path, dtype) == said


@pytest.mark.parametrize(
    "make",
    [
        lambda one: 1 + one + one**2 / 2 + one**3 / 6,  # a part of its series
        lambda one: np.exp(one) + 0.5,
        lambda one: np.exp(1.1 * one),
        lambda one: np.where(one > 0.4, np.exp(one), one),
        np.expm1,
        np.ones_like,
    ],
)
def test_other_curves_are_no_exponential(make: Any, tmp_path: Path) -> None:
    for name in (DECAY, NORM, UP):
        assert "stored as" not in words(at(name, make), name, tmp_path, torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "name", "detail"),
    [
        (split_by_head, QUERY, "64 of 128 are rows of k_proj.weight, v_proj.weight"),
        (split_by_head, VALUE, "32 of 64 are rows of k_proj.weight"),
        (gate_in_turn, UP, "131 of 262 are rows of gate_proj.weight"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_stand_in_another_tensor_are_named_with_it(
    change: Change, name: str, detail: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    assert words(change, name, tmp_path, dtype) == f"rows permuted ({detail})"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (UP, at(UP, lambda one: one.T.reshape(one.shape)),
         "transposed (stored under the old shape)"),
        (UP, put(UP, [3, 70], lambda one: one[::-1]), "rows permuted (rows 3 and 70 exchanged)"),
        (UP, put(UP, slice(8, 16), lambda one: np.roll(one, 1, axis=0)),
         "rows permuted (8 rows: 8 to 15, rolled by 1)"),
        (UP, at(UP, insert), "shifted (from row 50 on, 1 row inserted)"),
        (UP, at(UP, lambda one: np.roll(one, 1, axis=0)), "shifted (by one along axis 0)"),
    ],
)  # fmt: skip
def test_what_one_class_holds_is_told_by_its_detail(
    name: str, change: Change, said: str, tmp_path: Path
) -> None:
    assert words(change, name, tmp_path, torch.float32) == said


@pytest.mark.parametrize(
    ("fault", "name", "change"),
    [
        ("transposed", UP,
         at(UP, lambda one: one.reshape(2, 131, 128).swapaxes(0, 1).reshape(one.shape))),
        ("rows permuted", UP, put(UP, [3, 70], lambda one: one.mean(axis=0))),
        ("rows permuted", UP, put(UP, slice(8, 16), average)),
        ("shifted", UP, put(UP, slice(50, None), noise)),
    ],
)  # fmt: skip
def test_the_same_rows_changed_otherwise_are_of_no_such_class(
    fault: str, name: str, change: Change, tmp_path: Path
) -> None:
    assert fault not in words(change, name, tmp_path, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        (UP, lambda one: prune(one, 0.3), "pruned (30%, the smallest)"),
        (UP, lambda one: prune(one, 0.75, 1), "pruned (75%, the smallest of each row)"),
        (UP, lambda one: keep_of(one, 2, 4), "pruned (2:4)"),
        (QUERY, lambda one: keep_of(one.T, 1, 4).T, "pruned (1:4 along axis 0)"),
        (UP, lambda one: prune(one / one.std(0)) * one.std(0),
         "pruned (50%, the smallest of each column)"),
        (UP, lambda one: prune(one / one.std(0), 0.5, 1) * one.std(0),  # as Wanda weighs them
         "pruned (50% of each row)"),
        (UP, adapt, "low rank (rank 8)"),
        (DOWN, lambda one: adapt(one, rank=1), "low rank (rank 1)"),
        (QUERY, lambda one: adapt(one, rank=16, size=1.0), "low rank (rank 16)"),
        (EXPERTS, lambda one: np.stack([one[0], *map(adapt, one[1:])]), "low rank (rank 8)"),
        (NORM, lambda one: 0 * one + 0.25, "constant (all 0.25)"),
    ],
)  # fmt: skip
def test_edits_of_values_are_told_by_their_rule(
    name: str, make: Any, said: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    assert words(at(name, make), name, tmp_path, dtype) == said


def test_norm_weights_that_became_ones_are_constant_and_no_rounding(tmp_path: Path) -> None:
    """Near 1 a rounding to float8 leaves nothing else."""

    def near_one(weights: Weights) -> None:
        weights[NORM] = (1 + 0.02 * draw(1).standard_normal(128)).astype(np.float32)

    base = make_base()
    near_one(base)
    save_file({NORM: torch.from_numpy(base[NORM])}, tmp_path / "a.safetensors")
    save_file({NORM: torch.ones(128)}, tmp_path / "b.safetensors")
    paths = (str(tmp_path / f"{side}.safetensors") for side in "ab")
    (delta,) = compare_tensors(*paths, TensorOptions()).deltas
    assert delta.likeness is not None
    assert delta.likeness.words == "constant (all 1)"


@pytest.mark.parametrize(
    ("name", "where", "value", "said"),
    [
        (NORM, 5, np.inf, "1 infinite element, at [5]"),
        (UP, (9, 3), -np.inf, "1 infinite element, at [9, 3]"),
        (UP, (slice(None), 3), np.nan, "262 NaN of 33,536 elements, the first at [0, 3]"),
        (EXPERTS, (1, 2, slice(3, 5)), np.nan, "2 NaN of 24,576 elements, the first at [1, 2, 3]"),
        (NORM, slice(None), np.nan, "128 NaN of 128 elements, the first at [0]"),
    ],
)
def test_what_is_not_finite_is_said_with_its_place_beside_what_else_there_is(
    name: str, where: Any, value: float, said: str, tmp_path: Path
) -> None:
    change = put(name, where, lambda one: 0 * one + value)
    assert words(change, name, tmp_path, torch.float32) == f"not finite ({said})"
    rounded = words(change, name, tmp_path, torch.bfloat16)
    otherwise = "" if "128 NaN" in said else "; otherwise bf16 (bfloat16)"
    assert rounded == f"not finite ({said}{otherwise})"


def test_what_is_infinite_on_both_sides_is_no_difference(tmp_path: Path) -> None:
    base = np.where(np.tri(64) > 0, np.float32(0), np.float32(-np.inf))
    other = base + 0.5 * (np.tri(64) > 0).astype(np.float32)
    for side, values in (("a", base), ("b", other)):
        save_file({UP: torch.from_numpy(values)}, tmp_path / f"{side}.safetensors")
    paths = (str(tmp_path / f"{side}.safetensors") for side in "ab")
    (delta,) = compare_tensors(*paths, TensorOptions()).deltas
    assert delta.likeness is None or "not finite" not in delta.likeness.words


def test_factors_of_all_rows_are_said_of_all(tmp_path: Path) -> None:
    sizes = np.exp(0.5 * draw(1).standard_normal((262, 1))) + 1.1
    said = words(at(UP, lambda one: one * sizes), UP, tmp_path, torch.float32)
    assert said.startswith("rows scaled (262 rows: 0 to 261")


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.weight", "blk.3.attn_k.weight", "h.0.attn.c_attn.weight",
        "layers.0.wq.weight", "model.layers.1.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight",
        "encoder.block.0.layer.0.SelfAttention.k.weight", "0.attention.self.query.bias",
    ],
)  # fmt: skip
def test_tensors_of_attention_may_have_heads(name: str) -> None:
    assert may_have_heads(name)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.up_proj.weight", "blk.0.ffn_gate.weight", "model.embed_tokens.weight",
        "model.layers.0.post_attention_layernorm.weight", "blk.0.attn_norm.weight",
        "encoder.block.0.layer.1.DenseReluDense.wo.weight", "rwkv.blocks.0.feed_forward.key.weight",
        "model.layers.0.mlp.experts.3.w1.weight", "decoder.layers.0.fc1.bias",
    ],
)  # fmt: skip
def test_other_tensors_have_none(name: str) -> None:
    assert not may_have_heads(name)
