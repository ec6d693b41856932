"""A drift as a bisection shows it: in sigma, as a factor, or in the unit of a limit's figure."""

from __future__ import annotations

from math import isfinite

from evalguard.bisect_report import SIGMA, MetricSearch
from evalguard.report import rounding
from evalguard.report.plain_text import printable

_BEYOND_READING = 1e5  # sigma


def sized(
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
    if _far(sigma, log_unit):
        return f"x{1.0 + sigma * log_unit:.2g}"
    ends = (sigma - 2.0 * error, sigma + 2.0 * error)
    return rounding.sigma_with_interval(sigma, ends if error else None, margin=margin)[0]


def amount(sigma: float | None, margin: float, *, log_unit: float = 0.0, unit: str = SIGMA) -> str:
    """Return a drift as it stands in a sentence: "+1.47 sigma", "a factor of 5.1e+08"."""
    text = sized(sigma, 0.0, margin, log_unit=log_unit, unit=unit)
    if unit != SIGMA:
        return f"{text} {printable(unit)}"
    if sigma is not None and _far(sigma, log_unit):
        return f"a factor of {text.removeprefix('x')}"
    return f"{text} sigma"


def _far(sigma: float, log_unit: float) -> bool:
    return log_unit > 0.0 and isfinite(sigma) and sigma >= _BEYOND_READING


def drift_text(drift: float | None, error: float, search: MetricSearch) -> str:
    """A drift of a search, as ``sized``."""
    return sized(drift, error, search.margin, log_unit=search.log_unit, unit=search.unit)


def told(drift: float | None, search: MetricSearch) -> str:
    """A drift of a search as it stands in a sentence."""
    return amount(drift, search.margin, log_unit=search.log_unit, unit=search.unit)
