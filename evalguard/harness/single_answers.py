"""Single answers: what a task's filters and metrics find in every generated answer by itself.

lm-eval clones a request ``repeats`` times, and its default filter (``take_first``) drops all
answers but the first. Here each answer goes through the filters that treat it alone, and through
the task's own ``process_results``. A filter that uses answers together (a majority vote, pass@k) is
left as lm-eval has it: only what comes before it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.harness.declared_metrics import aggregation_name
from evalguard.harness.requests import TaskRequests
from evalguard.harness.surroundings import task_code

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task

Items = Mapping[int, Any]
ByDocument = Mapping[int, Sequence["Instance"]]
_MEANS = ("mean", "nanmean")
# lm-eval's filters that make one answer out of one answer; a task's own may do anything.
_FILTERS_OF_ONE = ("lm_eval.filters.extraction", "lm_eval.filters.transformation")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterAnswers:
    """What a filter finds in a task's single answers, by doc_id.

    Attributes:
        missing: whether the filter found nothing in each answer: it gave its ``fallback``, or the
            text is empty. {} where the filter begins with a function of the task's own, or the
            task looks for no answer in its texts.
        scores: lm-eval's items of each answer, by metric; {} where documents have one answer, or
            the filter uses answers together.
        first_only: the filter does nothing but take the first answer.
        extracts: it looks for an answer inside of each text, and may find none.
    """

    missing: Mapping[int, Sequence[bool]] = field(default_factory=dict)
    scores: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    first_only: bool = False
    extracts: bool = False


def score_alone(
    task_requests: TaskRequests, by_document: ByDocument, what: str
) -> dict[str, FilterAnswers]:
    """Put every generated answer through each filter alone; {} for a task that generates nothing.

    Args:
        by_document: instances with their answers (``resps``), by doc_id.
        what: what fails if the task's own code does.

    Raises:
        EvaluationError: if the task's own code fails on an answer.
    """
    task = task_requests.lm_eval_task
    if task.OUTPUT_TYPE != "generate_until":
        return {}
    repeats = max((len(i.resps) for of in by_document.values() for i in of), default=0)
    found = {}
    for ensemble in task._filters:
        steps = [make() for make in ensemble.filters]
        with task_code(what):
            walked = _walk(steps, by_document)
        scores = {}
        if walked.whole and repeats > 1 and task_requests.average_repeats:
            scores = {
                doc_id: list(_scored(task_requests, doc_id, of, what))
                for doc_id, of in walked.answers.items()
            }
        found[str(ensemble.name)] = FilterAnswers(
            missing=walked.missing if getattr(task, "FINDS_ANSWERS", True) else {},
            scores=scores,
            first_only=walked.whole and len(steps) == 1,
            extracts=walked.extracts,
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked:
    """Answers after a filter's steps up to the first that uses them together.

    ``answers``: doc_id -> one list per repeat, with the answer to each of the document's requests;
    ``whole``: nothing but taking the first one was left; ``extracts``: a step may find nothing.
    """

    answers: Mapping[int, Sequence[list[Any]]]
    missing: Mapping[int, Sequence[bool]]
    whole: bool
    extracts: bool


def _walk(steps: Sequence[Any], by_document: ByDocument) -> _Walked:
    from lm_eval.filters.selection import TakeFirstFilter

    instances = [instance for of in by_document.values() for instance in of]
    answers: list[list[Any]] = [list(instance.resps) for instance in instances]
    missing = [[not str(one).strip() for one in of] for of in answers]
    taken = 0
    for step in steps:
        if isinstance(step, TakeFirstFilter) or not _treats_one(step):
            break
        given = [list(of) for of in step.apply(answers, [one.doc for one in instances])]
        if [len(of) for of in given] != [len(of) for of in answers]:
            break
        answers = given
        if hasattr(step, "fallback"):
            missing = [
                [was or one == step.fallback for was, one in zip(before, of, strict=True)]
                for before, of in zip(missing, answers, strict=True)
            ]
        taken += 1
    rest = steps[taken:]
    whole = len(rest) == 1 and isinstance(rest[0], TakeFirstFilter)
    known = whole or taken > 0
    return _Walked(
        answers=_by_repeat(by_document, answers),
        missing={
            doc_id: [any(of) for of in repeats]
            for doc_id, repeats in _by_repeat(by_document, missing).items()
        }
        if known
        else {},
        whole=whole,
        extracts=any(hasattr(step, "fallback") for step in steps[:taken]),
    )


def _treats_one(step: Any) -> bool:
    return type(step).__module__ in _FILTERS_OF_ONE or hasattr(step, "fallback")


def _by_repeat(
    by_document: ByDocument, of_instances: Sequence[Sequence[Any]]
) -> dict[int, list[list[Any]]]:
    """What each instance has per answer, as doc_id -> repeat -> instance."""
    found, at = {}, 0
    for doc_id, instances in by_document.items():
        own = of_instances[at : at + len(instances)]
        at += len(instances)
        found[doc_id] = [list(repeat) for repeat in zip(*own, strict=False)]
    return found


def _scored(
    task_requests: TaskRequests, doc_id: int, answers: Sequence[list[Any]], what: str
) -> Iterator[Mapping[str, Any]]:
    """The task's own metrics of a document's first, second, ... answers."""
    doc = task_requests.documents[doc_id]
    for number, given in enumerate(answers, start=1):
        with task_code(f"{what}, document {doc_id}, answer {number}"):
            found = task_requests.lm_eval_task.process_results(doc, list(given))
        yield cast("Mapping[str, Any]", found)


def single_scores(
    task: Task, alone: Mapping[str, FilterAnswers], doc_id: int
) -> dict[str, dict[str, list[float]]]:
    """A document's scores per answer, filter -> metric: of metrics that are means of numbers."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, of_filter in alone.items():
        answers = of_filter.scores.get(doc_id, ())
        for metric in answers[0] if answers else ():
            if aggregation_name(task, metric)[0] not in _MEANS:
                continue
            values = [_number(metrics.get(metric)) for metrics in answers]
            known = [value for value in values if value is not None and math.isfinite(value)]
            if len(known) == len(answers):
                found.setdefault(name, {})[metric] = known
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """A metric's items averaged over the answers to each document, and how many these were."""

    items: Items
    repeats: int


def average_repeats(
    task_requests: TaskRequests,
    alone: Mapping[str, FilterAnswers],
    items: Mapping[tuple[str, str], Items],
) -> dict[tuple[str, str], Averaged]:
    """Average the metrics of repeatedly generated answers; only those that this changes.

    Args:
        items: lm-eval's own, from the first answers.
    """
    found = {}
    for key, first in items.items():
        of_filter = alone.get(key[0], FilterAnswers())
        aggregation, _ = aggregation_name(task_requests.lm_eval_task, key[1])
        if not (of_filter.first_only and of_filter.scores and aggregation in _MEANS):
            continue
        values = _averages(key[1], first, of_filter.scores)
        if values is not None and values != first:
            repeats = max(map(len, of_filter.scores.values()))
            found[key] = Averaged(items=values, repeats=repeats)
    return found


def _averages(
    metric: str, first: Items, scored: Mapping[int, Sequence[Mapping[str, Any]]]
) -> dict[int, Any] | None:
    """Averages by document, equal answers left as they are; None where one gives no number."""
    averages: dict[int, Any] = {}
    for doc_id, item in first.items():
        values = [_number(metrics.get(metric)) for metrics in scored[doc_id]]
        numbers = [value for value in values if value is not None]
        if len(numbers) != len(values):
            return None
        alike = all(number == numbers[0] for number in numbers)
        averages[doc_id] = item if alike else math.fsum(numbers) / len(numbers)
    return averages


def each_answer(
    task: Task, of_filter: FilterAnswers | None, metric: str, doc_ids: Sequence[int]
) -> NDArray[np.float64] | None:
    """A metric of every single answer, shape (documents, repeats).

    Returns:
        None where the filter uses answers together, the metric is no mean, an answer has no number,
        or documents have unequally many.
    """
    if of_filter is None or not of_filter.scores:
        return None
    if aggregation_name(task, metric)[0] not in _MEANS:
        return None
    rows = [
        [_number(metrics.get(metric)) for metrics in of_filter.scores[doc_id]] for doc_id in doc_ids
    ]
    if len({len(row) for row in rows}) != 1 or any(None in row for row in rows):
        return None
    return np.array(rows, dtype=np.float64)


def _number(value: Any) -> float | None:
    return float(cast(Real, value)) if isinstance(value, (Real, np.bool_)) else None
