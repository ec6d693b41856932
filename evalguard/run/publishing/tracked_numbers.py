"""A report's numbers under the names that trackers show them by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.reports.bisect_report import SIGMA
from evalguard.core.reports.compare_report import CompareReport

TrackedNumber = float | int | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedNumbers:
    """Finite ``scalars``; ``words`` are outcomes, and numbers that are infinite.

    Attributes:
        charts: names of the scalars that say how far the candidate is: drifts and mean KL.
    """

    scalars: Mapping[str, float]
    words: Mapping[str, str]
    charts: tuple[str, ...]


def collect_numbers(report: CompareReport) -> TrackedNumbers:
    """Return all numbers of a report that trend over runs, unrounded."""
    found: dict[str, TrackedNumber] = {}
    words: dict[str, str] = {}
    for comparison in report.comparisons:
        place = tracked_metric_name(comparison)
        found |= {f"{place}/{name}": value for name, value in _comparison_numbers(comparison)}
        words[f"{place}/outcome"] = comparison.outcome
    for distribution in report.distributions:
        task = distribution.task
        found |= {f"{task}/{name}": value for name, value in _distribution_numbers(distribution)}
    found |= dict(_report_numbers(report))
    there = {name: float(value) for name, value in found.items() if value is not None}
    words |= {name: str(value) for name, value in there.items() if not math.isfinite(value)}
    scalars = {name: value for name, value in there.items() if math.isfinite(value)}
    charts = tuple(name for name in _charts(report) if name in scalars)
    return TrackedNumbers(scalars=scalars, words=words, charts=charts)


def tracked_metric_name(comparison: Comparison) -> str:
    """ "lambada_openai/perplexity"; a filter follows the metric as lm-eval writes it."""
    named = comparison.filter not in ("", "none")
    filter_ = f",{comparison.filter}" if named else ""
    return f"{comparison.task}/{comparison.metric}{filter_}"


def _charts(report: CompareReport) -> Iterator[str]:
    for comparison in report.comparisons:
        # A base whose documents do not scatter has a drift in units of the metric alone.
        shown = "drift" if comparison.sigma is None else "sigma"
        yield f"{tracked_metric_name(comparison)}/{shown}"
    for distribution in report.distributions:
        yield f"{distribution.task}/kl_mean"


def _comparison_numbers(comparison: Comparison) -> Iterator[tuple[str, TrackedNumber]]:
    for name in ("base", "base_stderr", "candidate", "candidate_stderr", "sigma"):
        yield name, getattr(comparison, name)
    low, high = comparison.sigma_interval or (None, None)
    yield "sigma_low", low
    yield "sigma_high", high
    # In units of the metric: known of a base, too, whose documents do not scatter.
    low, high = comparison.drift_interval or (None, None)
    yield "drift", comparison.drift
    yield "drift_low", low
    yield "drift_high", high
    for name in ("paired_stderr", "p_value", "bh_q_value", "n_used", "same_answer", "churn"):
        yield name, getattr(comparison, name)
    lost, won = comparison.flips or (None, None)
    yield "flips_lost", lost
    yield "flips_won", won


def _distribution_numbers(
    distribution: DistributionComparison,
) -> Iterator[tuple[str, TrackedNumber]]:
    yield "kl_mean", distribution.kl.value
    yield "kl_stderr", distribution.kl.stderr
    yield "kl_p99", distribution.kl_at(99).value
    yield "kl_max", distribution.kl_at(100).value
    yield "dp_rms", distribution.dp_rms.value
    yield "same_top1", distribution.same_top1.value


def _report_numbers(report: CompareReport) -> Iterator[tuple[str, TrackedNumber]]:
    yield "gate/passed", report.gate.passed
    yield "gate/exit_code", report.exit_code
    if report.resources is not None:
        yield "resources/wall_seconds", report.resources.wall_seconds
    if report.bisect is not None:
        yield "bisect/evaluations", report.bisect.evaluations
        yield "bisect/probes", report.bisect.probes
        if report.bisect.unit == SIGMA:
            yield "bisect/unexplained_sigma", report.bisect.unexplained_sigma
