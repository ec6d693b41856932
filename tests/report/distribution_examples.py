"""Distributions that the tests of report/ render."""

from __future__ import annotations

import math
from typing import Any

from evalguard.core.distribution_comparison import (
    DistributionComparison,
    Figure,
    Percentile,
    TokenPosition,
)


def figure(value: float, stderr: float, **more: Any) -> Figure:
    return Figure(
        value=value,
        stderr=stderr,
        interval=(value - 2.0 * stderr, value + 2.0 * stderr),
        **more,
    )


def percentile(percent: float, value: float, low: float, high: float) -> Percentile:
    return Percentile(percent=percent, figure=Figure(value=value, interval=(low, high)))


def distribution(**changes: Any) -> DistributionComparison:
    """A conversion that perplexity hardly sees."""
    fields: dict[str, Any] = {
        "task": "evalguard_rolling",
        "n": 300,
        "positions": 48_211,
        "top_k": 10,
        "confidence": 0.95,
        "kl": figure(0.01234, 0.00041),
        "kl_percentiles": (
            Percentile(percent=0.0, figure=Figure(value=1e-9)),
            percentile(50.0, 0.0041, 0.0040, 0.0043),
            percentile(99.0, 0.1123, 0.104, 0.121),
            percentile(99.9, 0.61, 0.44, math.inf),
            Percentile(percent=100.0, figure=Figure(value=2.3119)),
        ),
        "kl_max_at": TokenPosition(doc_id=17, request=0, position=3, token_id=1234),
        "dp": figure(-0.00021, 0.0002),
        "dp_rms": figure(0.01231, 0.0003),
        "dp_percentiles": (percentile(1.0, -0.05, -0.06, -0.04),),
        "dp_min_at": TokenPosition(doc_id=4, request=1, position=0, token_id=5),
        "same_top1": figure(0.98123, 0.0012),
        "same_topk": figure(0.954, 0.001),
        "base_perplexity": figure(4.1, 0.02),
        "candidate_perplexity": figure(4.101, 0.02),
        "log_perplexity_ratio": figure(0.0003, 0.0004),
        "perplexity_ratio": figure(1.0003, 0.0004),
        "perplexity_difference": figure(0.001, 0.0016),
        "correlation": 0.9987,
    }
    return DistributionComparison(**{**fields, **changes})
