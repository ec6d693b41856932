"""What is read off rows of log-probabilities is what torch, and so lm-eval, reads off them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evalguard.models.hf.batch_scoring import pick_target_logprobs, split_by_piece
from evalguard.models.hf.batches import pad_batch
from evalguard.models.scored_tokens import InputTokens

LEVELS = st.sampled_from([-3.0, -2.0, -1.0, -0.0, 0.0, float("-inf"), float("nan")])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(rows=st.lists(st.tuples(st.lists(LEVELS, min_size=7, max_size=7), st.integers(0, 6))))
def test_the_most_probable_token_is_the_first_of_equals(
    rows: list[tuple[list[float], int]], dtype: torch.dtype
) -> None:
    values = torch.tensor([row for row, _ in rows], dtype=dtype).reshape(-1, 7)
    targets = torch.tensor([target for _, target in rows], dtype=torch.long)
    told, greedy = pick_target_logprobs(values, targets)
    assert torch.equal(greedy, values.argmax(dim=-1) == targets)
    expected = values[torch.arange(len(rows)), targets]
    torch.testing.assert_close(told, expected, rtol=0.0, atol=0.0, equal_nan=True)


def test_a_piece_is_greedy_if_all_of_its_tokens_are() -> None:
    pieces = [InputTokens(ids=(1, 2, 3, 4), n_scored=n) for n in (1, 2, 3)]
    told = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0, -6.0])
    greedy = torch.tensor([True, True, False, True, True, True])
    found = split_by_piece(pad_batch(pieces).reads, told, greedy)
    assert [one.fed for one in found] == pieces
    assert [one.is_greedy for one in found] == [True, False, True]
    for one, own in zip(found, ([-1.0], [-2.0, -3.0], [-4.0, -5.0, -6.0]), strict=True):
        np.testing.assert_array_equal(one.logprobs, own)
