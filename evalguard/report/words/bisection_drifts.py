"""A drift as a bisection shows it: in sigma, as a factor, or in the unit of a limit's figure."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from evalguard.core.reports.bisect_report import (
    SIGMA,
    MetricSearch,
)
from evalguard.report.words import rounding
from evalguard.report.words.plain_text import printable

if TYPE_CHECKING:
    pass


_BEYOND_READING = 1e5  # sigma


def format_drift(
    sigma: float | None, error: float, margin: float, *, log_unit: float = 0.0, unit: str = SIGMA
) -> str:
    """Return a drift with a sign, and no more digits than its standard error supports.

    Of a metric that is an exponential (``MetricSearch.log_unit``) a drift beyond reading is shown
    as how many times the base's the metric is: "x5.1e+08". A divergence, of any other ``unit`` than
    sigma, is shown to three digits.
    """
    if sigma is None:
        return "-"
    if unit != SIGMA:
        return f"{sigma:+.3g}"
    if is_beyond_reading(sigma, log_unit):
        return f"x{_factor(sigma, log_unit)}"
    ends = (sigma - 2.0 * error, sigma + 2.0 * error)
    return rounding.format_sigma_interval(sigma, ends if error else None, margin=margin)[0]


def drift_phrase(
    sigma: float | None,
    margin: float,
    *,
    log_unit: float = 0.0,
    unit: str = SIGMA,
    sigmas: str = " sigma",
) -> str:
    """Return a drift as it stands in a sentence: "+1.47 sigma", "a factor of 5.1e+08".

    Args:
        sigmas: what stands behind a number of standard errors.
    """
    if unit == SIGMA and sigma is not None and is_beyond_reading(sigma, log_unit):
        return f"a factor of {_factor(sigma, log_unit)}"
    text = format_drift(sigma, 0.0, margin, log_unit=log_unit, unit=unit)
    if unit != SIGMA:
        return f"{text} {printable(unit)}"
    return f"{text}{sigmas}"


def _factor(sigma: float, log_unit: float) -> str:
    return f"{1.0 + sigma * log_unit:.2g}"


def is_beyond_reading(sigma: float, log_unit: float) -> bool:
    """Whether a drift is so large that its number says nothing more."""
    return log_unit > 0.0 and isfinite(sigma) and sigma >= _BEYOND_READING


def search_drift_text(drift: float | None, error: float, search: MetricSearch) -> str:
    """A drift of a search, as ``format_drift``."""
    return format_drift(drift, error, search.margin, log_unit=search.log_unit, unit=search.unit)


def search_drift_phrase(
    drift: float | None, search: MetricSearch, *, sigmas: str = " sigma"
) -> str:
    """A drift of a search as it stands in a sentence."""
    return drift_phrase(
        drift, search.margin, log_unit=search.log_unit, unit=search.unit, sigmas=sigmas
    )
