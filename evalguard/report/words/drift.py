"""What stands beside a drift, in words: all metrics together, next-token distributions, the noise
floor.
"""

from __future__ import annotations

import math

from evalguard.core.across_tasks import AcrossTasks
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.noise_floor import Floor, MetricFloor, Shift
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.floor_report import FloorReport
from evalguard.core.shown_tokens import KlEstimate
from evalguard.report.words import rounding
from evalguard.report.words.labels import (
    decisive_comparison,
    format_percent,
    is_in_sigma,
    margin_text,
    metric_label,
    metric_margin,
    shown_interval,
)
from evalguard.report.words.plain_text import printable

_MOST_NAMED = 3


def across_text(report: CompareReport) -> str:
    """Return the sentence that the terminal shows, "" where there is no result."""
    across = report.across_tasks
    if across is None:
        return ""
    sigma, low, high = rounding.format_sigma_interval(
        across.pooled_sigma, across.pooled_interval, margin=report.gate.margin
    )
    count = len(across.metrics)
    drift = f"{count} metric{'s' if count > 1 else ''} of"
    verb = "drift" if count > 1 else "drifts"
    tasks = f"{across.tasks} task{'s' if across.tasks > 1 else ''}"
    patterns = (
        "all sign patterns"
        if across.resamples is None
        else (
            f"{rounding.format_count(across.resamples)} random joint sign flips, seed {across.seed}"
        )
    )
    return (
        f"All metrics together: {drift} {tasks} {verb} by {sigma} sigma "
        f"on average [{low}, {high}], overall {_p_phrase(across.p_value)} (pooled "
        f"{_p_phrase(across.pooled_p_value)}, largest z {_p_phrase(across.max_z_p_value)}, Fisher "
        f"{_p_phrase(across.fisher_p_value)}; {patterns}, n = {rounding.format_count(across.n)})"
        f"{_left_out_clause(across)}."
    )


def _p_phrase(value: float) -> str:
    return rounding.p_value_phrase(value)


def _left_out_clause(across: AcrossTasks) -> str:
    if not across.left_out:
        return ""
    names = [printable(f"{task} {metric}") for (task, _, metric), _ in across.left_out]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; without {', '.join(names[:_MOST_NAMED])}{more}"


# How two models' distributions differ, in words.


_PERPLEXITIES = frozenset({"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"})
_STILL = frozenset({"unchanged", "degraded"})


def kl_text(figure: Figure) -> str:
    """Return a KL, or another figure of any size, with its standard error."""
    return rounding.format_with_stderr(figure.value, figure.stderr)


def share_text(figure: Figure) -> str:
    """Return a share in per cent, with the digits that its standard error supports."""
    if figure.value is None:
        return "-"
    stderr = None if figure.stderr is None else 100.0 * figure.stderr
    return f"{rounding.round_to_error(100.0 * figure.value, stderr)}%"


def percentile_text(figure: Figure) -> str:
    """A percentile as its interval supports it; two digits where an end of that is open."""
    if figure.value is None:
        return "-"
    low, high = figure.interval or (0.0, float("inf"))
    if 0.0 < high - low < float("inf"):
        return rounding.round_to_error(figure.value, (high - low) / 4.0)
    return f"{figure.value:#.2g}".rstrip(".")


def distributions_moved_clause(report: CompareReport) -> str:
    """Say that distributions moved where no score did; "" where none did."""
    moved = [one for one in report.distributions if one.moved]
    if not moved:
        return ""
    largest = max(moved, key=lambda one: one.kl.value or 0.0)
    return (
        f"; beneath these scores the distributions moved: KL {kl_text(largest.kl)} nats a token "
        f"on {printable(largest.task)}"
    )


def distribution_failure_text(one: DistributionComparison) -> str:
    """Say why there are no numbers; "" where there are."""
    if not one.failure:
        return ""
    return f"The distributions of {printable(one.task)} are not known: {printable(one.failure)}."


def kl_bounds_text(one: DistributionComparison) -> str:
    """Say between what the mean KL is proven to lie, where it is an estimate."""
    if one.kl.bounds is None:
        return ""
    low, high = one.kl.bounds
    return (
        f"{printable(one.task)}: KL is estimated from the base's reference; proven, on these "
        f"tokens, is a mean between {low:.2g} and {high:.2g}."
    )


def kl_estimate_text(one: KlEstimate) -> str:
    """Say what servers' most probable tokens show of KL, or why they show nothing."""
    if one.failure:
        return f"KL of {printable(one.task)} is not estimated: {printable(one.failure)}."
    return (
        f"KL of {printable(one.task)}, an estimate from the {one.tokens or 0.0:.2g} tokens of a "
        f"position that both servers show ({share_text(one.mass_seen)} of the base's probability): "
        f"at least {kl_text(one.kl_at_least)} nats a token; nothing bounds it from above."
    )


def unmoved_perplexity_text(report: CompareReport, one: DistributionComparison) -> str:
    """Say where perplexity stands still and the distributions moved."""
    of_task = [c for c in report.comparisons if c.task == one.task]
    perplexities = [c for c in of_task if c.metric in _PERPLEXITIES]
    still = bool(perplexities) and all(c.outcome in _STILL for c in perplexities)
    if one.failure or not (still and one.moved) or one.kl.interval is None:
        return ""
    first = perplexities[0]
    joined = "but" if first.outcome == "unchanged" else "and"
    low, high = one.kl.interval
    return (
        f"On {printable(one.task)} {metric_label(first)} is "
        f"{_outcome_with_sigma(report, first)}, {joined} "
        f"the distributions moved: KL {kl_text(one.kl)} nats a token "
        f"({format_percent(one.confidence)} "
        f"interval {rounding.round_to_error(low, one.kl.stderr)} to "
        f"{rounding.round_to_error(high, one.kl.stderr)}), and both have the same most "
        "probable token "
        f"at {share_text(one.same_top1)} of the positions."
    )


def _outcome_with_sigma(report: CompareReport, comparison: Comparison) -> str:
    sigma, _, _ = rounding.format_sigma_interval(
        comparison.sigma, shown_interval(comparison), margin=metric_margin(report, comparison)
    )
    held = "within the margin" if comparison.outcome == "degraded" else comparison.outcome
    return f"{held} ({sigma} sigma)"


# The sentences of a floor, of its own report and beside a comparison's drift.


_MOST_TIMES = 1000


def floor_metric_name(of: MetricFloor | Shift) -> str:
    """Return "sw_word perplexity", with the filter where it has a name."""
    name = f"{of.task} {of.metric}"
    return printable(name if of.filter in ("", "none") else f"{name} ({of.filter})")


def floor_sentence(report: FloorReport) -> str:
    """Say what a measured floor means, by its largest number."""
    model = printable(report.model.name)
    number = len(report.variations)
    under = f"under all {number} variations" if number > 1 else "under the one variation"
    if all(floor.bit_identical for floor in report.floors):
        return (
            f"{model} gives every document the same score, to the last bit, {under}: an unchanged "
            "model shows no drift here."
        )
    largest = max(report.floors, key=lambda floor: (floor.sigma, floor.sigma_upper))
    said = (
        f"Unchanged, {model} shows a drift of up to {format_drift_size(largest.sigma)} "
        "standard errors "
        f"({floor_metric_name(largest)}, {printable(largest.variation)}; intervals reach "
        f"{format_drift_size(largest.sigma_upper)}): a drift that is no larger says nothing "
        "about a conversion."
    )
    said += _kl_clause(report)
    above = [floor for floor in report.floors if floor.sigma > _allowed_margin(floor, report)]
    if above:
        one = max(
            above, key=lambda floor: floor.sigma / max(_allowed_margin(floor, report), 1e-300)
        )
        what = (
            "That"
            if one is largest
            else f"{format_drift_size(one.sigma)} on {floor_metric_name(one)}"
        )
        said += (
            f" {what} is above the margin of {_margin_phrase(one, report)}: a gate would fail an "
        )
        said += "unchanged model."
    return said


def _allowed_margin(floor: MetricFloor, report: FloorReport) -> float:
    """The margin of a metric; infinite where a gate would not judge it."""
    if not floor.margin_text:
        return report.margin
    return math.inf if floor.margin is None else floor.margin


def _margin_phrase(floor: MetricFloor, report: FloorReport) -> str:
    allowed = _allowed_margin(floor, report)
    if is_in_sigma(floor.margin_text):
        return margin_text(allowed)
    return f"{printable(floor.margin_text)} ({allowed:.3g} sigma)"


def _kl_clause(report: FloorReport) -> str:
    if not report.distribution_floors:
        return ""
    largest = max(report.distribution_floors, key=lambda floor: floor.kl)
    return (
        f" Its next-token distributions move by a KL of up to {format_nats(largest.kl)} nats a "
        "token "
        f"({printable(largest.task)}, {printable(largest.variation)})."
    )


def floor_line(report: CompareReport) -> str:
    """Say how far the drift that a report is about lies above the floor; "" without a floor."""
    about = decisive_comparison(report)
    floor = about.floor if about is not None else None
    if about is None or floor is None or about.sigma is None:
        return ""
    said = f"{_floor_statement(about.sigma, floor)} ({_floor_conditions(about.n_used, floor)})"
    return f"Floor: {said}{_kl_floor_clause(report, about.task)}."


def _floor_statement(sigma: float, floor: Floor) -> str:
    if floor.sigma == 0.0:
        if sigma == 0.0:
            return "no drift, as an unchanged model shows here"
        return "a drift, where an unchanged model shows none here"
    if floor.within:
        return "the drift is within what an unchanged model shows here"
    times = "far more than" if floor.times is None else f"{_times_text(floor.times)} times"
    said = f"the drift is {times} what an unchanged model shows here"
    if floor.within_upper:
        said += (
            f", but that is known only roughly: it may be "
            f"{format_drift_size(floor.sigma_upper)} sigma"
        )
    return said


def _kl_floor_clause(report: CompareReport, task: str) -> str:
    """What a task's mean KL is beside its floor; "" where either is not known."""
    distribution = next((d for d in report.distributions if d.task == task), None)
    floor = None if distribution is None else distribution.floor
    if distribution is None or floor is None or distribution.kl.value is None:
        return ""
    if floor.kl == 0.0:
        none = distribution.kl.value == 0.0
        return "; there is no KL either" if none else "; the KL of an unchanged model is 0"
    where = printable(floor.variation)
    if floor.within:
        return f"; the mean KL is within that of an unchanged model ({where})"
    times = "far more than" if floor.times is None else f"{_times_text(floor.times)} times"
    roughly = ", known only roughly" if floor.within_upper else ""
    return f"; the mean KL is {times} that of an unchanged model ({where}{roughly})"


def _floor_conditions(n: int, floor: Floor) -> str:
    parts = [printable(floor.variation)] if floor.sigma else ["under every variation"]
    if floor.n != n:
        parts.append(f"measured on {rounding.format_count(floor.n)} documents")
    return ", ".join(parts)


def _times_text(times: float) -> str:
    if times > _MOST_TIMES:
        return f"more than {rounding.format_count(_MOST_TIMES)}"
    return f"{times:.2g}" if times < 100 else f"{times:.0f}"


def format_nats(kl: float) -> str:
    """Return a divergence in two significant digits: "0.013", "2.1e-07"."""
    return f"{kl:.2g}"


def format_drift_size(sigma: float) -> str:
    """Return a size of drift in two significant digits: "0.013", "2e-07", "41"."""
    if not math.isfinite(sigma):
        return "infinitely many"
    return f"{sigma:.2g}" if sigma < 10 else rounding.format_count(round(sigma))
