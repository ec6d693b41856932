"""Scales that moved to other groups: how many of them say so."""

from __future__ import annotations

import numpy as np

from evalguard.core.moved_codes import find_moved_scales


def test_an_exchanged_pair_of_few_scales_is_no_move_of_all() -> None:
    """Two scales in a row: where those of most rows are alike, one exchange moves them all."""
    height = 64
    sizes = np.log(np.array([[0.5, 0.5001], [0.6, 0.6001], [0.7, 0.5]]))
    exchanged = np.zeros_like(sizes)
    exchanged[-1] = sizes[-1, ::-1] - sizes[-1]
    sizes, exchanged = (np.repeat(one, height, axis=0) for one in (sizes, exchanged))
    assert find_moved_scales(exchanged, sizes, rows=height) is None


def test_each_scale_of_a_block_counts_once_and_its_rows_do_not() -> None:
    rng = np.random.default_rng(0)
    sizes = np.repeat(rng.normal(size=(20, 2)), 32, axis=0)
    moved = np.roll(sizes, 32, axis=0) - sizes
    assert find_moved_scales(moved, sizes, rows=32) == (0, 32)
    few = slice(0, 7 * 32)
    assert find_moved_scales(np.roll(sizes[few], 32, 0) - sizes[few], sizes[few], rows=32) is None
