"""Differences of two tensors are those of torch.testing.assert_close, and need no whole tensor."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evalguard.tensors.pair_sums import PairSums, common_dtype
from evalguard.tensors.tolerances import TOLERANCES, find_tolerance

_NUMBERS = re.compile(
    r"Mismatched elements: (?P<count>\d+) / (?P<all>\d+)(?:.|\n)*"
    r"Greatest absolute difference: (?P<abs>\S+) at index \((?P<absindex>[\d, ]*)\)(?:.|\n)*"
    r"Greatest relative difference: (?P<rel>\S+) at index \((?P<relindex>[\d, ]*)\)"
)


def sum_blocks(
    base: np.ndarray, candidate: np.ndarray, *, rtol: float, atol: float, block: int = 7
) -> PairSums:
    dtype = common_dtype(base.dtype, candidate.dtype)
    flat = [one.reshape(-1).astype(dtype) for one in (base, candidate)]
    sums = PairSums(rtol=rtol, atol=atol)
    for at in range(0, flat[0].size, block):
        part = PairSums(rtol=rtol, atol=atol)
        part.add(flat[0][at : at + block], flat[1][at : at + block], at)
        sums.merge(part)
    return sums


def message_of(base: torch.Tensor, candidate: torch.Tensor, **tolerance: float) -> re.Match[str]:
    with pytest.raises(AssertionError) as caught:
        torch.testing.assert_close(candidate, base, **tolerance)
    found = _NUMBERS.search(str(caught.value))
    assert found, caught.value
    return found


def index_of(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one.strip())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("seed", range(5))
def test_the_figures_are_those_of_assert_close(dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    base = torch.randn(13, 5, 3).to(dtype)
    candidate = (base + torch.randn(13, 5, 3).to(dtype) * 2e-3).to(dtype)
    candidate[2, 1] = base[2, 1]
    base[3, 0, 0] = 0
    allowed = find_tolerance([str(dtype).removeprefix("torch.")])
    message = message_of(base, candidate)
    sums = sum_blocks(base.numpy(), candidate.numpy(), rtol=allowed.rtol, atol=allowed.atol)
    assert sums.mismatched == int(message["count"])
    assert sums.elements == int(message["all"])
    here = np.unravel_index(sums.mismatched_abs.index, base.shape)
    there = np.unravel_index(sums.mismatched_rel.index, base.shape)
    assert tuple(here) == index_of(message["absindex"])
    assert tuple(there) == index_of(message["relindex"])
    # torch computes float16's differences in float16
    digits = 1e-2 if dtype == torch.float16 else 1e-6
    assert sums.mismatched_abs.value == pytest.approx(float(message["abs"]), rel=digits)
    assert sums.mismatched_rel.value == pytest.approx(float(message["rel"]), rel=digits)


def test_whole_numbers_are_compared_as_assert_close_does() -> None:
    base = torch.arange(-8, 8, dtype=torch.int8)
    candidate = base.clone()
    candidate[[3, 9]] += 5
    message = message_of(base, candidate)
    allowed = find_tolerance(["int8"])
    sums = sum_blocks(base.numpy(), candidate.numpy(), rtol=allowed.rtol, atol=allowed.atol)
    assert (sums.mismatched, sums.elements) == (int(message["count"]), int(message["all"]))
    assert sums.mismatched_abs.value == float(message["abs"]) == 5
    assert (sums.mismatched_abs.index,) == index_of(message["absindex"])
    assert (sums.mismatched_rel.index,) == index_of(message["relindex"])


def test_a_difference_from_zero_is_infinite_relative_to_it() -> None:
    base, candidate = torch.zeros(4), torch.tensor([0.0, 0.0, 1e-3, 0.0])
    message = message_of(base, candidate)
    sums = sum_blocks(base.numpy(), candidate.numpy(), rtol=1.3e-6, atol=1e-5)
    assert sums.mismatched_rel.value == float(message["rel"]) == math.inf
    assert sums.relative_l2 == math.inf


def test_the_tolerances_of_dtypes_are_torchs() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        base = torch.ones(1, dtype=dtype)
        message = None
        try:
            torch.testing.assert_close(base * 2, base)
        except AssertionError as error:
            message = str(error)
        assert message is not None
        allowed = [float(one) for one in re.findall(r"\(up to (\S+) allowed\)", message)]
        row = find_tolerance([str(dtype).removeprefix("torch.")])
        assert allowed == pytest.approx([row.atol, row.rtol])
    mixed = find_tolerance(["float32", "bfloat16"])
    assert (mixed.rtol, mixed.atol) == (1.6e-2, 1e-5), "the larger one, as assert_close takes it"


def test_every_row_of_the_table_has_a_reason_and_its_own_place() -> None:
    assert all(row.reason for row in TOLERANCES)
    places = [(row.dtype, row.platform, row.operation) for row in TOLERANCES]
    assert len(set(places)) == len(places)


def test_a_platform_counts_with_its_operation_and_else_the_operation_does() -> None:
    rocm = find_tolerance(["float32"], platform="rocm", operation="matmul")
    # pytorch/ao #2460: 5.7e-4 where 1e-5 was allowed
    assert rocm.atol > 5.7e-4 > find_tolerance(["float32"]).atol
    anywhere = find_tolerance(["float32"], platform="ggml", operation="matmul")
    assert (anywhere.platform, anywhere.operation) == ("", "matmul")


FLOATS = st.floats(-1e3, 1e3, width=32)
PAIRS = st.integers(1, 40).flatmap(
    lambda size: st.tuples(
        arrays(np.float32, size, elements=FLOATS), arrays(np.float32, size, elements=FLOATS)
    )
)


@given(PAIRS, st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_blocks_of_any_size_give_what_the_whole_gives(
    pair: tuple[np.ndarray, np.ndarray], block: int
) -> None:
    base, candidate = pair
    pieces = sum_blocks(base, candidate, rtol=1e-2, atol=1e-3, block=block)
    difference = np.abs(candidate - base)
    wrong = difference > np.float32(1e-3) + np.float32(1e-2) * np.abs(base)
    assert pieces.mismatched == np.count_nonzero(wrong)
    assert pieces.unequal == np.count_nonzero(base != candidate)
    assert pieces.greatest_abs.value == difference.max()
    if difference.max() > 0:
        assert pieces.greatest_abs.index == difference.argmax()
    opposite = (base.astype(np.float64) * candidate) < 0
    assert pieces.sign_flips == np.count_nonzero(opposite)
    assert pieces.zero_on_one_side == np.count_nonzero((base == 0) != (candidate == 0))
    assert pieces.base.zeros == np.count_nonzero(base == 0)
    wide = [one.astype(np.float64) for one in pair]
    assert pieces.noise == pytest.approx(((wide[1] - wide[0]) ** 2).sum(), rel=1e-4, abs=1e-30)
    assert pieces.base.total == pytest.approx(wide[0].sum(), rel=1e-4, abs=1e-2)


def test_the_signal_to_noise_ratio_is_ten_times_the_logarithm() -> None:
    base = np.full(100, 10.0, dtype=np.float32)
    assert sum_blocks(base, base + 1, rtol=0, atol=0).snr == pytest.approx(20.0)
    assert sum_blocks(base, base, rtol=0, atol=0).snr is None
    assert sum_blocks(base, -base, rtol=0, atol=0).cosine == pytest.approx(-1.0)


def test_nan_is_always_mismatched_and_infinities_of_one_sign_never() -> None:
    base = np.array([math.nan, math.inf, math.inf, 1.0, -math.inf], dtype=np.float32)
    candidate = np.array([math.nan, math.inf, -math.inf, 1.0, 2.0], dtype=np.float32)
    sums = sum_blocks(base, candidate, rtol=1e-6, atol=1e-6)
    close = torch.isclose(torch.from_numpy(candidate), torch.from_numpy(base), 1e-6, 1e-6)
    assert sums.mismatched == int((~close).sum()) == 3
    assert (sums.base.nans, sums.base.infs, sums.candidate.infs) == (1, 3, 2)
    assert sums.mismatched_abs.value == math.inf
    assert sums.mismatched_abs.index == 2
    assert sums.noise == 0.0, "of what is finite on both sides"


def test_identical_bits_need_one_side_only() -> None:
    values = np.array([0.0, 1.0, -2.0], dtype=np.float32)
    quick, slow = PairSums(rtol=0, atol=0), PairSums(rtol=0, atol=0)
    quick.add_identical(values)
    slow.add(values, values, 0)
    assert quick == slow
    broken = PairSums(rtol=0, atol=0)
    broken.add_identical(np.array([math.nan, 1.0], dtype=np.float32))
    assert (broken.mismatched, broken.candidate.nans) == (1, 1)


def test_differences_too_large_for_float32_are_infinite_and_not_lost() -> None:
    base = np.array([3e38, 1.0], dtype=np.float32)
    sums = sum_blocks(base, -base, rtol=0, atol=0)
    assert sums.greatest_abs.value == math.inf
    assert (sums.mismatched, sums.sign_flips) == (2, 2)
    assert not math.isnan(sums.relative_l2)
