"""FigureShare: what share of a model's generated answers a figure counts, on one task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from evalguard.core.distribution_comparison import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureShare:
    """A figure of one model's answers to a task, beside what is not known of it.

    Attributes:
        filter: of a figure that is of what a filter finds; "text": of whole texts.
        metric: the figure's name.
        figure: share of the answers, a document counting once, with its interval; without a value
            where it is known of no document, and ``unknown_why`` says why.
        n: documents that it is known of, ``unknown`` those that it is not.
        units: independent ones among the n: documents, or clusters of them.
        confidence: of the interval.
    """

    task: str
    filter: str
    metric: str
    figure: Figure
    n: int
    unknown: int = 0
    units: int = 0
    clustered: bool = False
    confidence: float = 0.95
    unknown_why: str = ""

    def worst(self, kind: Literal["upper", "lower"]) -> float:
        """The share if every document that it is not known of were bad, for a limit of a kind."""
        bad = self.unknown if kind == "upper" else 0
        return ((self.figure.value or 0.0) * self.n + bad) / (self.n + self.unknown)

    @property
    def known_text(self) -> str:
        """Of how many documents it is known: "480 documents; it is not known of 20 more"."""
        noun = "document" if self.n == 1 else "documents"
        return f"{self.n:,} {noun}; it is not known of {self.unknown:,} more"

    @property
    def unseen_text(self) -> str:
        """What n documents cannot show: a kind of document so rare that they may hold none of it.

        A share p is missing from n documents with chance (1 - p)^n (the rule of three).
        """
        return unseen_kind(self.units, clustered=self.clustered, confidence=self.confidence)


def smallest_shown(n: int, *, chance: float) -> float:
    """The smallest share of which n documents hold one with a chance: 1 - (1 - p)^n of it."""
    return -math.expm1(math.log1p(-chance) / n)


def unseen_kind(n: int, *, clustered: bool, confidence: float) -> str:
    """Say how rare a kind of document is that n documents or clusters may hold none of."""
    noun = "cluster" if clustered else "document"
    share = smallest_shown(n, chance=confidence)
    return (
        f"{n:,} {noun}{'' if n == 1 else 's'} may hold none of a kind that is rarer than 1 in "
        f"{math.floor(1.0 / share):,}"
    )
