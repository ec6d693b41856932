"""Cell and Outcome: one simulated situation, and what evalguard said of one sample of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.differences import Rng
from evalguard.core.comparison import Comparison
from evalguard.core.pairing import PairedScores
from evalguard.stats.compare_scores import compare_documents

CONFIDENCE = 0.95
MARGIN = 1.0
# Tests that are more careful than t where the documents ask for it, and t beside them.
PLAIN = {"paired t": "plain t", "cluster t": "plain cluster t"}
# Caveats that say of an interval that it may not be what it says.
_OF_THE_INTERVAL = (
    "skewed differences", "few or very unequal", "fewer than 20", "nothing scatters",
    "jackknife's t", "ends are rough", "no answer flipped",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one sample gave.

    Attributes:
        truth, low, high: of the drift and its interval; None for a method without one.
        tests: one-sided p-value of each test, the deciding one first.
        flagged: whether a caveat about the interval stands in the report.
        contradicted: whether interval, p-value and "real" disagree.
        plain: the plain t interval where a more careful one decides, else ``low`` and ``high``.
    """

    tests: Mapping[str, float]
    truth: float | None = None
    low: float = math.nan
    high: float = math.nan
    flagged: bool = False
    contradicted: bool = False
    plain: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of the results.

    Attributes:
        data: what the documents do; ``n`` of them (on average, where clusters vary).
        null: whether nothing is true, so that rejections are errors; else they are power.
        exchangeable: whether the companion tests' own assumption holds too.
        simulate: one sample.
        cost: how many times fewer repetitions it gets, because it takes long.
    """

    data: str
    n: int
    null: bool
    simulate: Callable[[Rng], Outcome]
    exchangeable: bool = True
    cost: int = 1


Method = Callable[[], Iterator[Cell]]


def outcome_of(paired: PairedScores, truth: float, *, deciding: str) -> Outcome:
    """Compare as the package does, and note whether it kept its word.

    Args:
        truth: the true drift on the scale on which it is estimated (nats for a perplexity).
        deciding: the deciding test's name in the results.
    """
    compared = compare_documents(paired, margin=MARGIN, confidence=CONFIDENCE)
    comparison, drift = compared.comparison, compared.drift
    if drift is None or comparison.p_value is None:
        raise RuntimeError(f"a simulated comparison failed: {comparison.reason}")
    low, high = drift.estimate.low, drift.estimate.high
    if comparison.bit_identical:
        low = high = 0.0
    beside = drift.plain
    tests = {deciding: comparison.p_value}
    if deciding in PLAIN:
        tests[PLAIN[deciding]] = comparison.p_value if beside is None else beside.p_value
    if comparison.exact_p_value is not None:
        tests["exact McNemar"] = comparison.exact_p_value
    for companion in comparison.companions:
        if companion.sigma_interval is None:
            tests[companion.method] = companion.p_value
    return Outcome(
        tests=tests,
        truth=truth,
        low=low,
        high=high,
        flagged=any(known in text for text in comparison.caveats for known in _OF_THE_INTERVAL),
        contradicted=_contradicted(comparison),
        plain=(low, high) if beside is None else (beside.low, beside.high),
    )


def _contradicted(comparison: Comparison) -> bool:
    assert comparison.sigma_interval is not None
    assert comparison.p_value is not None
    low, high = comparison.sigma_interval
    real = comparison.p_value <= (1.0 - CONFIDENCE) / 2.0
    return comparison.significant != (low > 0.0) or comparison.significant != real or low > high
