"""How two models' distributions differ: for the JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from evalguard.distribution_comparison import DistributionComparison, Figure, Percentile, Place

_FIGURES = (
    "kl",
    "dp",
    "dp_rms",
    "same_top1",
    "same_topk",
    "base_perplexity",
    "candidate_perplexity",
    "log_perplexity_ratio",
    "perplexity_ratio",
    "perplexity_difference",
)
_PLAIN = (
    "task",
    "n",
    "positions",
    "top_k",
    "confidence",
    "exact",
    "bit_identical",
    "moved",
    "correlation",
    "clusters",
    "cluster_field",
    "failure",
)


def distribution_document(distribution: DistributionComparison) -> dict[str, Any]:
    """Return one task's distributions as JSON values, but for infinite numbers."""
    return {
        **{name: getattr(distribution, name) for name in _PLAIN},
        **{name: _figure(getattr(distribution, name)) for name in _FIGURES},
        "kl_percentiles": [_percentile(one) for one in distribution.kl_percentiles],
        "dp_percentiles": [_percentile(one) for one in distribution.dp_percentiles],
        "kl_max_at": _place(distribution.kl_max_at),
        "dp_min_at": _place(distribution.dp_min_at),
        "floor": None if distribution.floor is None else asdict(distribution.floor),
    }


def distribution_row(distribution: DistributionComparison) -> dict[str, Any]:
    """Return the same numbers as one flat row: kl, kl_stderr, kl_low, kl_p99, dp_p0.1, ..."""
    row = {name: getattr(distribution, name) for name in _PLAIN}
    for name in _FIGURES:
        row |= _columns(name, getattr(distribution, name))
    for name in ("kl", "dp"):
        for percentile in getattr(distribution, f"{name}_percentiles"):
            row |= _columns(f"{name}_p{percentile.percent:g}", percentile.figure)
    for name in ("kl_max_at", "dp_min_at"):
        place = _place(getattr(distribution, name)) or {}
        row |= {
            f"{name}_{key}": place.get(key) for key in ("doc_id", "request", "position", "token_id")
        }
    for name in ("kl", "times", "variation"):
        row[f"floor_{name}"] = getattr(distribution.floor, name, None)
    return {**row, "caveats": distribution.caveats}


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "value": figure.value,
        "stderr": figure.stderr,
        "interval": None if figure.interval is None else list(figure.interval),
        "bounds": None if figure.bounds is None else list(figure.bounds),
    }


def _percentile(percentile: Percentile) -> dict[str, Any]:
    return {"percent": percentile.percent, **_figure(percentile.figure)}


def _place(place: Place | None) -> dict[str, int] | None:
    if place is None:
        return None
    return {
        "doc_id": place.doc_id,
        "request": place.request,
        "position": place.position,
        "token_id": place.token_id,
    }


def _columns(name: str, figure: Figure) -> dict[str, float | None]:
    low, high = figure.interval or (None, None)
    least, most = figure.bounds or (None, None)
    return {
        name: figure.value,
        f"{name}_stderr": figure.stderr,
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_bound_low": least,
        f"{name}_bound_high": most,
    }
