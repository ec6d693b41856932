"""A share of generated answers, as a search tolerates it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evalguard.bisect.scales import FigureScale, fewest_to_blame
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError

LEVEL = 0.025


def looping(n: int, *documents: int) -> ScoreTable:
    """A table of figure loops: 1 of these documents."""
    hashes = tuple(f"hash-{i}" for i in range(n))
    return ScoreTable(
        task="calls",
        filter="text",
        metric="loops",
        aggregation="mean",
        higher_is_better=False,
        doc_ids=np.arange(n),
        values=np.isin(np.arange(n), documents).astype(float),
        doc_hashes=hashes,
        prompt_hashes=hashes,
        target_hashes=hashes,
        figure=True,
    )


def scale(base: ScoreTable, candidate: ScoreTable, tolerated: float = 0.0) -> FigureScale:
    return FigureScale.of(base, candidate, tolerated=tolerated, level=LEVEL)


def test_five_documents_name_a_culprit_and_four_do_not() -> None:
    # McNemar's mid-p of m documents, all for the worse, is 1/2^(m + 1)
    assert fewest_to_blame(LEVEL) == 5
    assert fewest_to_blame(0.05) == 4


@pytest.mark.parametrize(
    ("loops", "tolerated", "documents"),
    [(1, 0.0, 0.5), (5, 0.0, 2.5), (20, 0.0, 4.5), (20, 0.2, 12.0)],
)
def test_a_limit_of_0_lets_a_search_tolerate_what_names_nobody(
    loops: int, tolerated: float, documents: float
) -> None:
    found = scale(looping(60), looping(60, *range(loops)), tolerated)
    assert found.yardstick * 60 == pytest.approx(documents)
    assert found.tolerated == tolerated


def test_scores_are_higher_where_fewer_documents_loop_and_a_drift_is_their_share() -> None:
    base, candidate = looping(10, 0), looping(10, 0, 1, 2)
    found = scale(base, candidate)
    drift = np.mean(found.scores(found.values(base)) - found.scores(found.values(candidate)))
    assert found.sigma(float(drift) / found.yardstick) == pytest.approx(0.2)


def test_documents_that_a_side_does_not_know_are_left_out() -> None:
    values = looping(10).values.copy()
    values[3] = np.nan
    found = scale(looping(10), replace(looping(10), values=values))
    assert found.doc_ids == (0, 1, 2, 4, 5, 6, 7, 8, 9)
    with pytest.raises(UsageError, match="calls loops is known of no document of both sides"):
        scale(looping(10), replace(looping(10), values=np.full(10, np.nan)))
