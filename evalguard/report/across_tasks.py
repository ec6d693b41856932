"""All metrics together: for the JSON document and for people."""

from __future__ import annotations

from typing import Any

from evalguard.across_tasks import AcrossTasks, Key
from evalguard.compare_report import CompareReport
from evalguard.report import rounding
from evalguard.report.plain_text import printable

_MOST_NAMED = 3


def across_document(across: AcrossTasks | None) -> dict[str, Any] | None:
    """Return the result as JSON values; None where there is none."""
    if across is None:
        return None
    return {
        "metrics": [_key(key) for key in across.metrics],
        "tasks": across.tasks,
        "n": across.n,
        "n_moved": across.n_moved,
        "pooled_sigma": across.pooled_sigma,
        "pooled_stderr": across.pooled_stderr,
        "pooled_interval": list(across.pooled_interval),
        "pooled_df": across.pooled_df,
        "confidence": across.confidence,
        "pooled_p_value": across.pooled_p_value,
        "max_z": across.max_z,
        "max_z_metric": _key(across.max_z_metric),
        "max_z_p_value": across.max_z_p_value,
        "fisher": across.fisher,
        "fisher_p_value": across.fisher_p_value,
        "p_value": across.p_value,
        "resamples": across.resamples,
        "seed": across.seed,
        "left_out": [{**_key(key), "reason": reason} for key, reason in across.left_out],
    }


def across_text(report: CompareReport) -> str:
    """Return the sentence that the terminal shows, "" where there is no result."""
    across = report.across_tasks
    if across is None:
        return ""
    sigma, low, high = rounding.sigma_with_interval(
        across.pooled_sigma, across.pooled_interval, margin=report.gate.margin
    )
    count = len(across.metrics)
    drift = f"{count} metric{'s' if count > 1 else ''} of"
    verb = "drift" if count > 1 else "drifts"
    tasks = f"{across.tasks} task{'s' if across.tasks > 1 else ''}"
    patterns = (
        "all sign patterns"
        if across.resamples is None
        else f"{rounding.count(across.resamples)} random joint sign flips, seed {across.seed}"
    )
    return (
        f"All metrics together: {drift} {tasks} {verb} by {sigma} sigma "
        f"on average [{low}, {high}], overall {_p(across.p_value)} (pooled "
        f"{_p(across.pooled_p_value)}, largest z {_p(across.max_z_p_value)}, Fisher "
        f"{_p(across.fisher_p_value)}; {patterns}, n = {rounding.count(across.n)})"
        f"{_left_out(across)}."
    )


def _p(value: float) -> str:
    return rounding.p_phrase(value)


def _left_out(across: AcrossTasks) -> str:
    if not across.left_out:
        return ""
    names = [printable(f"{task} {metric}") for (task, _, metric), _ in across.left_out]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; without {', '.join(names[:_MOST_NAMED])}{more}"


def _key(key: Key) -> dict[str, str]:
    task, filter_name, metric = key
    return {"task": task, "filter": filter_name, "metric": metric}
