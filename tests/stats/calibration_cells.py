"""Cells of the calibration, and what is beyond chance in them."""

from __future__ import annotations

from benchmarks.calibration import ALL_METHODS


def cells(method, *, n):
    return [cell for cell in ALL_METHODS[method]() if cell.n == n]
