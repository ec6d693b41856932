"""DifferenceTally: where two models' answers to the documents of a task first differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from evalguard.core.reports.generations import FirstDifference, FirstDifferences
from evalguard.core.scorer import Ending
from evalguard.stats.answers.first_difference import (
    Shown,
    find_first_difference,
    judged_documents,
    shows_odds,
)
from evalguard.stats.answers.repeats import compare_figures, mean

_EXAMPLES = 5
_SHOWN = 60  # characters of an example's texts
Labels = Callable[[NDArray[np.int64]], Sequence[str]]


class DifferenceTally:
    """First differences of two models' answers, document by document."""

    def __init__(self) -> None:
        self._positions: list[float] = []
        self._beyond: dict[int, float | None] = {}
        self._odds: dict[int, bool] = {}  # of documents that differ
        self._examples: list[FirstDifference] = []

    def add(
        self,
        doc_id: int,
        texts: tuple[Sequence[str], Sequence[str]],
        tokens: tuple[Shown, Shown],
        *,
        greedy: bool = False,
        ended: tuple[Sequence[Ending], Sequence[Ending]] = ((), ()),
    ) -> None:
        """Take in a document's answers: the base's, and the candidate's in the same order.

        Args:
            tokens: of each text; () where those of a side are not known.
            greedy: both were to take the most probable token each time.
            ended: why each text ended; () where nobody says.
        """
        if texts[0] == texts[1]:
            self._beyond[doc_id] = 0.0
            return
        number = min(map(len, texts))
        own = [of if len(of) >= number else (None,) * number for of in tokens]
        unknown_why: list[Ending] = [""] * number
        why = [of if len(of) >= number else unknown_why for of in ended]
        found = [
            find_first_difference(
                texts[0][at],
                texts[1][at],
                own[0][at],
                own[1][at],
                greedy=greedy,
                ended=(why[0][at], why[1][at]),
            )
            for at in range(number)
        ]
        there = [one for one in found if one is not None]
        positions = [float(one.position) for one in there if one.position is not None]
        unknown = any(one.near_tie is None for one in there)
        if there:
            self._odds[doc_id] = shows_odds(*own)
        self._positions += [mean(positions)] if positions else []
        beyond = [float(one is not None and one.near_tie is False) for one in found]
        self._beyond[doc_id] = None if unknown else mean(beyond)
        self._examples += [
            _with_texts(replace(one, doc_id=doc_id, answer=at), texts[0][at], texts[1][at])
            for at, one in enumerate(found)
            if one is not None
        ]
        if len(self._examples) > 4 * _EXAMPLES:
            self._examples = self._worst()

    def summary(self, *, confidence: float, labels: Labels) -> FirstDifferences:
        """What the documents say together.

        Args:
            labels: of documents, the clusters that they belong to; () where each stands alone.
        """
        known = judged_documents(self._beyond, self._odds)
        values = np.fromiter(known.values(), dtype=np.float64, count=len(known))
        doc_ids = np.fromiter(known, dtype=np.int64, count=len(known))
        return FirstDifferences(
            n=len(self._beyond),
            differ=len(self._odds),
            placed=len(self._positions),
            position=mean(self._positions) if self._positions else None,
            beyond_ties=compare_figures(
                np.zeros(len(values)), values, confidence=confidence, labels=labels(doc_ids)
            )
            if known
            else None,
            examples=tuple(self._worst()),
        )

    @property
    def documents_beyond(self) -> int:
        """Documents of which an answer differs beyond a near tie."""
        return sum(1 for one in self._beyond.values() if one)

    def _worst(self) -> list[FirstDifference]:
        """A few examples: beyond ties first, then unknown ones; the surest of the base before."""
        ranks = {False: 0, None: 1, True: 2}
        return sorted(
            self._examples,
            key=lambda one: (
                ranks[one.near_tie],
                -(one.base_margin if one.base_margin is not None else -math.inf),
                one.doc_id,
                one.answer,
            ),
        )[:_EXAMPLES]


def _with_texts(difference: FirstDifference, base: str, candidate: str) -> FirstDifference:
    """An example with the texts around the first character that is another."""
    pairs = zip(base, candidate, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return replace(
        difference,
        before=base[max(0, same - _SHOWN) : same],
        base_text=base[same : same + _SHOWN],
        candidate_text=candidate[same : same + _SHOWN],
    )
