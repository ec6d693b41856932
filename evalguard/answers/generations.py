"""How the generated answers of two models differ: length, cut, not found, and of several."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.answers.document_figures import (
    OF_CALLS,
    DocumentAnswers,
    compare_figures,
    differing_parts,
    figure_pairs,
    has_calls,
    mean,
    pass_at_k,
    powers_up_to,
)
from evalguard.answers.first_difference import (
    Shown,
    find_first_difference,
    is_against_odds,
    judged_documents,
    shows_odds,
)
from evalguard.core.distribution_comparison import Figure
from evalguard.core.figures import FIGURES
from evalguard.core.generation_comparison import (
    Cause,
    ChosenTokens,
    DriftPart,
    FigureComparison,
    FilterComparison,
    FirstDifference,
    FirstDifferences,
    GeneratedDocument,
    GenerationComparison,
    PairedFigure,
    RepeatedScore,
    WholeAnswers,
)
from evalguard.core.moments import Array, exact_sum
from evalguard.core.pairing import PairedScores
from evalguard.core.scorer import Ending
from evalguard.core.scores import ScoreTable
from evalguard.stats.clusters import cluster_sums
from evalguard.stats.effective_sample import Share

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
        differences = [
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
        there = [difference for difference in differences if difference is not None]
        positions = [
            float(difference.position) for difference in there if difference.position is not None
        ]
        unknown = any(difference.near_tie is None for difference in there)
        if there:
            self._odds[doc_id] = shows_odds(*own)
        self._positions += [mean(positions)] if positions else []
        beyond = [
            float(difference is not None and difference.near_tie is False)
            for difference in differences
        ]
        self._beyond[doc_id] = None if unknown else mean(beyond)
        self._examples += [
            _with_texts(replace(difference, doc_id=doc_id, answer=at), texts[0][at], texts[1][at])
            for at, difference in enumerate(differences)
            if difference is not None
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
        return sum(1 for share in self._beyond.values() if share)

    def _worst(self) -> list[FirstDifference]:
        """A few examples: beyond ties first, then unknown ones; the surest of the base before."""
        ranks = {False: 0, None: 1, True: 2}
        return sorted(
            self._examples,
            key=lambda example: (
                ranks[example.near_tie],
                -(example.base_margin if example.base_margin is not None else -math.inf),
                example.doc_id,
                example.answer,
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


# A part of a drift is worth a sentence from so many documents on, and from so much of the drift.
_FEWEST_DOCUMENTS, _LEAST_SHARE = 3, 0.5


def compare_generations(
    task: str,
    answers: Iterable[tuple[int, DocumentAnswers, DocumentAnswers]],
    *,
    metrics: Sequence[PairedScores] = (),
    confidence: float = 0.95,
    clusters: Mapping[int, str] | None = None,
    cluster_field: str = "",
) -> GenerationComparison:
    """Compare two models' generated answers to the same documents of a task.

    Args:
        answers: doc_id, those of the base and those of the candidate, at least one text each, of
            the documents that both have, in ascending doc_id.
        metrics: the task's metrics, aligned; of those that are means the drift is parted.
        clusters: doc_id -> label of the documents that belong together; None where each stands
            alone. ``cluster_field`` is the field of the documents that the labels come from.

    Raises:
        ValueError: without any document that both have.
    """
    doc_ids, sides, same, tally = [], (_Side(), _Side()), [], DifferenceTally()
    figures, whole = _FigureTally(), _WholeTally()
    for doc_id, base, candidate in answers:
        doc_ids.append(doc_id)
        figures.add(base, candidate)
        sides[0].add(base)
        sides[1].add(candidate)
        same.append(base.texts[0] == candidate.texts[0])
        tally.add(
            doc_id,
            (base.texts, candidate.texts),
            (base.tokens, candidate.tokens),
            greedy=base.greedy and candidate.greedy,
            ended=(_ended(base), _ended(candidate)),
        )
        whole.add(base, candidate)
    if not doc_ids:
        raise ValueError(f"task '{task}' has no document that both models answered")
    pairs = _Pairs(
        doc_ids=np.array(doc_ids, dtype=np.int64),
        base=sides[0],
        candidate=sides[1],
        clusters=clusters,
        confidence=confidence,
    )
    cut = pairs.figure(_cut_share)
    differences = tally.summary(confidence=confidence, labels=pairs.labels)
    return GenerationComparison(
        task=task,
        n=len(doc_ids),
        repeats=min(side.repeats for side in sides),
        confidence=confidence,
        clusters=None if clusters is None else len(set(pairs.labels(pairs.doc_ids))),
        cluster_field=cluster_field if clusters is not None else "",
        length=pairs.lengths(),
        cut=cut if cut.n else None,
        same_text=pairs.share(same),
        first_difference=differences,
        base_equal=sides[0].equal_share,
        candidate_equal=sides[1].equal_share,
        base_stops=sides[0].ending_in_stop,
        candidate_stops=sides[1].ending_in_stop,
        filters=tuple(_filters(pairs)),
        figures=(
            *(
                figure
                for figure in figures.compare(pairs)
                if figure.name != OF_CALLS or whole.numbers["calling"]
            ),
            *_beyond_ties(differences, tally),
        ),
        repeated=tuple(_repeated(pairs, metrics)),
        parts=tuple(part for paired in metrics for part in _parts(pairs, paired)),
        caveats=_caveats(cut, len(doc_ids)),
        whole=whole.summary,
        base_chosen=sides[0].chosen,
        candidate_chosen=sides[1].chosen,
    )


Known = GeneratedDocument | None
_BEYOND_TIES = "first_difference_beyond_ties"  # the tally's
# Shares of the answers; those that have a field of their own are not among them.
_FIGURES = tuple(
    figure.name
    for figure in FIGURES.values()
    if figure.unit == "share" and not figure.per_filter and figure.name not in ("cut", _BEYOND_TIES)
)


class _FigureTally:
    """Figures of both models' answers, document by document; those of many are often the same."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[float | None, float | None], ...], int] = {}
        self._of_documents = array("q")

    def add(self, base: DocumentAnswers, candidate: DocumentAnswers) -> None:
        """Take in the next document's answers."""
        values = tuple(figure_pairs(_FIGURES, base, candidate))
        self._of_documents.append(self._numbers.setdefault(values, len(self._numbers)))

    def compare(self, pairs: _Pairs) -> Iterator[FigureComparison]:
        """Each figure that is known of some documents, over these."""
        values = np.array([*self._numbers], dtype=np.float64)  # None is NaN
        for number, name in enumerate(_FIGURES):
            ours, theirs = values[self._of_documents, number].T
            known = ~(np.isnan(ours) | np.isnan(theirs))
            if not known.any():
                continue
            ours, theirs = ours[known], theirs[known]
            yield FigureComparison(
                name=name,
                figure=compare_figures(
                    ours,
                    theirs,
                    confidence=pairs.confidence,
                    labels=pairs.labels(pairs.doc_ids[known]),
                ),
                candidate_only=int((theirs > ours).sum()),
                base_only=int((theirs < ours).sum()),
            )


def _beyond_ties(found: FirstDifferences, tally: DifferenceTally) -> Iterator[FigureComparison]:
    """The figure that the tally of first differences has."""
    if found.beyond_ties is not None:
        yield FigureComparison(
            name=_BEYOND_TIES,
            figure=found.beyond_ties,
            candidate_only=tally.documents_beyond,
            base_only=0,
        )


def _ended(of: DocumentAnswers) -> Sequence[Ending]:
    return of.known.ended if of.known is not None else ()


class _WholeTally:
    """Whole answers of both models, document by document."""

    def __init__(self) -> None:
        self.numbers = Counter[str]()

    def add(self, base: DocumentAnswers, candidate: DocumentAnswers) -> None:
        """Take in the next document's answers."""
        parts = differing_parts(base, candidate)
        calling = has_calls(base) or has_calls(candidate)
        self.numbers.update(
            {
                "same": not parts,
                "drawn": base.drawn or candidate.drawn,
                "calling": calling,
                "same_calls": calling and "calls" not in parts,
                "texts": "text" in parts,
                "thinking": "thinking" in parts,
                "endings": "ending" in parts,
                "forms": "form" in parts,
            }
        )

    @property
    def summary(self) -> WholeAnswers:
        """How many documents there are of each kind."""
        return WholeAnswers(**self.numbers)


OfKnown = Callable[[Known], float | None]


class _Side:
    """One model's answers, document by document; what is known of many is often the same.

    Attributes:
        known: what is known of answers, each once, in the order of the documents.
        repeats: the fewest answers to a document.
        ending_in_stop: documents with a text that ended in a stop sequence.
        chosen: of greedy answers, whether the tokens were the most probable ones.
    """

    def __init__(self) -> None:
        self.known: list[Known] = []
        self.repeats = self.ending_in_stop = 0
        self._numbers: dict[int, int] = {}  # of ``known``, by identity
        self._of_documents: list[int] = []
        self._lengths: list[float] = []
        self._several = self._equal = 0
        self._shown = self._against_odds = 0

    def add(self, of: DocumentAnswers) -> None:
        """Take in the next document's answers."""
        number = self._numbers.get(id(of.known))
        if number is None:
            number = self._numbers[id(of.known)] = len(self.known)
            self.known.append(of.known)
        self._of_documents.append(number)
        self.ending_in_stop += of.ends_in_stop
        if of.greedy and of.tokens and shows_odds(of.tokens):
            self._shown += 1
            self._against_odds += any(
                tokens is not None and is_against_odds(tokens) for tokens in of.tokens
            )
        texts, repeats = of.texts, of.repeats
        self.repeats = min(self.repeats, repeats) if self._lengths else repeats
        if len(texts) == 1:
            self._lengths.append(float(len(texts[0])))
            return
        self._lengths.append(mean([float(len(text)) for text in texts]))
        if len(texts) == repeats:
            self._several += 1
            self._equal += len(set(texts)) == 1

    @property
    def lengths(self) -> Array:
        """Mean characters of each document's texts."""
        return np.array(self._lengths)

    @property
    def chosen(self) -> ChosenTokens | None:
        """Greedy answers that show their odds; None where none does."""
        if not self._shown:
            return None
        return ChosenTokens(shown=self._shown, against_odds=self._against_odds)

    @property
    def equal_share(self) -> float | None:
        """Share of the documents asked several times whose answers are all the same text."""
        return self._equal / self._several if self._several else None

    def values(self, of_known: OfKnown) -> tuple[Array, NDArray[np.bool_]]:
        """A figure of each document, and whether there is one."""
        figures = [of_known(known) for known in self.known]
        values = np.array(
            [math.nan if figure is None else figure for figure in figures], dtype=np.float64
        )
        there = np.array([figure is not None for figure in figures], dtype=np.bool_)
        return values[self._of_documents], there[self._of_documents]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Both models' answers to the same documents, in ascending doc_id."""

    doc_ids: NDArray[np.int64]
    base: _Side
    candidate: _Side
    clusters: Mapping[int, str] | None
    confidence: float

    def labels(self, doc_ids: NDArray[np.int64]) -> tuple[str, ...]:
        if self.clusters is None:
            return ()
        return tuple(self.clusters[doc] for doc in doc_ids.tolist())

    def lengths(self) -> PairedFigure:
        """Characters of the texts."""
        return compare_figures(
            self.base.lengths,
            self.candidate.lengths,
            confidence=self.confidence,
            labels=self.labels(self.doc_ids),
        )

    def figure(self, of_known: OfKnown) -> PairedFigure:
        """A figure of each document, over those where both models have it."""
        (ours, ours_known), (theirs, theirs_known) = (
            side.values(of_known) for side in (self.base, self.candidate)
        )
        both = ours_known & theirs_known
        return compare_figures(
            ours[both],
            theirs[both],
            confidence=self.confidence,
            labels=self.labels(self.doc_ids[both]),
        )

    def share(self, hits: Sequence[bool]) -> Figure:
        """Share of the documents, exact binomial of the effective number of clusters."""
        values, labels = np.array(hits, dtype=np.float64), self.labels(self.doc_ids)
        share = Share(hits=values, positions=np.ones_like(values))
        if labels:
            sums = cluster_sums(values, None, labels)
            share = Share(hits=sums.values, positions=sums.weights)
        if len(self.doc_ids) < 2:
            return Figure(value=share.value)
        return Figure(value=share.value, interval=share.interval(confidence=self.confidence))


def _cut_share(known: Known, most: int | None = None) -> float | None:
    """Share of a document's (first) answers cut at the token limit; None where any is unknown."""
    ended = known.ended[:most] if known is not None else ("",)
    return None if "" in ended else mean([float(reason == "length") for reason in ended])


def _missing_share(name: str, most: int | None = None) -> OfKnown:
    def share(known: Known) -> float | None:
        missing = known.missing.get(name) if known is not None else None
        return mean([float(absent) for absent in missing[:most]]) if missing else None

    return share


def _filters(pairs: _Pairs) -> Iterator[FilterComparison]:
    for name in _names(pairs, lambda known: known.missing):
        of_known = _missing_share(name)
        figure = pairs.figure(of_known)
        if not figure.n:
            continue
        larger, smaller = _sides(pairs, of_known)
        yield FilterComparison(
            filter=name, missing=figure, candidate_only=len(larger), base_only=len(smaller)
        )


def _names(
    pairs: _Pairs, of: Callable[[GeneratedDocument], Mapping[str, object]]
) -> dict[str, None]:
    """Filters that both models have something of, in their order."""
    names_by_side = [
        {name: None for known in side.known if known for name in of(known)}
        for side in (pairs.base, pairs.candidate)
    ]
    return {name: None for name in names_by_side[0] if name in names_by_side[1]}


def _sides(pairs: _Pairs, of_known: OfKnown) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Documents where a share is larger of the candidate, and where it is larger of the base."""
    (ours, ours_known), (theirs, theirs_known) = (
        side.values(of_known) for side in (pairs.base, pairs.candidate)
    )
    differing = ours_known & theirs_known & (ours != theirs)
    larger = theirs > ours
    return pairs.doc_ids[differing & larger], pairs.doc_ids[differing & ~larger]


def _repeated(pairs: _Pairs, metrics: Sequence[PairedScores]) -> Iterator[RepeatedScore]:
    better = {
        (paired.base.filter, paired.base.metric): paired.base.higher_is_better for paired in metrics
    }
    for name in _names(pairs, lambda known: known.scores):
        values = {
            metric: None
            for known in pairs.base.known
            if known
            for metric in known.scores.get(name, {})
        }
        for metric in values:
            yield from _of_metric(pairs, name, metric, better.get((name, metric), True))


def _own_scores(known: Known, name: str, metric: str) -> Sequence[float]:
    return known.scores.get(name, {}).get(metric, ()) if known is not None else ()


def _of_metric(
    pairs: _Pairs, name: str, metric: str, higher_is_better: bool
) -> Iterator[RepeatedScore]:
    """mean@k over all answers; pass@k too where an answer is right or wrong."""

    def scores(known: Known) -> Sequence[float]:
        return _own_scores(known, name, metric)

    of_both = [
        own
        for side in (pairs.base, pairs.candidate)
        for known in side.known
        if (own := scores(known))
    ]
    n = min(map(len, of_both), default=0)
    if n < 2:
        return

    def mean_of(known: Known) -> float | None:
        own = scores(known)
        return mean(own) if own else None

    yield RepeatedScore(filter=name, metric=metric, kind="mean", k=n, score=pairs.figure(mean_of))
    if not higher_is_better or any(value not in (0.0, 1.0) for own in of_both for value in own):
        return
    for k in powers_up_to(n):

        def pass_of(known: Known, k: int = k) -> float | None:
            own = scores(known)
            return pass_at_k(len(own), int(sum(own)), k) if own else None

        yield RepeatedScore(
            filter=name, metric=metric, kind="pass", k=k, score=pairs.figure(pass_of)
        )


def _parts(pairs: _Pairs, paired: PairedScores) -> Iterator[DriftPart]:
    table = paired.base
    if table.aggregation != "mean" or not table.n or not np.isfinite(paired.d).all():
        return
    drift = exact_sum(paired.d) / table.n
    if drift == 0.0:
        return
    side: Literal["base", "candidate"] = "candidate" if drift > 0.0 else "base"
    sign = -1.0 if table.higher_is_better else 1.0
    most = None if _is_averaged(pairs, paired) else 1
    causes: tuple[tuple[Cause, OfKnown], ...] = (
        ("missing", _missing_share(table.filter, most)),
        ("cut", lambda known: _cut_share(known, most)),
    )
    for cause, of_known in causes:
        documents = _sides(pairs, of_known)[0 if side == "candidate" else 1]
        chosen = np.isin(table.doc_ids, documents)
        part = exact_sum(paired.d[chosen]) / table.n
        if chosen.any() and part / drift > 0.0:
            yield DriftPart(
                filter=table.filter,
                metric=table.metric,
                cause=cause,
                side=side,
                documents=int(chosen.sum()),
                part=sign * part,
                drift=sign * drift,
            )


def _is_averaged(pairs: _Pairs, paired: PairedScores) -> bool:
    """Whether a metric is an average of all answers to a document, not that of the first one."""
    for table, side in ((paired.base, pairs.base), (paired.candidate, pairs.candidate)):

        def first(known: Known, table: ScoreTable = table) -> float | None:
            return next(iter(_own_scores(known, table.filter, table.metric)), None)

        values, there = side.values(first)
        if not there.any():
            continue
        _, ours, own = np.intersect1d(table.doc_ids, pairs.doc_ids, return_indices=True)
        if bool(((table.values[ours] != values[own]) & there[own]).any()):
            return True
    return False


def parts_caveat(parts: Sequence[DriftPart]) -> str:
    """Say that at least half of one metric's drift comes from answers that were cut or not found.

    "" where it does not, or where that is fewer than three documents.
    """
    notable = [
        part for part in parts if part.share >= _LEAST_SHARE and part.documents >= _FEWEST_DOCUMENTS
    ]
    if not notable:
        return ""
    drift, kind = notable[0].drift, "loss" if notable[0].side == "candidate" else "gain"
    texts = {
        "missing": "in which no answer was found",
        "cut": "whose answer was cut at the token limit",
    }
    listing = "; ".join(
        f"{abs(part.part):.3g} come from {part.documents:,} documents {texts[part.cause]}, of the "
        f"{part.side} only"
        for part in notable
    )
    return (
        f"of the {kind} of {abs(drift):.3g}, {listing}: a {kind} of form, so read these answers "
        "before it is taken for what the model can do"
    )


def _caveats(cut: PairedFigure, n: int) -> tuple[str, ...]:
    if not 0 < cut.n < n:
        return ()
    return (
        f"whether an answer was cut at the token limit is known of {cut.n:,} of {n:,} documents",
    )
