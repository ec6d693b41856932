"""Broken documents of a comparison, found in what both sides were asked and answered."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.documents.broken_documents import (
    AskedText,
    BrokenDocument,
    BrokenSide,
    broken_document,
)
from evalguard.core.documents.columns import Lists, Numbers, Rows, column_of
from evalguard.core.scores import LOGLIKELIHOODS, ScoreTable, Tables
from evalguard.core.settings import Value
from evalguard.harness.score_tables import TaskScores

Row = Mapping[str, Value]

# Of a text, in nats: what is above this is above every bound, however few tokens the text has.
_NOTHING_BROKEN = -14.0


def find_broken_documents(
    samples: tuple[Mapping[str, TaskScores], Mapping[str, TaskScores]],
    tables: tuple[Tables, Tables],
    *,
    vocabulary: int,
) -> tuple[BrokenDocument, ...]:
    """Find the documents on which the candidate, or both models, are broken.

    Args:
        samples: of the base, and of the candidate, by task; where a side does not show what it
            answered, the scores of single documents say what they can.
        tables: likewise.
        vocabulary: the models' tokens, 0 where unknown.

    Returns:
        Each document once; those on which the candidate alone is broken first, then by task and id.
    """
    found: dict[tuple[str, int], BrokenDocument] = {}
    shown: dict[str, _ShownRows] = {}
    for task in dict.fromkeys((*samples[0], *samples[1])):
        shown[task] = _ShownRows.of(
            *(side[task].samples if task in side else () for side in samples)
        )
        for doc_id in shown[task].suspects():
            base, candidate = shown[task].rows(doc_id)
            if base is not None and candidate is not None:
                broken = broken_document(task, doc_id, _asked(base, candidate, vocabulary))
                if broken is not None:
                    found[task, doc_id] = broken
    theirs = {table.key: table for table in tables[1]}
    for table in tables[0]:
        if table.key in theirs:
            rows = shown.get(table.task, _ShownRows.of((), ()))
            for one in _broken_scores(table, theirs[table.key], rows, vocabulary):
                found.setdefault((one.task, one.doc_id), one)
    sides: tuple[BrokenSide, ...] = ("candidate", "both", "base")
    return tuple(
        sorted(found.values(), key=lambda one: (sides.index(one.side), one.task, one.doc_id))
    )


@dataclass(frozen=True, slots=True)
class _ShownRows:
    """Both sides' rows of each document; a document that was changed between them is two."""

    base: Rows
    candidate: Rows
    of_base: _Places
    of_candidate: _Places

    @classmethod
    def of(cls, base: Rows, candidate: Rows) -> _ShownRows:
        """Find the rows of each document."""
        return cls(base, candidate, _Places.of(base), _Places.of(candidate))

    def rows(self, doc_id: int) -> tuple[Row | None, Row | None]:
        """A document's rows, None where a side does not show it, or shows another one."""
        ours, theirs = self.of_base.find(doc_id), self.of_candidate.find(doc_id)
        one = None if ours is None else self.base[ours]
        other = None if theirs is None else self.candidate[theirs]
        if one is None or other is None or one.get("doc_hash") == other.get("doc_hash"):
            return one, other
        return None, None

    def suspects(self) -> Iterator[int]:
        """Documents of both of which the candidate's log-likelihoods may be broken."""
        column = column_of(self.candidate, "loglikelihood")
        if isinstance(column, Lists) and isinstance(column.items, Numbers):
            values, known = column.items.values, column.items.known
            odd = ~((values > _NOTHING_BROKEN) & (values < math.inf))
            places = np.flatnonzero(odd if known is None else odd & known)
            rows = np.searchsorted(column.bounds, places, side="right") - 1
            suspect = np.unique(rows).tolist()
        else:
            suspect = [at for at, told in enumerate(column) if not _is_sound(told)]
        for row in suspect:
            doc_id = int(self.of_candidate.doc_ids[row])
            if self.of_candidate.find(doc_id) == row and self.of_base.find(doc_id) is not None:
                yield doc_id


@dataclass(frozen=True, slots=True)
class _Places:
    """Rows by doc_id; of one that stands twice the last."""

    doc_ids: NDArray[np.int64]
    order: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows) -> _Places:
        told = (one if isinstance(one, int) else -1 for one in column_of(rows, "doc_id"))
        doc_ids = np.fromiter(told, dtype=np.int64, count=len(rows))
        return cls(doc_ids, np.argsort(doc_ids, kind="stable"))

    def find(self, doc_id: int) -> int | None:
        """The row of a document; None where there is none."""
        at = int(np.searchsorted(self.doc_ids, doc_id, side="right", sorter=self.order)) - 1
        row = int(self.order[at]) if at >= 0 else -1
        return row if row >= 0 and self.doc_ids[row] == doc_id else None


def _is_sound(told: Value) -> bool:
    numbers = _numbers(told)
    return all(one is None or _NOTHING_BROKEN < one < math.inf for one in numbers)


def _asked(base: Row, candidate: Row, vocabulary: int) -> list[AskedText]:
    """What both were asked in a document, and answered; [] where that cannot be compared."""
    ours, theirs = (_numbers(row.get("loglikelihood")) for row in (base, candidate))
    if not ours or len(ours) != len(theirs):
        return []
    asked, of_base = _asked_texts(candidate), _asked_texts(base)
    if [text for _, text in asked] != [text for _, text in of_base]:
        return []  # other texts: pairing refuses them
    wanted = _wanted(candidate, [text for _, text in asked], len(theirs))
    found = []
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one is None or other is None:
            continue
        prompt, text = asked[number] if number < len(asked) else ("", "")
        found.append(
            AskedText(
                base=one,
                candidate=other,
                base_tokens=_token_count(base, number),
                candidate_tokens=_token_count(candidate, number),
                text=text,
                prompt=prompt,
                vocabulary=vocabulary,
                request=number,
                wanted=wanted is None or number in wanted,
            )
        )
    if wanted is not None and len(wanted) > 1 and not _all_broken(found):
        # which of several is the right one is not known: each of them would have to be broken
        found = [replace(one, wanted=False) for one in found]
    return found


def _all_broken(asked: Sequence[AskedText]) -> bool:
    return all(one.broken is not None for one in asked if one.wanted)


def _wanted(row: Row, texts: Sequence[str], count: int) -> frozenset[int] | None:
    """The requests that may be the right option; None where there are no options."""
    if count < 2:
        return None
    target = str(row.get("target") or "").strip()
    found = {number for number, text in enumerate(texts) if target and text.strip() == target}
    if len(found) == count:  # options that differ in what stands before them
        found = set()
    if target.isdecimal() and int(target) < count:
        found.add(int(target))
    return frozenset(found or range(count))


def _listed(told: Value) -> Sequence[Any]:
    return told if isinstance(told, (list, tuple)) else ()


def _numbers(told: Value) -> list[float | None]:
    return [float(one) if isinstance(one, (int, float)) else None for one in _listed(told)]


def _token_count(row: Row, number: int) -> int:
    told = _listed(row.get("token_logprobs"))
    own = told[number] if number < len(told) else None
    return len(own) if own is not None else 0


def _asked_texts(row: Row) -> list[tuple[str, str]]:
    """Of each request what stands before the text that was scored, and that text; "" if unknown.

    A finished run's rows have null for a context, or a whole text, that is the prompt.
    """
    found = []
    for told in _listed(row.get("arguments")):
        asked: Any = json.loads(told) if isinstance(told, str) else []
        texts = [row.get("prompt") if one is None else one for one in asked]
        known = [one if isinstance(one, str) else "" for one in texts]
        found.append((known[0] if len(known) > 1 else "", known[-1] if known else ""))
    return found


def _broken_scores(
    base: ScoreTable,
    candidate: ScoreTable,
    rows: _ShownRows,
    vocabulary: int,
) -> Iterator[BrokenDocument]:
    """Documents whose score of a metric is not finite, or shows a broken one."""
    _, ours, theirs = np.intersect1d(base.doc_ids, candidate.doc_ids, return_indices=True)
    values, others = base.values[ours], candidate.values[theirs]
    is_likelihood = base.aggregation in LOGLIKELIHOODS
    suspect = ~np.isfinite(values) | ~np.isfinite(others)
    if is_likelihood:
        suspect |= others < _NOTHING_BROKEN
    for place in np.flatnonzero(suspect).tolist():
        doc_id = int(base.doc_ids[ours[place]])
        if base.doc_hashes[ours[place]] != candidate.doc_hashes[theirs[place]]:
            continue
        one, other = float(values[place]), float(others[place])
        pair = rows.rows(doc_id)
        if np.isfinite(one) and np.isfinite(other) and None not in pair:
            continue  # its answers were looked at
        asked = _scored_text(one, other, pair, vocabulary)
        metric = "" if is_likelihood else base.metric
        side: BrokenSide | None = asked.broken
        if not np.isfinite(one) and np.isfinite(other):
            side = "base"
        if side is not None:
            yield BrokenDocument.of(base.task, doc_id, asked, side, metric=metric)


def _scored_text(
    base: float, candidate: float, pair: tuple[Row | None, Row | None], vocabulary: int
) -> AskedText:
    """A document's score beside the text that was asked, where either side shows it."""
    row = pair[1] if pair[1] is not None else pair[0]
    asked = [] if row is None else _asked_texts(row)
    prompt, text = asked[0] if len(asked) == 1 else ("", "")
    return AskedText(
        base=base, candidate=candidate, text=text, prompt=prompt, vocabulary=vocabulary
    )
