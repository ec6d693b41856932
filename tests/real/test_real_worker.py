"""A real model scores the same to the last bit in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from real_tasks import LAST_WORD, ROLLING

if TYPE_CHECKING:
    from evalguard import CompareResult

pytestmark = pytest.mark.data


@pytest.mark.slow
def test_a_worker_process_scores_the_same_to_the_last_bit(
    compare: Callable[..., CompareResult],
) -> None:
    tasks = (LAST_WORD, "real_arc_easy", ROLLING)
    result = compare("orig", "own-process", tasks=tasks, limit=12)
    assert {c.task for c in result.comparisons} == set(tasks)
    assert all(c.bit_identical for c in result.comparisons)
    assert result.report.candidate.effective == {"converted": "false"}
