"""A rounding is recognised by its own error, and told from faults of layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from evalguard.core.grid import explain_by_grid, find_grid, find_grid_fault, measure_steps
from evalguard.core.precision_vote import (
    list_roundings,
    round_float8,
    round_integer,
    round_mantissa,
    vote_precision,
)


def make_weights(seed: int, *, tails: bool = False) -> np.ndarray:
    generator = np.random.default_rng(seed)
    drawn = generator.standard_t(4, (32, 512)) if tails else generator.normal(size=(32, 512))
    return drawn.astype(np.float32) * np.float32(0.02)


def test_rounding_to_the_mantissas_of_torch_is_torchs() -> None:
    values = make_weights(0)
    tensor = torch.from_numpy(values)
    expected = tensor.to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(round_mantissa(values, 7), expected)
    eight = tensor.to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(round_float8(values), eight)
    five = tensor.to(torch.float8_e5m2).float().numpy()
    np.testing.assert_array_equal(round_float8(values, mantissa=2, largest=57344.0), five)


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("way", list(list_roundings(512)), ids=lambda way: way.detail)
def test_every_rounding_is_recognised_on_either_side(way: object, tails: bool) -> None:
    exact = make_weights(1, tails=tails)
    rounded = way.round_values(exact)  # type: ignore[attr-defined]
    vote = vote_precision(exact, rounded)
    assert vote is not None
    assert vote.family == way.family  # type: ignore[attr-defined]
    assert vote.correlation > 0.99
    assert vote.rounded == "candidate"
    other = vote_precision(rounded, exact)
    assert other is not None
    assert (other.family, other.rounded) == (vote.family, "base")


@pytest.mark.parametrize("bits", [8, 4])
def test_a_dequantised_weight_in_bfloat16_is_still_recognised(bits: int) -> None:
    exact = make_weights(2)
    stored = round_mantissa(round_integer(exact, bits, group=32), 7)
    vote = vote_precision(exact, stored)
    assert vote is not None
    assert (vote.family, vote.detail) == (f"int{bits}", "groups of 32")


def test_an_error_of_a_roundings_size_is_no_rounding() -> None:
    exact = make_weights(3)
    generator = np.random.default_rng(0)
    step = np.abs(exact).reshape(-1, 32).max(axis=1, keepdims=True) / 7
    noise = generator.uniform(-0.5, 0.5, (exact.size // 32, 32)) * step
    candidate = exact + noise.reshape(exact.shape).astype(np.float32)
    assert vote_precision(exact, candidate) is None
    assert find_grid(candidate) is None


@pytest.mark.parametrize("group", [-1, 0, 128, 64, 32])
@pytest.mark.parametrize("bits", [8, 4, 3])
def test_another_quantiser_is_named_by_the_grid_that_its_values_lie_on(
    bits: int, group: int
) -> None:
    """GPTQ moves errors into later columns: they are no longer those of rounding to nearest."""
    exact = make_weights(3)
    width = {0: exact.shape[1], -1: exact.size}.get(group, group)
    blocks = exact.reshape(-1, width)
    top = 2 ** (bits - 1) - 1
    scale = np.abs(blocks).max(axis=1, keepdims=True) / top
    moved = np.random.default_rng(0).uniform(-1, 1, blocks.shape)
    codes = np.clip(np.rint(blocks / scale + moved), -top, top)
    candidate = (codes * scale).reshape(exact.shape).astype(np.float32)
    assert vote_precision(exact, candidate) is None or bits == 3
    grid = find_grid(candidate)
    assert grid is not None
    sharing = {0: "per row", -1: "per tensor"}.get(group, f"groups of {group}")
    assert (grid.name, grid.sharing) == (f"int{bits}", sharing)
    explained = explain_by_grid(exact, candidate)
    assert explained is not None
    assert (explained.name, explained.nearest) == (grid.name, False)


def quantise(
    values: np.ndarray, bits: int, group: int, *, off: float = 0, how: str = "to nearest"
) -> np.ndarray:
    """Affine integers with a zero point for each group, which is ``off`` by some steps."""
    groups = values.reshape(-1, group)
    high, low = (np.maximum(groups.max(1), 0), np.minimum(groups.min(1), 0))
    kept = 0.6 if how == "clipped" else 1.0
    scale = kept * (high - low)[:, None] / (2**bits - 1)
    zero = np.rint(-kept * low[:, None] / scale)
    levels = groups / scale
    if how == "moved":
        levels = levels + np.random.default_rng(0).normal(0, 0.5, levels.shape)
    codes = np.clip((np.floor if how == "cut off" else np.rint)(levels) + zero, 0, 2**bits - 1)
    made = ((codes - zero - off) * scale).reshape(values.shape).astype(np.float32)
    # of eight bits bfloat16 would keep seven
    return round_mantissa(made, 7) if how == "in bfloat16" and bits < 8 else made


@pytest.mark.parametrize("how", ["to nearest", "clipped", "moved", "in bfloat16"])
@pytest.mark.parametrize(("bits", "group", "off"), [(3, 32, 1), (4, 128, -1), (8, 64, 2)])
def test_whole_steps_beside_the_grid_are_wrong_zero_points_and_no_rounding(
    bits: int, group: int, off: int, how: str
) -> None:
    exact = make_weights(8)
    candidate = quantise(exact, bits, group, off=off, how=how)
    shifted = find_grid_fault(exact, candidate)
    assert explain_by_grid(exact, candidate) is None
    assert shifted is not None
    assert shifted.left < np.linalg.norm(candidate - exact) / np.linalg.norm(exact)
    if abs(off) == 1:
        words = f"values shifted by one step {'down' if off > 0 else 'up'}, otherwise {bits} bits"
        assert shifted.detail.startswith(words)


@pytest.mark.parametrize("how", ["to nearest", "clipped", "moved"])
@pytest.mark.parametrize(("bits", "group", "axis"), [(8, 128, 0), (4, 32, 0), (4, 64, 1)])
@pytest.mark.parametrize("step", [1, -1])
def test_scales_of_neighbours_are_no_rounding(
    bits: int, group: int, axis: int, step: int, how: str
) -> None:
    exact = make_weights(8)
    healthy = quantise(exact, bits, group, how=how)
    sizes = np.ptp(exact.reshape(len(exact), -1, group), axis=2, keepdims=True)
    rolled = healthy.reshape(len(exact), -1, group) * np.roll(sizes, step, axis) / sizes
    candidate = rolled.reshape(exact.shape).astype(np.float32)
    found = find_grid_fault(exact, candidate)
    assert explain_by_grid(exact, candidate) is None
    assert found is not None
    assert found.fault == "scales rolled"


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 128), (8, 64)])
@pytest.mark.parametrize(("axis", "step"), [(0, 1), (0, -1), (1, 1)])
def test_zero_points_of_neighbours_are_wrong_ones_by_other_steps_in_each_group(
    bits: int, group: int, axis: int, step: int
) -> None:
    exact = make_weights(8)
    groups = exact.reshape(len(exact), -1, group)
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    scale = (high - low) / (2**bits - 1)
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint(groups / scale) + zero, 0, 2**bits - 1)
    candidate = ((codes - np.roll(zero, step, axis)) * scale).reshape(exact.shape)
    found = find_grid_fault(exact, candidate.astype(np.float32))
    assert explain_by_grid(exact, candidate.astype(np.float32)) is None
    assert found is not None
    assert found.fault == "zero points off"
    assert found.detail.startswith("values shifted by ")
    assert found.detail.endswith(f"steps, otherwise {bits} bits (groups of {group})")


@pytest.mark.parametrize("how", ["to nearest", "clipped", "moved", "cut off"])
@pytest.mark.parametrize(
    ("kind", "bits", "group"),
    [("normal", 3, 32), ("of one sign", 4, 128), ("heavy-tailed", 4, 32), ("sparse", 8, 64)],
)
def test_no_quantiser_with_its_own_zero_points_is_shifted(
    bits: int, group: int, kind: str, how: str
) -> None:
    """Nor one that cuts its numbers off, whose errors are half a step in the middle."""
    exact = make_weights(9, tails=kind == "heavy-tailed")
    if kind == "of one sign":
        exact = np.abs(exact)
    if kind == "sparse":
        exact = np.where(np.arange(exact.size).reshape(exact.shape) % 3, 0, exact)
    assert find_grid_fault(exact, quantise(exact, bits, group, how=how)) is None


def test_other_faults_of_a_quantised_matrix_are_no_shift() -> None:
    exact = np.abs(make_weights(10))
    healthy = quantise(exact, 4, 64)
    others = {
        "scaled": 1.1 * healthy,
        "in another order": healthy[::-1],
        "of one row": np.where(np.arange(len(exact))[:, None] == 3, healthy + 0.01, healthy),
        "of another": quantise(np.abs(make_weights(11)), 4, 64),
    }
    assert [k for k, one in others.items() if find_grid_fault(exact, one) is not None] == []


def test_rounding_errors_of_float32_are_named_as_such() -> None:
    exact = make_weights(4)
    vote = vote_precision(exact, np.nextafter(exact, np.float32(1)))
    assert vote is not None
    assert vote.family == "float32"


def test_what_is_no_rounding_is_not_called_one() -> None:
    exact, other = make_weights(5), make_weights(6)
    assert vote_precision(exact, other) is None
    assert vote_precision(exact, exact) is None
    assert vote_precision(np.zeros_like(exact), exact) is None
    assert vote_precision(exact, -exact) is None


def test_a_vector_and_a_single_number_can_be_judged() -> None:
    vector = make_weights(7)[0]
    vote = vote_precision(vector, round_mantissa(vector, 7))
    assert vote is not None
    assert vote.family == "bf16"
    assert vote_precision(np.float32([1.0]), np.float32([1.0])) is None


def test_a_vote_over_sixty_healthy_weights_is_right_in_every_one() -> None:
    """bfloat16, float16 and int8 of normal, heavy-tailed and already rounded weights."""
    wrong = []
    for seed in range(60):
        exact = make_weights(seed, tails=seed % 2 == 0)[:8, :256]
        bits = (7, 10)[seed % 2]
        made = {
            "bf16": round_mantissa(exact, 7),
            "fp16/TF32": round_mantissa(exact, 10),
            "int8": round_integer(round_mantissa(exact, bits), 8, group=(0, 32, 128)[seed % 3]),
        }
        for family, rounded in made.items():
            vote, grid = vote_precision(exact, rounded), explain_by_grid(exact, rounded)
            named = vote.family if vote is not None else grid and grid.name
            if named != family:
                wrong.append((seed, family, named))
    assert not wrong


def rounds_in_columns(values: np.ndarray) -> np.ndarray:
    return round_integer(values.T.copy(), 4).T.copy()


def rounds_to_ternary(values: np.ndarray) -> np.ndarray:
    scale = np.abs(values).mean()
    return np.clip(np.rint(values / scale), -1, 1) * scale


def takes_nearest_of(levels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A codebook of any levels, scaled by the largest of 128."""

    def take(values: np.ndarray) -> np.ndarray:
        groups = values.reshape(-1, 128)
        scale = np.abs(groups).max(axis=1, keepdims=True)
        places = np.abs(groups[..., None] / scale[..., None] - levels).argmin(axis=2)
        return (levels[places] * scale).reshape(values.shape).astype(np.float32)

    return take


UNEVEN = np.array([-1.0, -0.61, -0.33, -0.12, 0.07, 0.29, 0.54, 0.97])
GRIDS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "columns": (rounds_in_columns, "4 bits (per column)"),
    "groups of 16": (partial(round_integer, bits=3, group=16), "3 bits (groups of 16)"),
    "a codebook": (takes_nearest_of(UNEVEN), "3 bits (groups of 128)"),
    "signs": (lambda w: np.sign(w) * np.abs(w).mean(axis=1, keepdims=True), "1 bit (per row)"),
    "ternary, as BitNet": (rounds_to_ternary, "2 bits (per tensor)"),
    "cast after it": (lambda w: round_mantissa(round_integer(w, 4), 7), "4 bits (per row)"),
}


@pytest.mark.parametrize("kind", GRIDS)
def test_grids_of_every_kind_of_quantiser_are_found(kind: str) -> None:
    quantise, words = GRIDS[kind]
    exact = make_weights(11)
    candidate = quantise(exact).astype(np.float32)
    for grid in (find_grid(candidate), explain_by_grid(exact, candidate)):
        assert str(grid) == words


NO_GRIDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda w: w,
    "in bfloat16": lambda w: round_mantissa(w, 7),
    "nine of ten elements pruned": lambda w: np.where(np.abs(w) > 0.033, w, 0),
    "two of four elements pruned": lambda w: w * (np.arange(w.shape[1]) % 4 < 2),
    "half of the rows zero": lambda w: w * (np.arange(len(w)) % 2)[:, None],
    "one row everywhere": lambda w: np.repeat(w[:1], len(w), axis=0),
    "products of two vectors": lambda w: w[:, :1] @ w[:1],
}


@pytest.mark.parametrize("kind", NO_GRIDS)
def test_numbers_that_repeat_or_are_zero_lie_on_no_grid(kind: str) -> None:
    assert find_grid(NO_GRIDS[kind](make_weights(12)).astype(np.float32)) is None


@pytest.mark.parametrize("group", [48, 80, 96, 112])
@pytest.mark.parametrize("bits", [4, 8])
def test_groups_of_any_multiple_of_16_are_found_whole_and_excuse_their_elements(
    bits: int, group: int
) -> None:
    exact = make_weights(15)[:, : 2 * group].copy()
    candidate = round_integer(exact, bits, group=group)
    grid = explain_by_grid(exact, candidate)
    assert grid is not None
    assert grid.sharing == f"groups of {group}"
    steps = measure_steps(grid, exact, candidate)
    assert np.all(np.abs(candidate - exact) <= 0.51 * steps)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_a_grid_explains_no_difference_that_is_not_a_step_of_it(bits: int) -> None:
    """A quantised matrix in another order, of another sign, or of another matrix."""
    exact, other = make_weights(13), make_weights(14)
    candidate = round_integer(exact, bits)
    assert explain_by_grid(exact, candidate) is not None
    for moved in (candidate[:, ::-1], -candidate, np.roll(candidate, 1, axis=0)):
        assert explain_by_grid(exact, np.ascontiguousarray(moved)) is None
    assert explain_by_grid(other, candidate) is None


@pytest.mark.parametrize("change", [lambda w: w * 1.01, lambda w: np.roll(w, 1, axis=1)])
def test_the_grid_of_the_base_explains_nothing(change: Callable[[np.ndarray], np.ndarray]) -> None:
    base = round_integer(make_weights(15), 4)
    assert explain_by_grid(base, change(base).astype(np.float32)) is None
