"""Numbers have the digits that their standard error supports, and never contradict a verdict."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from evalguard.core.verdict import decide
from evalguard.page import rounding

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("value", "stderr", "text"),
    [
        # The FLA RWKV-7 port and stories260K, as they stand in the project's pages.
        (4.1329989138930125, 0.08878972964627665, "4.133"),
        (4.2631, 0.0918, "4.263"),
        (70.9009, 6.3287, "70.9"),
        (0.2700, 0.0117, "0.270"),
        (70900.9, 6328.7, "70900"),
        (1.23456e9, 3.2e7, "1.235e+09"),
        (0.8123, 0.0041, "0.8123"),
        (4.1329989, None, "4.133"),
        (0.5, 0.0, "0.5"),
        (0.0, 0.01, "0.000"),
        (-0.00001, 0.1, "-1e-05"),
        (INF, 0.1, "inf"),
        (NAN, 0.1, "nan"),
        (None, 0.1, "-"),
    ],
)
def test_a_value_ends_at_the_second_digit_of_its_standard_error(
    value: float | None, stderr: float | None, text: str
) -> None:
    assert rounding.round_to_error(value, stderr) == text


def test_two_values_side_by_side_share_their_decimals() -> None:
    assert rounding.round_pair((4.1329, 0.0998), (4.2631, 0.1003)) == ("4.13", "4.26")
    assert rounding.round_pair((4.1329, 0.0888), (812.34, 31.0)) == ("4.133", "812")


def test_a_standard_error_stands_behind_its_value() -> None:
    assert rounding.format_with_stderr(4.1329989, 0.08879) == "4.133 ± 0.089"
    assert rounding.format_with_stderr(0.27, None) == "0.27"
    assert rounding.format_with_stderr(None, 0.1) == "-"


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0, "< 1e-12"),
        (9.9e-13, "< 1e-12"),
        (3.2e-5, "3e-05"),
        (0.00081, "0.0008"),
        (0.0012, "0.0012"),
        (0.071448, "0.071"),
        (0.381, "0.38"),
        (0.997, "> 0.99"),
        (1.0, "1"),
        (None, "-"),
        (NAN, "-"),
    ],
)
def test_p_values_read_at_a_glance(p: float | None, text: str) -> None:
    assert rounding.format_p_value(p) == text


def test_a_p_value_in_a_sentence_has_its_relation() -> None:
    assert rounding.p_value_phrase(1e-30) == "p < 1e-12"
    assert rounding.p_value_phrase(0.0714) == "p = 0.071"


@pytest.mark.parametrize(
    ("sigma", "interval", "texts"),
    [
        (1.465272, (1.30, 1.63), ("+1.47", "1.30", "1.63")),
        (-0.0633, (-0.31, 0.18), ("-0.06", "-0.31", "0.18")),
        (22.332, (20.14, 24.52), ("+22.3", "20.1", "24.5")),
        (368.4, (350.0, 390.0), ("+368", "350", "390")),
        (0.0, (0.0, 0.0), ("0.00", "0.00", "0.00")),
        (INF, (INF, INF), ("+inf", "inf", "inf")),
        (-INF, (-INF, -INF), ("-inf", "-inf", "-inf")),
        (None, None, ("-", "-", "-")),
        # Just over the margin, and just over nothing: rounding must not say otherwise.
        (1.0004, (1.0002, 1.0006), ("+1.0004", "1.0002", "1.0006")),
        (0.003, (0.001, 0.005), ("+0.003", "0.001", "0.005")),
        (0.5, (1e-9, 0.9), ("+0.50", "1e-09", "0.90")),
        (1.00000001, (-0.5, 2.5), ("+1.00000001", "-0.50000000", "2.50000000")),
        (1.0004, (1e-9, 2.5), ("+1.0004", "1e-09", "2.5000")),
        # On the margin but for the last bits of a double, as the verdict reads it.
        (1.0000000000000002, (-0.5, 2.5), ("+1.00", "-0.50", "2.50")),
        (0.2, (-0.6, 0.9999999999999999), ("+0.20", "-0.60", "1.00")),
        (-0.0, (-0.0, -0.0), ("0.00", "0.00", "0.00")),
    ],
)
def test_sigma_and_its_interval_are_rounded_alike(
    sigma: float | None, interval: tuple[float, float] | None, texts: tuple[str, str, str]
) -> None:
    assert rounding.format_sigma_interval(sigma, interval, margin=1.0) == texts


numbers = st.one_of(st.none(), st.floats())


@given(numbers, numbers)
@example(0.0, 2.349085085211821e-100)
@example(10000.0, 2.2250738585072014e-308)
@example(-9999.9999999999, 1e-300)
@example(-9999999.0, 1e-300)
def test_any_number_can_be_rounded(value: float | None, stderr: float | None) -> None:
    for text in (rounding.round_to_error(value, stderr), rounding.format_p_value(value)):
        assert 0 < len(text) <= 14
    assert len(rounding.format_with_stderr(value, stderr)) <= 28


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e3))
def test_rounding_moves_a_value_by_less_than_its_standard_error(
    value: float, stderr: float
) -> None:
    assert abs(float(rounding.round_to_error(value, stderr)) - value) <= 0.051 * stderr + 1e-9


@given(st.lists(st.floats(), min_size=3, max_size=3), st.floats(0.01, 10))
def test_a_shown_sigma_is_on_the_same_side_of_zero(values: list[float], margin: float) -> None:
    sigma, low, high = values
    for number, text in zip(
        values, rounding.format_sigma_interval(sigma, (low, high), margin=margin), strict=True
    ):
        if text == "-":
            assert math.isnan(number)
        else:
            shown = float(text)
            assert (shown > 0) == (number > 0)
            assert (shown < 0) == (number < 0)


written_margins = st.integers(1, 100_000).map(lambda n: n / 10_000)  # as people write them


@given(written_margins, st.floats(-20, 20), st.floats(1e-4, 10), st.floats(1e-4, 10))
@example(1.0, 1.0, 1.0, 1.0)
@example(0.25, 0.25, 0.25, 0.5)
def test_a_shown_sigma_tells_the_same_verdict(
    margin: float, sigma: float, below: float, above: float
) -> None:
    exact = (sigma, sigma - below, sigma + above)
    # nobody reads a tenth decimal
    assume(all(x == margin or abs(x - margin) > 1e-8 for x in exact))
    shown = [float(t) for t in rounding.format_sigma_interval(sigma, exact[1:], margin=margin)]
    assert decide(*shown, margin) == decide(*exact, margin)
