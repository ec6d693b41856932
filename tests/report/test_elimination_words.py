"""What a report says of culprits that hold all of the drift."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_bisections import NAMES, measured, search

from evalguard.bisect.bisect_words import search_answer

SAID = "(by elimination: without it every document scores as the base's, bit by bit)"
REPAIRED = measured(*NAMES[1:], documents=5153, drift_sigma=0.0, error_sigma=0.0, cost=1.05)


def test_a_culprit_without_which_no_score_changes_is_named_by_elimination() -> None:
    found = search(unexplained_sigma=0.0, measured=(REPAIRED,))
    assert found.eliminated
    assert SAID in search_answer(found)


@pytest.mark.parametrize(
    "other",
    [
        replace(REPAIRED, error_sigma=0.01),  # changes that cancel
        replace(REPAIRED, documents_so_far=1024),
        replace(REPAIRED, settings=REPAIRED.settings[1:]),
    ],
)
def test_nothing_less_is_called_elimination(other: object) -> None:
    found = search(unexplained_sigma=0.0, measured=(other,))
    assert not found.eliminated
    assert SAID not in search_answer(found)
