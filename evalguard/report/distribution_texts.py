"""How two models' distributions differ, in words."""

from __future__ import annotations

from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.scores import PERPLEXITIES
from evalguard.core.shown_tokens import KlEstimate
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.report.metric_labels import drift_size, format_percent, metric_label

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
    moved = [distribution for distribution in report.distributions if distribution.moved]
    if not moved:
        return ""
    largest = max(moved, key=lambda distribution: distribution.kl.value or 0.0)
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
    perplexities = [c for c in of_task if c.metric in PERPLEXITIES]
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
    held = "within the margin" if comparison.outcome == "degraded" else comparison.outcome
    return f"{held} ({drift_size(report, comparison)})"
