"""Row: one line of the table, what was measured beside its target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Attributes:
    benchmark: what was measured, on what.
    measured, target: as text.
    met: whether the target was met; None where there is none.
    sides: the two sides' own figures, CPU seconds with wall seconds in brackets.
    how: repeats and what else one has to know.
    """

    benchmark: str
    measured: str
    target: str = ""
    met: bool | None = None
    sides: str = ""
    how: str = ""


def at_least(ratio: float, target: float, **about: str) -> Row:
    """A ratio that has to be large."""
    return Row(measured=f"{ratio:.2f}x", target=f">= {target:g}x", met=ratio >= target, **about)


def at_most(value: float, target: float, unit: str = "", **about: str) -> Row:
    """A number that has to be small."""
    return Row(
        measured=f"{value:.3g}{unit}", target=f"<= {target:g}{unit}", met=value <= target, **about
    )


def table(rows: Iterable[Row], seconds: str = "CPU seconds (wall)") -> Iterator[str]:
    """Yield the rows as a Markdown table; ``seconds``: what the sides' figures are."""
    yield f"| benchmark | measured | target | | {seconds} | how |"
    yield "|---|---|---|---|---|---|"
    words = {None: "", True: "met", False: "**missed**"}
    for row in rows:
        cells = (row.benchmark, row.measured, row.target, words[row.met], row.sides, row.how)
        yield f"| {' | '.join(cells)} |"
