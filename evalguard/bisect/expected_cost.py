"""What a search is expected to cost, before it starts."""

from __future__ import annotations

from math import log2


def expected_evaluations(settings: int, culprits: int) -> float:
    """Full evaluations for so many additive culprits among so many settings.

    1 + k (1 + 0.4 log2 n), base and candidate not counted: what the search keeps below on average
    for effects of 5 standard errors of the jitter or more (benchmarks/bisect_simulation.py). A
    single setting needs nothing but its own measurement, which is the candidate's.
    """
    return 1.0 + culprits * (1.0 + 0.4 * log2(settings)) if settings > 1 else 0.0
