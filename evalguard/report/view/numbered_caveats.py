"""Caveats: every one once, numbered, with the metrics that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.core.comparison import Comparison
from evalguard.report.words.metric_labels import (
    metric_label,
)
from evalguard.report.words.plain_text import printable

_MOST_LABELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """A caveat of metrics, or a note about the whole run.

    ``where`` names the metrics ("lastword perplexity, acc; choice acc"), "" for all of several or
    for the whole run; ``line`` is both together.
    """

    number: int
    where: str
    text: str

    @property
    def line(self) -> str:
        """The text, after the metrics that it belongs to."""
        return f"{self.where}: {self.text}" if self.where else self.text


def number_caveats(visible: Sequence[Comparison], notes: Sequence[str]) -> tuple[Caveat, ...]:
    """Number every caveat of the comparisons that are shown, then every note."""
    places: dict[str, list[Comparison]] = {}
    for comparison in visible:
        for caveat in dict.fromkeys((*comparison.caveats, *comparison.provenance)):
            places.setdefault(printable(caveat).strip(), []).append(comparison)
    whole = len(visible)
    found = [
        ("" if len(at) == whole > 1 else _metric_names(at), text) for text, at in places.items()
    ]
    found += [("", note) for note in dict.fromkeys(map(printable, notes)) if note not in places]
    return tuple(
        Caveat(number=number, where=where, text=text)
        for number, (where, text) in enumerate(found, start=1)
    )


def _metric_names(comparisons: Sequence[Comparison]) -> str:
    """Return "lastword perplexity, acc; choice acc": each task once, and not too many metrics."""
    tasks: dict[str, list[str]] = {}
    for comparison in comparisons[:_MOST_LABELS]:
        tasks.setdefault(printable(comparison.task), []).append(metric_label(comparison))
    shown = "; ".join(f"{task} {', '.join(metrics)}" for task, metrics in tasks.items())
    more = len(comparisons) - _MOST_LABELS
    return shown + (f" and {more} more" if more > 0 else "")
