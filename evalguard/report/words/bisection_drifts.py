"""A drift as a bisection shows it: in sigma, as a factor, or in the unit of a limit's figure."""

from __future__ import annotations

from math import inf, isfinite

from evalguard.core.reports.bisect_report import SIGMA, GuiltySetting, MetricSearch
from evalguard.report.words import rounding
from evalguard.report.words.plain_text import printable

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


def is_in_factors(search: MetricSearch) -> bool:
    """Whether what its culprits do is told in factors: for one of them sigma is beyond reading.

    Sigma of some beside factors of others could not be compared.
    """
    told = [one for c in search.culprits for one in (c.sigma_alone, c.sigma_in_context)]
    sizes = [abs(one) for one in told if one is not None]
    return search.unit == SIGMA and any(is_beyond_reading(one, search.log_unit) for one in sizes)


def culprit_phrase(sigma: float, search: MetricSearch) -> str:
    """A drift that a culprit makes, as it stands in a sentence beside those of the others."""
    factor = 1.0 + sigma * search.log_unit
    if is_in_factors(search) and isfinite(factor) and factor > 0.0:
        return f"a factor of {factor:.2g}"
    return search_drift_phrase(sigma, search)


def culprit_figures(culprit: GuiltySetting, search: MetricSearch) -> tuple[str, str]:
    """What a culprit does alone, and beside the others; where that is told in factors: how many
    times the metric of the base, and of the candidate without it, the metric is with it."""
    alone, beside = culprit.sigma_alone, culprit.sigma_in_context
    error = culprit.alone_error_sigma or 0.0
    texts = (
        search_drift_text(alone, error, search),
        search_drift_text(beside, culprit.error_sigma, search),
    )
    if not is_in_factors(search):
        return texts
    whole = (search.drift_sigma or 0.0) - (search.unexplained_sigma or 0.0)
    with_it, without = (1.0 + one * search.log_unit for one in (whole, whole - beside))
    factors = (
        1.0 + (alone or 0.0) * search.log_unit,
        with_it / without if without > 0.0 else inf,
    )
    known = (alone is not None, isfinite(beside))
    return tuple(  # type: ignore[return-value]
        f"x{factor:.2g}" if is_known and isfinite(factor) and factor > 0.0 else text
        for factor, is_known, text in zip(factors, known, texts, strict=True)
    )


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
