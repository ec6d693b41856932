"""What a night keeps of a pair: of its report, or of the error that took its place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from evalguard.core.comparison import Comparison
from evalguard.core.drift_unit import choose_drift_unit, scale_to_unit
from evalguard.core.gate import GateResult
from evalguard.core.gate_state import GateState, Key
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.night_report import NightlyMetric, PairNight
from evalguard.errors import EXIT_FAILED, EvalguardError


def build_failed_pair(base: str, candidate: str, error: Exception) -> PairNight:
    """A pair that gave no report."""
    known = isinstance(error, EvalguardError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    return PairNight(
        base=base,
        candidate=candidate,
        state="failed",
        exit_code=EXIT_FAILED,
        reason=redacted_text(message),
        hint=redacted_text(error.hint) if isinstance(error, EvalguardError) else "",
    )


def build_pair_night(
    report: CompareReport, names: tuple[str, str], *, problems: tuple[str, ...] = ()
) -> PairNight:
    """What a night keeps of a report.

    Args:
        names: of base and candidate in the guard file.
        problems: what of it could not be written.
    """
    gate = report.gate
    waivers = [one for one in report.findings if one.kind == "waiver"]
    return PairNight(
        base=names[0],
        candidate=names[1],
        state=gate.state,
        exit_code=report.exit_code,
        reason=gate.reason,
        margin=gate.margin,
        created=report.created,
        metrics=tuple(_gated_metrics(report)),
        culprits=bisected_culprits(report),
        bisection=bisection_summary(report),
        waivers=tuple(one.text for one in waivers),
        expired=tuple(one.text for one in waivers if one.values["state"] == "expired"),
        findings=tuple(one for one in report.findings if one.kind != "waiver"),
        notes=report.notes,
        problems=problems,
        base_digest=report.base.digest,
        run_folder=report.run_folder,
    )


def _gated_metrics(report: CompareReport) -> Iterator[NightlyMetric]:
    """The gated metrics, in the report's order."""
    waivers = {
        one.key: f"until {one.waiver.until}: {one.waiver.reason}" for one in report.gate.accepted
    }
    for one in report.comparisons:
        key = one.key
        if key not in report.gate.gated:
            continue
        low, high = one.sigma_interval or (None, None)
        yield NightlyMetric(
            task=one.task,
            filter=one.filter,
            metric=one.metric,
            sigma=one.sigma,
            low=low,
            high=high,
            n=one.n_used,
            outcome=one.outcome,
            state=_gate_state(report.gate, key),
            accepted=waivers.get(key, ""),
            **_drift_in_unit(one),
        )


def _drift_in_unit(one: Comparison) -> dict[str, Any]:
    """Its drift where sigma has no size."""
    ends = one.sigma_interval or ()
    unit = choose_drift_unit(
        base=one.base,
        base_stderr=one.base_stderr,
        sigmas=(one.sigma, *ends),
        margin_text=one.margin_text,
        is_binary=one.flips is not None,
    )
    if unit == "sigma" or one.drift is None:
        return {}
    scale = scale_to_unit(unit, one.base)
    low, high = (end * scale for end in one.drift_interval or (math.nan, math.nan))
    return {
        "unit": unit,
        "drift": one.drift * scale,
        "drift_low": low if math.isfinite(low) else None,
        "drift_high": high if math.isfinite(high) else None,
    }


def _gate_state(gate: GateResult, key: Key) -> GateState:
    if key in gate.regressed:
        return "regressed"
    if key in gate.failed:
        return "failed"
    return "undecided" if key in gate.undecided else "passed"


def bisected_culprits(report: CompareReport) -> tuple[str, ...]:
    """Settings that its bisection names."""
    if report.bisect is None:
        return ()
    return tuple(dict.fromkeys(one.setting for one in report.bisect.culprits))


def bisection_summary(report: CompareReport) -> str:
    """What came of its bisection; "" for none."""
    return report.bisect_reason if report.bisect is None else report.bisect.status
