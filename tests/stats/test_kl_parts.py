"""What each step of a chain adds to KL: exact, paired, and nothing where tokens differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.divergence import Divergence, DocumentDivergence
from evalguard.distributions.kl import Positions
from evalguard.several.kl_split import kl_parts


def positions(documents: Sequence[Sequence[float]], first_token: int = 0) -> Positions:
    """Of documents with a KL at every token."""

    def divergence(kl: Sequence[float]) -> Divergence:
        n = len(kl)
        return Divergence(
            token_ids=np.arange(n, dtype=np.int64) + first_token,
            base_logprobs=np.zeros(n),
            candidate_logprobs=np.zeros(n),
            kl=np.asarray(kl, dtype=np.float64),
            base_top=np.zeros(n, dtype=np.int64),
            candidate_top=np.zeros(n, dtype=np.int64),
            shared_top=np.zeros(n, dtype=np.int64),
            top_k=10,
        )

    found = [
        DocumentDivergence(doc_id=number, requests=(divergence(kl),))
        for number, kl in enumerate(documents)
    ]
    return Positions.of(found, confidence=0.95)


def test_parts_and_shares_of_two_steps_by_hand() -> None:
    engine = positions([[0.1, 0.3], [0.2]])
    whole = positions([[0.4, 0.6], [0.5]])
    found = kl_parts([[engine], [whole]], confidence=0.95)
    assert found is not None
    (first, first_share), (second, second_share) = found
    assert first.value == pytest.approx(0.6 / 3)
    assert second.value == pytest.approx(0.9 / 3)
    assert first_share.value == pytest.approx(0.6 / 1.5)
    assert second_share.value == pytest.approx(0.9 / 1.5)
    # the paired error of a ratio of sums over two documents (Cochran 1977, 6.3), by hand
    residuals = np.array([0.4 - 0.4 * 1.0, 0.2 - 0.4 * 0.5])
    assert first_share.stderr == pytest.approx(np.sqrt(2 * np.sum(residuals**2)) / 1.5, abs=1e-12)
    assert first_share.interval is not None
    assert second_share.interval is not None
    # what the one leaves is the other's, with its interval
    assert first_share.interval[0] == pytest.approx(1 - second_share.interval[1])


kls = st.lists(st.lists(st.floats(1e-3, 2.0), min_size=3, max_size=3), min_size=2, max_size=8)


@given(kls, st.floats(0.0, 3.0), st.floats(0.1, 3.0))
def test_shares_add_up_to_1_and_parts_to_the_whole(
    documents: list[list[float]], one: float, two: float
) -> None:
    models = [
        [positions([[factor * kl for kl in each] for each in documents])]
        for factor in (one, two, 1.0)
    ]
    found = kl_parts(models, confidence=0.95)
    assert found is not None
    assert sum(share.value or 0.0 for _, share in found) == pytest.approx(1.0)
    mean = np.mean([kl for each in documents for kl in each])
    assert sum(kl.value or 0.0 for kl, _ in found) == pytest.approx(mean)


def test_a_step_that_takes_back_has_a_part_below_0() -> None:
    found = kl_parts([[positions([[0.4], [0.6]])], [positions([[0.2], [0.3]])]], confidence=0.95)
    assert found is not None
    assert found[1][0].value == pytest.approx(-0.25)
    assert found[1][1].value == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (positions([[0.1], [0.2]]), positions([[0.1], [0.2], [0.3]])),
        (positions([[0.1], [0.2]]), positions([[0.1], [0.2, 0.3]])),
        (positions([[0.1], [0.2]]), positions([[0.1], [0.2]], first_token=7)),
        (positions([[0.1], [0.2]]), positions([[0.0], [0.0]])),
        (positions([[0.1], [0.2]]), positions([[0.1], [float("nan")]])),
        (positions([[0.1], [0.2]]), positions([[0.1], [float("inf")]])),
        (positions([[0.1]]), positions([[0.2]])),
    ],
    ids=["documents", "tokens", "token ids", "no KL", "NaN", "infinite", "one document"],
)
def test_what_cannot_be_paired_or_has_nothing_to_split_is_not_split(
    before: Positions, after: Positions
) -> None:
    assert kl_parts([[before], [after]], confidence=0.95) is None
