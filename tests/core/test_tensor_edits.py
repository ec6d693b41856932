"""Edits of values are named where they explain every element, and by chance never."""

from __future__ import annotations

import numpy as np
import pytest

from evalguard.core.precision_vote import round_float16, round_integer, round_mantissa
from evalguard.core.tensor_edits import find_edit, find_low_rank, find_pruned

Array = np.ndarray


def make_weights(rows: int, columns: int, seed: int) -> Array:
    """Rows and columns of many sizes, and a few large elements."""
    drawn = np.random.default_rng(seed)
    made = drawn.standard_normal((rows, columns)) * np.exp(0.5 * drawn.standard_normal((rows, 1)))
    made *= 0.02 * np.exp(0.3 * drawn.standard_normal(columns))
    made.flat[drawn.integers(made.size, size=8)] *= 20
    return made.astype(np.float32)


def make_update(like: Array, rank: int, size: float, seed: int) -> Array:
    """An update of a share of the weights' size, its singular values as far apart as a trained
    adapter's."""
    drawn = np.random.default_rng(100 + seed)
    parts = np.exp(-1.5 * np.arange(rank) / rank)
    update = (drawn.standard_normal((len(like), rank)) * parts) @ drawn.standard_normal(
        (rank, like.shape[1])
    )
    return (size * like.std() * update / update.std()).astype(np.float32)


def round_bfloat16(values: Array) -> Array:
    return round_mantissa(values, 7)


@pytest.mark.parametrize("store", [np.array, round_bfloat16, round_float16])
@pytest.mark.parametrize("size", [0.1, 1.0])
@pytest.mark.parametrize("rank", [1, 4, 16])
def test_a_merged_adapter_is_an_update_of_its_rank(rank: int, size: float, store: object) -> None:
    """W + BA (Hu et al. 2021, LoRA), rounded to what the merge is stored in."""
    assert callable(store)
    for seed, shape in enumerate([(96, 128), (160, 80)]):
        base = store(make_weights(*shape, seed))
        found = find_low_rank(base, store(base + make_update(base, rank, size, seed)))
        assert found is not None
        assert (found.fault, found.detail, found.by) == ("low rank", f"rank {rank}", rank)


def test_a_rank_that_roundings_hide_a_part_of_is_a_lower_bound() -> None:
    """Of an adapter far below a step of bfloat16, what is seen is what is said."""
    told: dict[float, str] = {}
    for seed in range(8):
        base = make_weights(96, 128, seed)
        for size in (0.01, 0.02, 0.03):
            found = find_low_rank(base, round_bfloat16(base + make_update(base, 16, size, seed)))
            if found is not None:
                assert found.by is not None
                told[found.by] = found.detail
    assert 16 in told
    assert min(told) < 16
    assert all(detail == f"rank {int(rank)} or more" for rank, detail in told.items())


def test_an_adapter_beneath_a_quantisation_is_found_within_what_its_format_allows() -> None:
    base = make_weights(96, 128, 1)
    candidate = round_integer(base + make_update(base, 4, 0.5, 1), 8, group=32)
    steps = np.abs(candidate).reshape(-1, 32).max(axis=1) / 127
    allowed = np.repeat(steps / 2, 32).reshape(base.shape).astype(np.float32)
    found = find_low_rank(base, candidate, allowed)
    assert found is not None
    assert found.detail == "rank 4"
    assert find_low_rank(base, candidate) is None, "nothing says that it is rounded"


def list_others(base: Array, seed: int) -> dict[str, Array]:
    """What is no edit, though some of it is nearly one."""
    drawn, rows = np.random.default_rng(seed), base.copy()
    rows[5:9] += base.std() * drawn.standard_normal((4, base.shape[1]))
    columns, exchanged, blocks, sparse = base.copy(), base.copy(), base.copy(), base.copy()
    columns[:, 3:8] *= 2
    exchanged[[3, 9]] = base[[9, 3]]
    blocks[5:9, :32] = 0
    sparse[drawn.random(base.shape) < 0.3] = 0
    zero_rows, zero_columns = base.copy(), base.copy()
    zero_rows[:16], zero_columns[:, ::2] = 0, 0
    u, _, v = np.linalg.svd(drawn.standard_normal(base.shape), full_matrices=False)
    tuned = (u / np.arange(1, len(v) + 1)) @ v
    return {
        "tuned": base + 0.2 * np.sqrt(len(v)) * base.std() * tuned,
        "noise": base + 0.05 * base.std() * drawn.standard_normal(base.shape),
        "an update and noise": base
        + make_update(base, 4, 0.1, seed)
        + 0.05 * base.std() * drawn.standard_normal(base.shape),
        "bf16": round_bfloat16(base),
        "int8": round_integer(base, 8),
        "int4": round_integer(base, 4, group=16),
        "three levels": np.sign(base) * (np.abs(base) > base.std() / 2) * base.std(),
        "some rows": rows,
        "one row": np.concatenate([base[:1] * 0.5, base[1:]]),
        "some columns": columns,
        "two rows exchanged": exchanged,
        "blocks of heads": base.reshape(-1, 16, base.shape[1])[::-1].reshape(base.shape),
        "all columns scaled": base * np.exp(0.1 * drawn.standard_normal(base.shape[1])),
        "a block zeroed": blocks,
        "elements zeroed by lot": sparse,
        "rows zeroed": zero_rows,
        "columns zeroed": zero_columns,
        "clipped": np.clip(base, -base.std(), base.std()),
        "shrunk": np.sign(base) * np.maximum(np.abs(base) - base.std() / 2, 0),
    }


def test_no_other_change_is_an_edit() -> None:
    named = []
    for seed in range(6):
        base = make_weights(64, 96, seed)
        for kind, candidate in list_others(base, seed).items():
            for stored in (candidate.astype(np.float32), round_bfloat16(candidate)):
                found = find_edit(base, stored)
                named += [] if found is None else [(seed, kind, found.fault, found.detail)]
    assert not named


def test_of_a_base_of_low_rank_itself_no_rank_tells_anything() -> None:
    drawn = np.random.default_rng(1)
    base = (drawn.standard_normal((64, 3)) @ drawn.standard_normal((3, 64))).astype(np.float32)
    assert find_low_rank(base, base * np.exp(drawn.standard_normal(64)).astype(np.float32)) is None


def test_what_a_cast_takes_to_zero_is_not_pruned() -> None:
    """A third of these is below float16's least number."""
    base = make_weights(64, 64, 1)
    base[:, ::3] *= np.float32(1e-7)
    assert np.count_nonzero(round_float16(base) == 0) > 0.2 * base.size
    assert find_pruned(base, round_float16(base)) is None
