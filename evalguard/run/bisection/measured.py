"""The measurements of a search, as they are reported."""

from __future__ import annotations

import math

from evalguard.bisect.search_result import BisectResult
from evalguard.core.reports.bisect_report import (
    Measured,
    UntestableAssignment,
)


def build_measured(result: BisectResult) -> tuple[Measured, ...]:
    """Every measurement, in order; what was not scored has no drift."""
    return tuple(
        Measured(
            settings=probe.settings,
            documents=probe.documents,
            documents_so_far=probe.documents_so_far,
            drift_sigma=_finite(probe.drift_sigma),
            error_sigma=_finite(probe.error_sigma),
            outcome=probe.outcome,
            reason=probe.untestable,
            cost=probe.cost,
        )
        for probe in result.probes
    )


def build_untestable(result: BisectResult) -> tuple[UntestableAssignment, ...]:
    """The assignments that could not be built or run."""
    return tuple(
        UntestableAssignment(
            settings=probe.settings, outcome=probe.outcome, reason=probe.untestable
        )
        for probe in result.untestable
        if probe.outcome != "scored"
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
