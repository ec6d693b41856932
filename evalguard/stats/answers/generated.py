"""How the generated answers of two models differ: length, cut, not found, and of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evalguard.core.distribution_comparison import Figure
from evalguard.core.paired_scores import PairedScores
from evalguard.core.reports.generations import (
    Cause,
    DriftPart,
    FilterComparison,
    GeneratedDocument,
    GenerationComparison,
    PairedFigure,
    RepeatedScore,
)
from evalguard.stats.answers.repeats import compare_figures, mean, pass_at_k, powers_up_to
from evalguard.stats.clusters import cluster_sums
from evalguard.stats.effective_sample import Share
from evalguard.stats.moments import exact_sum

# A part of a drift is worth a sentence from so many documents on, and from so much of the drift.
_FEWEST_DOCUMENTS, _LEAST_SHARE = 3, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentAnswers:
    """One model's answers to one document: their texts, and what is known beside them."""

    texts: Sequence[str]
    known: GeneratedDocument | None = None

    @property
    def repeats(self) -> int:
        """Answers to each of its requests; texts, where nothing says that there are several."""
        of_filters = self.known.missing.values() if self.known is not None else ()
        return next((len(missing) for missing in of_filters), len(self.texts))


Answers = Mapping[int, DocumentAnswers]


def compare_generations(
    task: str,
    base: Answers,
    candidate: Answers,
    *,
    metrics: Sequence[PairedScores] = (),
    confidence: float = 0.95,
    clusters: Mapping[int, str] | None = None,
    cluster_field: str = "",
) -> GenerationComparison:
    """Compare two models' generated answers to the same documents of a task.

    Args:
        base, candidate: by doc_id; documents that only one has are left out.
        metrics: the task's metrics, aligned; of those that are means the drift is parted.
        clusters: doc_id -> label of the documents that belong together; None where each stands
            alone. ``cluster_field`` is the field of the documents that the labels come from.

    Raises:
        ValueError: without any document that both have.
    """
    doc_ids = sorted(
        doc for doc, of in base.items() if of.texts and doc in candidate and candidate[doc].texts
    )
    if not doc_ids:
        raise ValueError(f"task '{task}' has no document that both models answered")
    pairs = _Pairs(
        doc_ids=doc_ids, base=base, candidate=candidate, clusters=clusters, confidence=confidence
    )
    repeats = min(side[doc].repeats for side in (base, candidate) for doc in doc_ids)
    cut = pairs.figure(_cut_share)
    return GenerationComparison(
        task=task,
        n=len(doc_ids),
        repeats=repeats,
        confidence=confidence,
        clusters=None if clusters is None else len(set(pairs.labels(doc_ids))),
        cluster_field=cluster_field if clusters is not None else "",
        length=pairs.figure(lambda of: mean([float(len(text)) for text in of.texts])),
        cut=cut if cut.n else None,
        same_text=pairs.share([base[doc].texts[0] == candidate[doc].texts[0] for doc in doc_ids]),
        base_equal=_equal_share(base, doc_ids),
        candidate_equal=_equal_share(candidate, doc_ids),
        filters=tuple(_filters(pairs)),
        repeated=tuple(_repeated(pairs, metrics)),
        parts=tuple(part for paired in metrics for part in _parts(pairs, paired)),
        caveats=_caveats(cut, len(doc_ids)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Both models' answers to the same documents, in ascending doc_id."""

    doc_ids: Sequence[int]
    base: Answers
    candidate: Answers
    clusters: Mapping[int, str] | None
    confidence: float

    def labels(self, doc_ids: Sequence[int]) -> tuple[str, ...]:
        if self.clusters is None:
            return ()
        return tuple(self.clusters[doc] for doc in doc_ids)

    def figure(self, of_one: Callable[[DocumentAnswers], float | None]) -> PairedFigure:
        """A figure of each document, over those where both models have it."""
        ours, theirs, known = [], [], []
        for doc in self.doc_ids:
            one, other = of_one(self.base[doc]), of_one(self.candidate[doc])
            if one is not None and other is not None:
                ours.append(one)
                theirs.append(other)
                known.append(doc)
        return compare_figures(ours, theirs, confidence=self.confidence, labels=self.labels(known))

    def share(self, hits: Sequence[bool]) -> Figure:
        """Share of the documents, exact binomial of the effective number of clusters."""
        labels = self.labels(self.doc_ids) or tuple(map(str, self.doc_ids))
        sums = cluster_sums(np.array(hits, dtype=np.float64), None, labels)
        share = Share(hits=sums.values, positions=sums.weights)
        if len(self.doc_ids) < 2:
            return Figure(value=share.value)
        return Figure(value=share.value, interval=share.interval(confidence=self.confidence))


def _cut_share(of: DocumentAnswers, most: int | None = None) -> float | None:
    """Share of a document's (first) answers cut at the token limit; None where any is unknown."""
    ended = of.known.ended[:most] if of.known is not None else ("",)
    return None if "" in ended else mean([float(one == "length") for one in ended])


def _missing_share(name: str, most: int | None = None) -> Callable[[DocumentAnswers], float | None]:
    def share(of: DocumentAnswers) -> float | None:
        missing = of.known.missing.get(name) if of.known is not None else None
        return mean([float(one) for one in missing[:most]]) if missing else None

    return share


def _equal_share(side: Answers, doc_ids: Sequence[int]) -> float | None:
    asked = [side[doc] for doc in doc_ids]
    several = [of.texts for of in asked if 1 < len(of.texts) == of.repeats]
    if not several:
        return None
    return sum(len(set(texts)) == 1 for texts in several) / len(several)


def _filters(pairs: _Pairs) -> Iterator[FilterComparison]:
    for name in _names(pairs, lambda known: known.missing):
        of_one = _missing_share(name)
        figure = pairs.figure(of_one)
        if not figure.n:
            continue
        more, less = _sides(pairs, of_one)
        yield FilterComparison(
            filter=name, missing=figure, candidate_only=len(more), base_only=len(less)
        )


def _names(
    pairs: _Pairs, of: Callable[[GeneratedDocument], Mapping[str, object]]
) -> dict[str, None]:
    """Filters that both models have something of, in their order."""
    found = [
        {name: None for doc in pairs.doc_ids if (known := side[doc].known) for name in of(known)}
        for side in (pairs.base, pairs.candidate)
    ]
    return {name: None for name in found[0] if name in found[1]}


def _sides(
    pairs: _Pairs, of_one: Callable[[DocumentAnswers], float | None]
) -> tuple[frozenset[int], frozenset[int]]:
    """Documents where a share is larger of the candidate, and where it is larger of the base."""
    more: set[int] = set()
    less: set[int] = set()
    for doc in pairs.doc_ids:
        ours, theirs = of_one(pairs.base[doc]), of_one(pairs.candidate[doc])
        if ours is not None and theirs is not None and ours != theirs:
            (more if theirs > ours else less).add(doc)
    return frozenset(more), frozenset(less)


def _repeated(pairs: _Pairs, metrics: Sequence[PairedScores]) -> Iterator[RepeatedScore]:
    better = {(one.base.filter, one.base.metric): one.base.higher_is_better for one in metrics}
    for name in _names(pairs, lambda known: known.scores):
        values = {
            metric: None
            for doc in pairs.doc_ids
            if (known := pairs.base[doc].known)
            for metric in known.scores.get(name, {})
        }
        for metric in values:
            yield from _of_metric(pairs, name, metric, better.get((name, metric), True))


def _of_metric(
    pairs: _Pairs, name: str, metric: str, higher_is_better: bool
) -> Iterator[RepeatedScore]:
    """mean@k over all answers; pass@k too where an answer is right or wrong."""

    def scores(of: DocumentAnswers) -> Sequence[float]:
        return of.known.scores.get(name, {}).get(metric, ()) if of.known is not None else ()

    of_both = [
        own
        for doc in pairs.doc_ids
        for side in (pairs.base, pairs.candidate)
        if (own := scores(side[doc]))
    ]
    n = min(map(len, of_both), default=0)
    if n < 2:
        return

    def mean_of(of: DocumentAnswers) -> float | None:
        own = scores(of)
        return mean(own) if own else None

    yield RepeatedScore(filter=name, metric=metric, kind="mean", k=n, score=pairs.figure(mean_of))
    if not higher_is_better or any(value not in (0.0, 1.0) for own in of_both for value in own):
        return
    for k in powers_up_to(n):

        def pass_of(of: DocumentAnswers, k: int = k) -> float | None:
            own = scores(of)
            return pass_at_k(len(own), int(sum(own)), k) if own else None

        yield RepeatedScore(
            filter=name, metric=metric, kind="pass", k=k, score=pairs.figure(pass_of)
        )


def _parts(pairs: _Pairs, paired: PairedScores) -> Iterator[DriftPart]:
    table = paired.base
    if table.aggregation != "mean" or not np.isfinite(paired.d).all():
        return
    drift = exact_sum(paired.d) / table.n
    if drift == 0.0:
        return
    side: Literal["base", "candidate"] = "candidate" if drift > 0.0 else "base"
    sign = -1.0 if table.higher_is_better else 1.0
    most = None if _is_averaged(pairs, paired) else 1
    causes: tuple[tuple[Cause, Callable[[DocumentAnswers], float | None]], ...] = (
        ("missing", _missing_share(table.filter, most)),
        ("cut", lambda of: _cut_share(of, most)),
    )
    for cause, of_one in causes:
        documents = _sides(pairs, of_one)[0 if side == "candidate" else 1]
        chosen = np.isin(table.doc_ids, sorted(documents))
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
        for doc, value in zip(table.doc_ids.tolist(), table.values.tolist(), strict=True):
            known = side[doc].known if doc in side else None
            own = known.scores.get(table.filter, {}).get(table.metric, ()) if known else ()
            if own and value != own[0]:
                return True
    return False


def parts_caveat(parts: Sequence[DriftPart]) -> str:
    """Say that at least half of one metric's drift comes from answers that were cut or not found.

    "" where it does not, or where that is fewer than three documents.
    """
    told = [
        one for one in parts if one.share >= _LEAST_SHARE and one.documents >= _FEWEST_DOCUMENTS
    ]
    if not told:
        return ""
    drift, kind = told[0].drift, "loss" if told[0].side == "candidate" else "gain"
    texts = {
        "missing": "in which no answer was found",
        "cut": "whose answer was cut at the token limit",
    }
    found = "; ".join(
        f"{abs(one.part):.3g} come from {one.documents:,} documents {texts[one.cause]}, of the "
        f"{one.side} only"
        for one in told
    )
    return (
        f"of the {kind} of {abs(drift):.3g}, {found}: a {kind} of form, so read these answers "
        "before it is taken for what the model can do"
    )


def _caveats(cut: PairedFigure, n: int) -> tuple[str, ...]:
    if not 0 < cut.n < n:
        return ()
    return (
        f"whether an answer was cut at the token limit is known of {cut.n:,} of {n:,} documents",
    )
