"""Broken documents of a comparison, found in what both sides were asked and answered."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.answers.compared_generations import Samples, pair_answers
from evalguard.answers.document_figures import DocumentAnswers
from evalguard.answers.text_faults import (
    FAULTS,
    TextFault,
    find_cut_words,
    find_fault,
    find_same_errors,
    find_same_texts,
    find_written_nulls,
)
from evalguard.core.broken_documents import AskedText, BrokenDocument, BrokenSide, broken_document
from evalguard.core.chat import take_apart
from evalguard.core.document_columns import Lists, Numbers, Rows, column_of
from evalguard.core.findings import Finding, Quote, QuotedSide
from evalguard.core.scorer import LENGTH_NAMES
from evalguard.core.scores import LOGLIKELIHOODS, ScoreTable, Tables
from evalguard.core.settings import Value
from evalguard.engine.first_answers import LOST_END
from evalguard.harness.score_tables import TaskScores
from evalguard.stats.binary import mcnemar_exact
from evalguard.stats.compare_scores import fail_without_numbers
from evalguard.stats.estimate import binomial_lower_tail
from evalguard.stats.judgement import MetricComparison
from evalguard.stats.uninformative import NothingKnown

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
    documents: dict[tuple[str, int], BrokenDocument] = {}
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
                    documents[task, doc_id] = broken
    theirs = {table.key: table for table in tables[1]}
    for table in tables[0]:
        if table.key in theirs:
            rows = shown.get(table.task, _ShownRows.of((), ()))
            for document in _broken_scores(table, theirs[table.key], rows, vocabulary):
                documents.setdefault((document.task, document.doc_id), document)
    sides: tuple[BrokenSide, ...] = ("candidate", "both", "base")
    return tuple(
        sorted(
            documents.values(),
            key=lambda document: (sides.index(document.side), document.task, document.doc_id),
        )
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
        base_row = None if ours is None else self.base[ours]
        candidate_row = None if theirs is None else self.candidate[theirs]
        if (
            base_row is None
            or candidate_row is None
            or base_row.get("doc_hash") == candidate_row.get("doc_hash")
        ):
            return base_row, candidate_row
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
            suspect = [at for at, value in enumerate(column) if not _is_sound(value)]
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
        ids = (doc_id if isinstance(doc_id, int) else -1 for doc_id in column_of(rows, "doc_id"))
        doc_ids = np.fromiter(ids, dtype=np.int64, count=len(rows))
        return cls(doc_ids, np.argsort(doc_ids, kind="stable"))

    def find(self, doc_id: int) -> int | None:
        """The row of a document; None where there is none."""
        at = int(np.searchsorted(self.doc_ids, doc_id, side="right", sorter=self.order)) - 1
        row = int(self.order[at]) if at >= 0 else -1
        return row if row >= 0 and self.doc_ids[row] == doc_id else None


def _is_sound(told: Value) -> bool:
    numbers = _numbers(told)
    return all(number is None or _NOTHING_BROKEN < number < math.inf for number in numbers)


def _asked(base: Row, candidate: Row, vocabulary: int) -> list[AskedText]:
    """What both were asked in a document, and answered; [] where that cannot be compared."""
    ours, theirs = (_numbers(row.get("loglikelihood")) for row in (base, candidate))
    if not ours or len(ours) != len(theirs):
        return []
    asked, of_base = _asked_texts(candidate), _asked_texts(base)
    if [text for _, text in asked] != [text for _, text in of_base]:
        return []  # other texts: pairing refuses them
    wanted = _wanted(candidate, [text for _, text in asked], len(theirs))
    compared = []
    for number, (base_value, candidate_value) in enumerate(zip(ours, theirs, strict=True)):
        if base_value is None or candidate_value is None:
            continue
        prompt, text = asked[number] if number < len(asked) else ("", "")
        compared.append(
            AskedText(
                base=base_value,
                candidate=candidate_value,
                base_tokens=_token_count(base, number),
                candidate_tokens=_token_count(candidate, number),
                text=text,
                prompt=prompt,
                vocabulary=vocabulary,
                request=number,
                wanted=wanted is None or number in wanted,
            )
        )
    if wanted is not None and len(wanted) > 1 and not _all_broken(compared):
        # which of several is the right one is not known: each of them would have to be broken
        compared = [replace(asked_text, wanted=False) for asked_text in compared]
    return compared


def _all_broken(asked: Sequence[AskedText]) -> bool:
    return all(text.broken is not None for text in asked if text.wanted)


def _wanted(row: Row, texts: Sequence[str], count: int) -> frozenset[int] | None:
    """The requests that may be the right option; None where there are no options."""
    if count < 2:
        return None
    target = str(row.get("target") or "").strip()
    matches = {number for number, text in enumerate(texts) if target and text.strip() == target}
    if len(matches) == count:  # options that differ in what stands before them
        matches = set()
    if target.isdecimal() and int(target) < count:
        matches.add(int(target))
    return frozenset(matches or range(count))


def _listed(told: Value) -> Sequence[Any]:
    return told if isinstance(told, (list, tuple)) else ()


def _numbers(told: Value) -> list[float | None]:
    return [float(value) if isinstance(value, (int, float)) else None for value in _listed(told)]


def _token_count(row: Row, number: int) -> int:
    logprobs = _listed(row.get("token_logprobs"))
    own = logprobs[number] if number < len(logprobs) else None
    return len(own) if own is not None else 0


def _asked_texts(row: Row) -> list[tuple[str, str]]:
    """Of each request what stands before the text that was scored, and that text; "" if unknown.

    A finished run's rows have null for a context, or a whole text, that is the prompt.
    """
    pairs = []
    for arguments in _listed(row.get("arguments")):
        asked: Any = json.loads(arguments) if isinstance(arguments, str) else []
        texts = [row.get("prompt") if argument is None else argument for argument in asked]
        known = [text if isinstance(text, str) else "" for text in texts]
        pairs.append((known[0] if len(known) > 1 else "", known[-1] if known else ""))
    return pairs


def _broken_scores(
    base: ScoreTable,
    candidate: ScoreTable,
    rows: _ShownRows,
    vocabulary: int,
) -> Iterator[BrokenDocument]:
    """Documents whose score of a metric is not finite, or shows a broken one."""
    _, ours, theirs = np.intersect1d(base.doc_ids, candidate.doc_ids, return_indices=True)
    values, candidate_values = base.values[ours], candidate.values[theirs]
    is_likelihood = base.aggregation in LOGLIKELIHOODS
    suspect = ~np.isfinite(values) | ~np.isfinite(candidate_values)
    if is_likelihood:
        suspect |= candidate_values < _NOTHING_BROKEN
    for index in np.flatnonzero(suspect).tolist():
        doc_id = int(base.doc_ids[ours[index]])
        if base.doc_hashes[ours[index]] != candidate.doc_hashes[theirs[index]]:
            continue
        base_value, candidate_value = float(values[index]), float(candidate_values[index])
        pair = rows.rows(doc_id)
        if np.isfinite(base_value) and np.isfinite(candidate_value) and None not in pair:
            continue  # its answers were looked at
        asked = _scored_text(base_value, candidate_value, pair, vocabulary)
        metric = "" if is_likelihood else base.metric
        side: BrokenSide | None = asked.broken
        if not np.isfinite(base_value) and np.isfinite(candidate_value):
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


# A fault is named from 15% of the documents on: of one that 20% of all answers have, 100 documents
# show fewer in 1 of 12 cases.
_NAMED, _FEWEST_NAMED = 0.15, 3
# Nearly all: as many as the documents may show where it is 90% (one-sided, 95%), four fifths at
# least.
_NEARLY_ALL, _LEAST_OF_ALL, _RARE = 0.9, 0.8, 0.05
# Of one side more than of the other by more than chance makes of several kinds and tasks.
_CHANCE, _FEWEST = 0.001, 5
# An error page is no answer however rare it is.
_FEWEST_ERRORS = 5
# Documents of a task that are looked at: their share is known to 1.6 points.
_LOOKED_AT = 1_000
_MEANT_LIMIT = 16  # tokens; a limit below is meant to cut: a letter, a number, a word
_MOSTLY_RIGHT = 0.9
_MOST_FINDINGS = 3
_SHOWN_CHARACTERS = 80
_END_TOKEN = re.compile(r"</?[\w|｜▁:-]+>|\[[A-Z/]+\]|\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenAnswers:
    """What is wrong with both sides' answers to a task, as texts.

    Attributes:
        n: documents that were looked at, of ``total`` that both answered.
        faults: how many of the base's and of the candidate's have each.
        quotes: of each an answer of either side that has it.
        more: faults that the candidate has more often than the base, by more than chance.
        lost: documents of each side whose answer shows nothing of what the model knows;
            ``lost_in_full``: those whose answer is cut counted too, which a score of right and
            wrong is as little of.
        goes_on: documents of which the candidate's text begins with the base's whole one, and
            goes on where that ended.
    """

    task: str
    n: int
    total: int
    faults: Mapping[TextFault, tuple[int, int]]
    quotes: Mapping[TextFault, tuple[Quote, ...]]
    more: frozenset[TextFault]
    lost: tuple[int, int]
    lost_in_full: tuple[int, int]
    goes_on: int

    @property
    def named(self) -> tuple[TextFault, ...]:
        """Faults that every reader must see, the most frequent first."""
        notable = [
            fault
            for fault, counts in self.faults.items()
            if max(counts) >= max(_NAMED * self.n, _FEWEST_NAMED)
            or fault in self.more
            or (fault == "error_text" and max(counts) >= _FEWEST_ERRORS)
        ]
        return tuple(sorted(notable, key=lambda fault: -max(self.faults[fault])))


def find_broken_answers(
    samples: tuple[Samples, Samples], tables: tuple[Tables, Tables]
) -> tuple[BrokenAnswers, ...]:
    """Look at the answers of both sides to each task that generates; only tasks with a fault."""
    answers = []
    for task in samples[0]:
        if task in samples[1]:
            rows = (samples[0][task].samples, samples[1][task].samples)
            of_task = ([table for table in side if table.task == task] for side in tables)
            broken = _look(task, rows, (next(of_task), next(of_task)))
            if broken is not None and (broken.faults or broken.goes_on):
                answers.append(broken)
    return tuple(answers)


def name_broken_answers(
    broken: Sequence[BrokenAnswers], unanswered: frozenset[str] = frozenset()
) -> tuple[Finding, ...]:
    """Say which faults a good part of the answers has, the most frequent first.

    Args:
        unanswered: tasks of which it is said elsewhere that no answer is found, or none is
            there: empty ones are among these.
    """
    ranked = [
        (max(of.faults[fault]) / of.n, _finding(of, fault))
        for of in broken
        for fault in of.named
        if fault != "empty" or of.task not in unanswered
    ]
    ranked += [(of.goes_on / of.n, _goes_on(of)) for of in broken if of.goes_on]
    findings = [finding for _, finding in sorted(ranked, key=lambda pair: -pair[0])]
    tail = findings[_MOST_FINDINGS:]
    if not tail:
        return tuple(findings)
    tasks = tuple(dict.fromkeys(finding.task for finding in tail))
    noun = "task" if len(tasks) == 1 else "tasks"
    rest = Finding(
        kind="broken_answers",
        text=f"answers of {len(tasks):,} {noun} (first: {tasks[0]}) have {len(tail):,} more faults",
        values={"tasks": tasks},
    )
    return (*findings[:_MOST_FINDINGS], rest)


def fail_broken(
    compared: Sequence[MetricComparison], broken: Sequence[BrokenAnswers], tables: Tables
) -> tuple[MetricComparison, ...]:
    """Fail scores of answers of which nearly all are none: of both sides, or of the base.

    Of the candidate alone it is a loss where the statistics show one, and no pass where they do
    not. Figures of answers count such faults, and stay.

    Args:
        tables: of the base.
    """
    by_task = {answers.task: answers for answers in broken}
    of_base = {table.key: table for table in tables}
    judged = []
    for metric in compared:
        comparison, table = metric.comparison, of_base.get(metric.comparison.key)
        of = by_task.get(comparison.task)
        if (
            of is not None
            and table is not None
            and not table.figure
            and comparison.outcome != "failed"
        ):
            metric = _failed(metric, of, of.lost_in_full if _right(table) is not None else of.lost)
        judged.append(metric)
    return tuple(judged)


def _failed(one: MetricComparison, of: BrokenAnswers, lost: tuple[int, int]) -> MetricComparison:
    base, candidate = (_are_nearly_all(count, of.n) for count in lost)
    if not base and not candidate:
        return one
    side = 0 if base else 1
    fault = max(of.faults, key=lambda fault: of.faults[fault][side] * FAULTS[fault].is_lost)
    kind = FAULTS[fault]
    suffix = " or broken otherwise" if of.faults[fault][side] < lost[side] else ""
    if base and candidate:
        whose = f"of both models, {_count(of, lost[0])} and {_count(of, lost[1])} answers"
        means = "there is nothing to compare"
    elif base:
        whose, means = f"of the base, {_count(of, lost[0])} answers", "there is nothing to lose"
    else:
        whose = f"of the candidate, {_count(of, lost[1])} answers"
        means = "its score says nothing about it, and no loss is shown"
    reason = f"{whose} {kind.text}{suffix}: {means}; {kind.advice}"
    return (
        fail_without_numbers(one.comparison, reason)
        if base
        else replace(one, unless_regressed=one.unless_regressed or NothingKnown(reason=reason))
    )


def _are_nearly_all(count: int, n: int) -> bool:
    return count >= _LEAST_OF_ALL * n and binomial_lower_tail(count, n, _NEARLY_ALL) >= _RARE


def _count(of: BrokenAnswers, count: int) -> str:
    return f"{count:,} of {of.n:,}"


def _finding(of: BrokenAnswers, fault: TextFault) -> Finding:
    base, candidate = of.faults[fault]
    kind = FAULTS[fault]
    # A larger limit would only let them go on for longer.
    advice = LOST_END if fault == "cut" and candidate > 2 * base else kind.advice
    looked = f" that were looked at (of {of.total:,})" if of.n < of.total else ""
    if not base or not candidate:
        role, other_role, count = (
            ("base", "candidate", base) if base else ("candidate", "base", candidate)
        )
        whose = f"{_count(of, count)} answers of the {role}{looked}"
        means = f"none of the {other_role}'s"
    else:
        whose = f"{_count(of, base)} answers of the base and {candidate:,} of the candidate{looked}"
        means = "their scores say little" if kind.is_lost else "read some of them"
    return Finding(
        kind="broken_answers",
        text=f"{whose} {kind.text}: {means}; {advice}",
        task=of.task,
        values={"fault": fault, "base": base, "candidate": candidate, "documents": of.n},
        quotes=of.quotes[fault],
    )


def _goes_on(of: BrokenAnswers) -> Finding:
    return Finding(
        kind="answers_go_on",
        text=f"{_count(of, of.goes_on)} answers of the candidate begin with the base's whole "
        f"answer and go on: its end of text, or a stop string, is lost; {LOST_END}",
        task=of.task,
        values={"candidate": of.goes_on, "documents": of.n},
    )


def _look(
    task: str, rows: tuple[Rows, Rows], tables: tuple[Sequence[ScoreTable], Sequence[ScoreTable]]
) -> BrokenAnswers | None:
    ids = [{doc: at for at, doc in enumerate(column_of(side, "doc_id"))} for side in rows]
    both = sorted(doc for doc in ids[0] if doc in ids[1] and isinstance(doc, int))
    if not both or not _generates(rows[0][ids[0][both[0]]]):
        return None
    chosen = both
    if len(both) > _LOOKED_AT:  # at random: every tenth document may be of a kind
        places = np.random.default_rng(0).choice(len(both), _LOOKED_AT, replace=False)
        chosen = [both[at] for at in sorted(places.tolist())]
    own = [[side[at[doc]] for doc in chosen] for side, at in zip(rows, ids, strict=True)]
    pairs = [*pair_answers(task, own[0], own[1])]
    if not pairs:
        return None
    shown = {row["doc_id"]: row for row in own[0]}
    asked = [shown[doc] for doc, _, _ in pairs]
    prompts = [_prompt(row) for row in asked]
    targets = [str(row.get("target") or "") for row in asked]
    may_be_cut = _stops_by_itself(asked[0].get("arguments"))
    right = [_right_documents(of_side, [doc for doc, _, _ in pairs]) for of_side in tables]
    answers = ([base for _, base, _ in pairs], [candidate for _, _, candidate in pairs])
    previous: dict[int, TextFault | None] = {}
    sides = []
    for of_side, own_right in zip(answers, right, strict=True):
        # Most of the candidate's texts are the base's.
        single = [
            _fault(of, prompt, target)
            if at not in previous or of != answers[0][at]
            else previous[at]
            for at, (of, prompt, target) in enumerate(zip(of_side, prompts, targets, strict=True))
        ]
        previous = dict(enumerate(single))
        sides.append(_with_shared(single, of_side, prompts, targets, own_right, may_be_cut))
    named = [
        _without_right(of_side, right[number], "named") for number, of_side in enumerate(sides)
    ]
    kinds = [fault for fault in FAULTS if any(fault in of_side for of_side in named)]
    lost, in_full = (
        tuple(_lost(of_side, right[number], cut) for number, of_side in enumerate(sides))
        for cut in (False, True)
    )
    return BrokenAnswers(
        task=task,
        n=len(pairs),
        total=len(both),
        faults={fault: (named[0].count(fault), named[1].count(fault)) for fault in kinds},
        quotes={fault: tuple(_examples(fault, pairs, named)) for fault in kinds},
        more=frozenset(fault for fault in kinds if _is_more(fault, named[0], named[1])),
        lost=(lost[0], lost[1]),
        lost_in_full=(in_full[0], in_full[1]),
        goes_on=_count_going_on(pairs),
    )


def _generates(row: Mapping[str, Value]) -> bool:
    texts = row.get("text")
    return isinstance(texts, (list, tuple)) and any(isinstance(text, str) for text in texts)


def _prompt(row: Mapping[str, Value]) -> str:
    """A prompt's words; of a conversation in JSON those of its turns."""
    prompt = row.get("prompt")
    if not isinstance(prompt, str):
        return ""
    if not prompt.lstrip().startswith("[{"):
        return prompt
    return "\n".join(turn.text for turn in take_apart(prompt).turns)


def _stops_by_itself(asked: Value) -> bool:
    """Whether a request has a stop sequence of words, and a limit that is not meant to cut.

    A text without one, as a story is continued, ends at the limit or nowhere.
    """
    if not isinstance(asked, (list, tuple)) or not asked:
        return False
    try:
        options = json.loads(str(asked[0]))[-1]
    except (ValueError, LookupError, TypeError):
        return False
    if not isinstance(options, Mapping):
        return False
    until = options.get("until")
    stops = [until] if isinstance(until, str) else until if isinstance(until, list) else []
    limits = [options[name] for name in LENGTH_NAMES if isinstance(options.get(name), int)]
    meant = bool(limits) and limits[0] < _MEANT_LIMIT
    return not meant and any(
        not _END_TOKEN.fullmatch(str(stop)) or "\n" in str(stop) for stop in stops
    )


Faults = list[TextFault | None]
Pairs = Sequence[tuple[int, DocumentAnswers, DocumentAnswers]]


def _examples(fault: TextFault, pairs: Pairs, sides: Sequence[Faults]) -> Iterator[Quote]:
    """The first answer of each side that has a fault; an empty one shows nothing."""
    names: tuple[QuotedSide, ...] = ("base", "candidate")
    for number, (name, of_side) in enumerate(zip(names, sides, strict=True)):
        if fault in of_side and fault != "empty":
            doc_id, *answers = pairs[of_side.index(fault)]
            text = answers[number].texts[0][:_SHOWN_CHARACTERS]
            yield Quote(what="answer", doc_id=doc_id, text=text, side=name)


def _fault(of: DocumentAnswers, prompt: str, target: str) -> TextFault | None:
    """What is wrong with at least half of a document's answers."""
    counts = Counter(find_fault(text, prompt, target) for text in of.written)
    fault, times = counts.most_common(1)[0]
    return fault if 2 * times >= counts.total() else None


def _with_shared(
    single: Faults,
    answers: Sequence[DocumentAnswers],
    prompts: Sequence[str],
    targets: Sequence[str],
    right: Sequence[bool] | None,
    may_be_cut: bool,
) -> Faults:
    """With what is wrong only beside the texts of other documents."""
    faults = [*single]
    texts = [of.texts[0] for of in answers]
    by_all: list[tuple[TextFault, list[bool]]] = [
        ("empty", find_written_nulls(texts, targets)),
        ("error_text", find_same_errors(texts, prompts, targets)),
        ("same_text", find_same_texts(texts, prompts, targets)),
    ]
    if may_be_cut:
        by_all.append(("cut", _cut(answers, texts, [*prompts, *targets], right)))
    for fault, flags in by_all:
        for at, flag in enumerate(flags):
            if flag and (faults[at] is None or fault == "error_text"):
                faults[at] = fault
    return faults


def _cut(
    answers: Sequence[DocumentAnswers],
    texts: Sequence[str],
    others: Sequence[str],
    right: Sequence[bool] | None,
) -> list[bool]:
    """Which are cut and not right, as a server says or by a part of a word at the end."""
    words = find_cut_words(texts, others)
    ended = [
        answer.known.ended[0] if answer.known and answer.known.ended else "" for answer in answers
    ]
    return [
        (why == "length" or (not why and word)) and not (right is not None and right[at])
        for at, (why, word) in enumerate(zip(ended, words, strict=True))
    ]


def _right(table: ScoreTable) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    """Which documents a score of right and wrong calls right; None of any other metric."""
    binary = not table.figure and table.aggregation == "mean" and table.higher_is_better
    return table.values == 1.0 if binary and np.isin(table.values, (0.0, 1.0)).all() else None


def _right_documents(tables: Sequence[ScoreTable], docs: Sequence[int]) -> list[bool] | None:
    """Which documents any such score calls right; None where there is none."""
    known = [(table, right) for table in tables if (right := _right(table)) is not None]
    if not known:
        return None
    ids = {doc for table, right in known for doc in table.doc_ids[right].tolist()}
    return [doc in ids for doc in docs]


def _without_right(faults: Faults, right: Sequence[bool] | None, what: str) -> Faults:
    """Faults without those whose answers are nearly all right: the task asks for such texts."""
    if right is None:
        return faults
    hits: dict[TextFault, list[bool]] = {}
    for fault, is_right in zip(faults, right, strict=True):
        if fault is not None:
            hits.setdefault(fault, []).append(is_right)
    excused = {
        fault
        for fault, of in hits.items()
        if sum(of) >= _MOSTLY_RIGHT * len(of)
        and (FAULTS[fault].excused == "always" or (what, FAULTS[fault].excused) == ("lost", "loss"))
    }
    return [None if fault in excused else fault for fault in faults]


def _lost(faults: Faults, right: Sequence[bool] | None, cut_too: bool) -> int:
    return sum(
        FAULTS[fault].is_lost and (cut_too or fault != "cut")
        for fault in _without_right(faults, right, "lost")
        if fault is not None
    )


def _is_more(fault: TextFault, base: Faults, candidate: Faults) -> bool:
    """Whether the candidate has a fault more often, by an exact test of the documents' signs."""
    pairs = [
        (base_fault == fault, candidate_fault == fault)
        for base_fault, candidate_fault in zip(base, candidate, strict=True)
    ]
    gained = sum(in_candidate and not in_base for in_base, in_candidate in pairs)
    lost = sum(in_base and not in_candidate for in_base, in_candidate in pairs)
    if gained < _FEWEST or gained <= lost:
        return False
    return mcnemar_exact(gained, lost) <= _CHANCE or not any(in_base for in_base, _ in pairs)


_GOING_ON, _PAST_END = 0.2, 20


def _count_going_on(pairs: Pairs) -> int:
    """Documents where the candidate does not stop where the base does; 0 where they are few."""
    many = sum(_goes_past(base, candidate) for _, base, candidate in pairs)
    return many if many >= max(_GOING_ON * len(pairs), _FEWEST) else 0


def _goes_past(base: DocumentAnswers, candidate: DocumentAnswers) -> bool:
    ours, theirs = base.texts[0].rstrip(), candidate.texts[0]
    if not ours or len(theirs) < len(ours) + _PAST_END or not theirs.startswith(ours):
        return False
    ended = [
        side.known.ended[0] if side.known and side.known.ended else "" for side in (base, candidate)
    ]
    rest = theirs[len(ours) :]
    if all(ended):
        return ended == ["stop", "length"] and not rest[0].isalnum()
    # Nobody says why they ended: it has to go on behind what ends an answer.
    return (
        rest[0] == "\n"
        or rest.startswith(("<|", "</s>", "<end"))
        or (ours[-1] in ".!?)]}\"'*" and rest[0].isspace())
    )
