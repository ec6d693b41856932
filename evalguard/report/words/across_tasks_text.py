"""All metrics of a comparison together, in words."""

from __future__ import annotations

from evalguard.core.across_tasks import AcrossTasks
from evalguard.core.reports.compare_report import CompareReport
from evalguard.report.words import rounding
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
