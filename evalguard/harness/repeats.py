"""Repeats: documents that a task asks several times, averaged per document.

lm-eval clones a request ``repeats`` times, and its default filter (``take_first``) drops all
answers but the first. Each answer can be scored by the task's own ``process_results`` as well; a
task whose filter uses the answers together (a majority vote, pass@k) is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from evalguard.harness.metrics import aggregation_name
from evalguard.harness.requests import TaskRequests
from evalguard.harness.surroundings import task_code

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task

Items = Mapping[int, Any]
_MEANS = ("mean", "nanmean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """A metric's items averaged over the answers to each document, and how many these were."""

    items: Items
    repeats: int


def averaged_repeats(
    task_requests: TaskRequests,
    by_document: Mapping[int, Sequence[Instance]],
    items: Mapping[tuple[str, str], Items],
    what: str,
) -> dict[tuple[str, str], Averaged]:
    """Average the metrics of repeatedly generated answers; only those that this changes.

    Args:
        by_document: instances with their answers (``resps``), by doc_id.
        items: lm-eval's own, from the first answers.
        what: what fails if the task's own code does.

    Raises:
        EvaluationError: if the task's own code fails on an answer.
    """
    task = task_requests.lm_eval_task
    repeats = max((len(i.resps) for of in by_document.values() for i in of), default=0)
    if repeats < 2 or task.OUTPUT_TYPE != "generate_until":
        return {}
    wanted = [
        key
        for key in items
        if key[0] in _first_only(task) and aggregation_name(task, key[1])[0] in _MEANS
    ]
    if not wanted:
        return {}
    scored = {
        doc_id: list(_scored(task_requests, doc_id, of, what)) for doc_id, of in by_document.items()
    }
    found = {}
    for key in wanted:
        values = _averages(key[1], items[key], scored)
        if values is not None and values != items[key]:
            found[key] = Averaged(items=values, repeats=repeats)
    return found


def _first_only(task: Task) -> set[str]:
    """Names of filters that do nothing but take the first answer."""
    from lm_eval.filters.selection import TakeFirstFilter

    return {
        str(ensemble.name)
        for ensemble in task._filters
        if [type(make()) for make in ensemble.filters] == [TakeFirstFilter]
    }


def _scored(
    task_requests: TaskRequests, doc_id: int, instances: Sequence[Instance], what: str
) -> Iterator[Mapping[str, Any]]:
    """The task's own metrics of a document's first, second, ... answers."""
    doc = task_requests.documents[doc_id]
    for repeat in range(min(len(instance.resps) for instance in instances)):
        answers = [instance.resps[repeat] for instance in instances]
        with task_code(f"{what}, document {doc_id}, answer {repeat + 1}"):
            found = task_requests.lm_eval_task.process_results(doc, answers)
        yield cast("Mapping[str, Any]", found)


def _averages(
    metric: str, first: Items, scored: Mapping[int, Sequence[Mapping[str, Any]]]
) -> dict[int, Any] | None:
    """Averages by document, equal answers left as they are; None where one gives no number."""
    averages: dict[int, Any] = {}
    for doc_id, item in first.items():
        values = [metrics.get(metric) for metrics in scored[doc_id]]
        if not all(isinstance(value, (Real, np.bool_)) for value in values):
            return None
        numbers = [float(cast(Real, value)) for value in values]
        alike = all(number == numbers[0] for number in numbers)
        averages[doc_id] = item if alike else math.fsum(numbers) / len(numbers)
    return averages
