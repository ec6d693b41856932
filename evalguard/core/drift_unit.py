"""DriftUnit: what a drift has a size in where a history or a night shows it."""

from __future__ import annotations

import math
from typing import Literal

from evalguard.core.verdict import Margin

DriftUnit = Literal["sigma", "pp", "%"]
"""Standard errors of the base; percentage points; per cent of the base's value."""


def choose_drift_unit(
    *,
    base: float | None,
    base_stderr: float | None,
    sigmas: tuple[float | None, ...],
    margin_text: str,
    is_binary: bool,
) -> DriftUnit:
    """Sigma, but where the base's documents do not scatter and sigma is infinite.

    There a share is in points, and what has a margin in per cent in per cent.

    Args:
        base, base_stderr: of the base, in units of the metric.
        sigmas: sigma and the ends of its interval; None where there are none.
        margin_text: as it was given: "1pp", "2%", "1 sigma"; "" where it is not known.
        is_binary: whether every document is right or wrong.
    """
    if base_stderr != 0.0 or not any(one is not None and math.isinf(one) for one in sigmas):
        return "sigma"
    given = Margin.parse(margin_text).unit if margin_text else "sigma"
    if is_binary or given == "points":
        return "pp"
    return "%" if given == "relative" and base else "sigma"


def scale_to_unit(unit: DriftUnit, base: float | None) -> float:
    """What a drift in units of the metric is multiplied by; nan where the unit has no size."""
    if unit == "pp":
        return 100.0
    return 100.0 / abs(base) if unit == "%" and base else math.nan
