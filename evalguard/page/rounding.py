"""Numbers with no more digits than their standard error supports."""

from __future__ import annotations

import math

from evalguard.core.verdict import ON_THE_MARGIN, DriftUnit

_SMALLEST_P = 1e-12
_MOST_DECIMALS = 6
# A standard error of rounding noise must not print a value to its hundredth decimal. A sigma just
# beside the margin, the verdict's reason, is written out so far.
_LONGEST_DECIMALS = 9


def round_to_error(value: float | None, stderr: float | None) -> str:
    """Round ``value`` where the second significant digit of its standard error stands.

    Without a usable standard error (None, 0, not finite): four significant digits.

    >>> round_to_error(4.1329989, 0.0888)
    '4.133'
    >>> round_to_error(70900.9, 6328.7)
    '70900'
    """
    return _format_finite_at(value, _decimals(stderr))


def round_pair(
    first: tuple[float | None, float | None], second: tuple[float | None, float | None]
) -> tuple[str, str]:
    """Round two (value, standard error) pairs that stand side by side.

    Where their standard errors differ by one digit, both get the smaller number of decimals, so
    that they can be compared by eye.
    """
    (first_value, first_stderr), (second_value, second_stderr) = first, second
    first_decimals, second_decimals = _decimals(first_stderr), _decimals(second_stderr)
    if (
        first_decimals is not None
        and second_decimals is not None
        and abs(first_decimals - second_decimals) == 1
    ):
        first_decimals = second_decimals = min(first_decimals, second_decimals)
    return _format_finite_at(first_value, first_decimals), _format_finite_at(
        second_value, second_decimals
    )


def format_with_stderr(value: float | None, stderr: float | None) -> str:
    """Return "4.133 ± 0.089", or the value alone where there is no standard error."""
    text = round_to_error(value, stderr)
    if value is None or not math.isfinite(value) or stderr is None or _decimals(stderr) is None:
        return text
    return f"{text} ± {stderr:.1e}" if "e" in text else f"{text} ± {round_to_error(stderr, stderr)}"


def format_drift(drift: float | None, stderr: float | None, unit: DriftUnit) -> str:
    """Return "4.133 ± 0.089", with its unit where that is not sigma."""
    behind = "" if unit == "sigma" else f" {unit}"
    return f"{format_with_stderr(drift, stderr)}{behind}"


def format_p_value(p: float | None) -> str:
    """Return "< 1e-12", "3e-05", "0.071", "0.38", "> 0.99" or "1"; "-" for no number."""
    if p is None or math.isnan(p):
        return "-"
    if p < _SMALLEST_P:
        return "< 1e-12"
    if p < 0.0001:
        return f"{p:.0e}"
    if p < 0.001:
        return f"{p:.4f}"
    if p < 0.0995:
        return f"{p:.2g}"
    if p == 1.0:
        return "1"
    return "> 0.99" if p > 0.99 else f"{p:.2f}"


def p_value_phrase(p: float | None) -> str:
    """Return the p-value as it stands in a sentence: "p < 1e-12" or "p = 0.071"."""
    text = format_p_value(p)
    return f"p {text}" if text[0] in "<>" else f"p = {text}"


def format_sigma_interval(
    value: float | None, interval: tuple[float, float] | None, *, margin: float
) -> tuple[str, str, str]:
    """Return sigma and the two ends of its interval, rounded alike.

    Two significant digits of the interval's half width, at least two decimals for a small sigma;
    more where rounding would move a number across 0 or the margin, and so contradict the verdict.
    """
    numbers = (value, *(interval or (None, None)))
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    decimals = _shared_decimals(finite, margin) if finite else 2
    first, low, high = (_format_at(number, decimals) for number in numbers)
    return (first if first == "-" else _signed(first)), low, high


def format_count(number: int) -> str:
    """Return a number of documents with thousands separated: "2,048"."""
    return f"{number:,}"


def format_estimate(number: int) -> str:
    """Return an estimated number of documents, to three digits: "842", "78,700"."""
    return format_count(int(float(f"{number:.3g}")))


def _shared_decimals(finite: list[float], margin: float) -> int:
    """Decimals for a sigma and the ends of its interval."""
    half = (max(finite) - min(finite)) / 2
    wanted = _sigma_decimals(max(abs(number) for number in finite))
    supported = _decimals(half)
    if supported is not None and half < 0.01:
        wanted = max(wanted, min(3, supported))
    borders = ((0.0, _MOST_DECIMALS), (margin, _LONGEST_DECIMALS))
    # What no reasonable number of decimals keeps on its side does not lengthen the others.
    pairs = [(n, b) for n in finite for b, most in borders if _keeps_side(n, most, b)]
    for decimals in range(wanted, _LONGEST_DECIMALS + 1):
        if all(_keeps_side(number, decimals, border) for number, border in pairs):
            return decimals
    return wanted


def _keeps_side(number: float, decimals: int, border: float) -> bool:
    """Whether rounding leaves a number on its side of a border; on it as the verdict has it."""
    shown = float(f"{number:.{decimals}f}")
    if border and math.isclose(number, border, rel_tol=ON_THE_MARGIN):
        return math.isclose(shown, border, rel_tol=ON_THE_MARGIN)
    return (number > border) == (shown > border) and (number < border) == (shown < border)


def _format_at(number: float | None, decimals: int) -> str:
    if number is None or math.isnan(number):
        return "-"
    if math.isinf(number):
        return _not_finite(number)
    if not _keeps_side(number, decimals, 0.0):
        return f"{number:.0e}"
    return _with_decimals(number, decimals) if abs(number) < 1e5 else f"{number:.2e}"


def _sigma_decimals(size: float) -> int:
    return 2 if size < 10 else 1 if size < 100 else 0


def _decimals(stderr: float | None) -> int | None:
    """Decimals at which the second significant digit of ``stderr`` stands; may be negative.

    None where ``stderr`` supports no rounding: missing, 0 or not finite.
    """
    if stderr is None or not math.isfinite(stderr) or stderr <= 0:
        return None
    return 1 - int(f"{stderr:.1e}".partition("e")[2])


def _format_finite_at(value: float | None, decimals: int | None) -> str:
    if value is None:
        return "-"
    if not math.isfinite(value):
        return _not_finite(value)
    return f"{value:.4g}" if decimals is None else _with_decimals(value, decimals)


def _with_decimals(value: float, decimals: int) -> str:
    size = abs(value)
    if size >= 1e7 or (size and size < 1e-4):
        exponent = math.floor(math.log10(size))
        return f"{value:.{min(max(exponent + decimals, 0), 5)}e}"
    # 11 digits before and after the point: a tiny standard error must not fill a large number up.
    whole = math.floor(math.log10(size)) + 1 if size >= 1e3 else 2
    decimals = min(decimals, _LONGEST_DECIMALS, 11 - whole)
    text = f"{round(value, decimals):.{max(decimals, 0)}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _signed(text: str) -> str:
    return text if text.startswith("-") or text.strip("0.") == "" else f"+{text}"


def _not_finite(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
