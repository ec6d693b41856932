"""The root of a function between two numbers, by halving.

By hand: ``scipy.optimize`` takes as long to import as all else that reads a finished run.
"""

from __future__ import annotations

from collections.abc import Callable

# What is left of the distance between the ends is 2^-64 of it, or two neighbouring numbers.
_HALVINGS = 64


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function changes its sign between two numbers.

    Raises:
        ValueError: the function has one sign at both ends.
    """
    at_low, at_high = function(low), function(high)
    if at_low == 0.0:
        return low
    if at_high == 0.0:
        return high
    if (at_low < 0.0) == (at_high < 0.0):
        raise ValueError(f"one sign at both ends: f({low}) = {at_low}, f({high}) = {at_high}")
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        value = function(middle)
        if value == 0.0 or not low < middle < high:
            return middle
        if (value < 0.0) == (at_low < 0.0):
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
