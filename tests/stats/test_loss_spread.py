"""How a loss of answers is spread over documents, with honest ties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.stats.drift import Contributions, TaskContributions
from evalguard.stats.influence import LossSpread, spread_of_loss


def spread(losses: Sequence[float]) -> LossSpread | None:
    part = TaskContributions(
        task="t",
        doc_ids=np.arange(len(losses)),
        values=np.array(losses, dtype=np.float64),
        shares=np.full(len(losses), 1.0 / len(losses)),
    )
    return spread_of_loss(Contributions(task="t", filter="", metric="m", unit=0.0, parts=(part,)))


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        (
            [1.0] * 12 + [-1.0] * 3 + [0.0] * 40,
            "12 documents got worse, 3 better",
        ),
        ([0.0, 1.0, -1.0], "1 document got worse, 1 better"),
        (
            [0.01] * 30 + [0.9, 0.8],
            "32 documents got worse, 0 better; half of the loss is in the worst 2 (documents 30, "
            "31)",
        ),
        (
            [4.0, *[1.0] * 20],
            "21 documents got worse, 0 better; half of the loss is in the worst 9",
        ),
        (
            [float(n) for n in range(100)],
            "99 documents got worse, 0 better; half of the loss is in the worst 30",
        ),
    ],
)
def test_it_says_how_many_documents_carry_half_of_it(losses: list[float], text: str) -> None:
    found = spread(losses)
    assert found is not None
    assert found.text == text


def test_where_none_is_lost_there_is_nothing_to_say() -> None:
    assert spread([0.0, -1.0, 0.0]) is None


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60))
def test_half_of_the_loss_is_carried_by_the_fewest(losses: list[int]) -> None:
    found = spread([float(one) for one in losses])
    lost = sorted((one for one in losses if one > 0), reverse=True)
    assert (found is None) == (not lost)
    if found is None:
        return
    assert 2 * sum(lost[: found.half]) >= sum(lost) > 2 * sum(lost[: found.half - 1])
    assert found.tied == lost.count(lost[found.half - 1])
    assert found.free == lost[: found.half].count(lost[found.half - 1])
