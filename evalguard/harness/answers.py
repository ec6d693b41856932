"""Answers: a model's responses put back into lm-eval's instances and scored by its own code."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from evalguard.core.scorer import Request, Response
from evalguard.core.scores import check_loglikelihoods, chosen_option
from evalguard.errors import EvaluationError
from evalguard.harness.requests import (
    AskedDocument,
    TaskRequests,
    in_request_order,
    requested_document,
)
from evalguard.harness.surroundings import lm_eval_surroundings, task_code

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredDocument:
    """One document, and what a model answered to each of its requests.

    ``token_hash`` is of all token ids fed for it; "" if a backend hid those of any request.
    """

    asked: AskedDocument
    responses: tuple[Response, ...]
    token_hash: str

    @property
    def doc_id(self) -> int:
        """lm-eval's number of the document."""
        return self.asked.doc_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswers:
    """A task's documents, and what lm-eval made of them.

    Attributes:
        items: lm-eval's items, (filter, metric) -> doc_id -> item.
        filtered: responses after a filter, filter -> doc_id -> one per request.
        repeats: of a metric, how many answers to each document its items are averages of; only
            where that is otherwise than the first answer's.
    """

    documents: tuple[AnsweredDocument, ...]
    items: Mapping[tuple[str, str], Mapping[int, Any]]
    filtered: Mapping[str, Mapping[int, Sequence[Any]]]
    repeats: Mapping[tuple[str, str], int] = field(default_factory=dict)


def score_answers(task_requests: TaskRequests, responses: Sequence[Response]) -> TaskAnswers:
    """Run a task's own filters and process_results over a model's responses.

    Raises:
        ValueError: if there is not one response per request.
        EvaluationError: if a response lacks what its request asked for, the log-likelihoods say
            nothing about the model, or the task's own code fails on them.
    """
    task, requests = task_requests.lm_eval_task, task_requests.requests
    if len(responses) != len(requests):
        raise ValueError(f"{len(requests)} requests have {len(responses)} responses")
    by_document = _fill(task_requests, responses)
    check_loglikelihoods(task_requests.task, _loglikelihoods(requests, responses))
    what = f"task '{task_requests.task}': its own code fails on the model's answers"
    with lm_eval_surroundings():
        with task_code(what):
            # The task may have built other requests since; filters act on what the task holds.
            task._instances = list(task_requests.instances)
            task.apply_filters()
        filtered = _filtered(task_requests, by_document)
        items = _items(task_requests, filtered, what)
        averaged = (
            average_repeats(task_requests, by_document, items, what)
            if task_requests.average_repeats
            else {}
        )
        items |= {key: dict(metric.items) for key, metric in averaged.items()}
        documents = tuple(_documents(task_requests, responses))
    repeats = {key: metric.repeats for key, metric in averaged.items()}
    return TaskAnswers(documents=documents, items=items, filtered=filtered, repeats=repeats)


def _loglikelihoods(
    requests: Sequence[Request], responses: Sequence[Response]
) -> dict[int, list[float]]:
    """Log-likelihoods of each document's distinct requests, in their order."""
    found: dict[int, dict[Any, float]] = defaultdict(dict)
    for request, response in zip(requests, responses, strict=True):
        if response.loglikelihood is not None:
            found[request.doc_id][str(request.arguments)] = response.loglikelihood
    return {doc_id: list(of.values()) for doc_id, of in found.items()}


def _filtered(
    task_requests: TaskRequests, by_document: Mapping[int, Sequence[Instance]]
) -> dict[str, dict[int, list[Any]]]:
    return {
        name: {
            doc_id: [instance.filtered_resps[name] for instance in instances]
            for doc_id, instances in by_document.items()
        }
        for name in task_requests.instances[0].filtered_resps
    }


def _items(
    task_requests: TaskRequests, filtered: Mapping[str, Mapping[int, list[Any]]], what: str
) -> dict[tuple[str, str], dict[int, Any]]:
    """Run process_results once per filter and document, as lm_eval.evaluator.evaluate does."""
    items: dict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
    for filter_name, by_document in filtered.items():
        for doc_id, doc in task_requests.documents.items():
            with task_code(f"{what}, document {doc_id}"):
                # a copy: a task's own code may change the list
                given = list(by_document[doc_id])
                found = task_requests.lm_eval_task.process_results(doc, given)
            for metric, item in found.items():
                items[filter_name, metric][doc_id] = item
    return dict(items)


def _fill(task_requests: TaskRequests, responses: Sequence[Response]) -> dict[int, list[Instance]]:
    """Put the responses where lm_eval.evaluate puts them; return the instances by document."""
    answers = iter(zip(task_requests.requests, responses, strict=True))
    for instance in in_request_order(task_requests.instances):
        instance.resps, instance.filtered_resps = [], {}
        for _ in range(instance.repeats or 1):
            instance.resps.append(_as_lm_eval(*next(answers)))
    by_document: dict[int, list[Instance]] = defaultdict(list)
    for instance in task_requests.instances:
        by_document[instance.doc_id].append(instance)
    for instances in by_document.values():
        instances.sort(key=lambda instance: instance.idx)
    return by_document


def _as_lm_eval(request: Request, response: Response) -> Any:
    if request.kind == "loglikelihood":
        if response.loglikelihood is not None and response.is_greedy is not None:
            return (response.loglikelihood, response.is_greedy)
    elif request.kind == "loglikelihood_rolling":
        if response.loglikelihood is not None:
            return response.loglikelihood
    elif response.text is not None:
        return response.text
    raise EvaluationError(
        f"task '{request.task}', document {request.doc_id}, request {request.index}: the model "
        f"gave no answer of the kind {request.kind}"
    )


def _documents(
    task_requests: TaskRequests, responses: Sequence[Response]
) -> Iterator[AnsweredDocument]:
    """Put documents and answers together."""
    answered: dict[int, list[Response]] = defaultdict(list)
    for request, response in zip(task_requests.requests, responses, strict=True):
        answered[request.doc_id].append(response)
    for asked in requested_documents(task_requests):
        told = tuple(answered[asked.doc_id])
        yield AnsweredDocument(asked=asked, responses=told, token_hash=token_hash(told))


def token_hash(responses: Sequence[Response]) -> str:
    """Hash of all token ids fed for one document; "" if a backend hid those of any request."""
    hashes = [response.token_hash for response in responses]
    if not all(hashes):
        return ""
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


# The documents that a task's requests ask about, as all models see them, before any answers.


def requested_documents(task_requests: TaskRequests) -> tuple[AskedDocument, ...]:
    """Hash every document once; what was made for one model serves all whose requests are the same.

    Raises:
        EvaluationError: if the task's own code fails on a document.
    """
    with lm_eval_surroundings():
        return tuple(_requested_documents(task_requests))


def _requested_documents(task_requests: TaskRequests) -> Iterator[AskedDocument]:
    known, task = task_requests.asked, task_requests.lm_eval_task
    requests: dict[int, list[Request]] = defaultdict(list)
    for request in task_requests.requests:
        requests[request.doc_id].append(request)
    in_order = sorted(task_requests.instances, key=lambda instance: instance.idx)
    firsts = {instance.doc_id: instance for instance in reversed(in_order)}
    for doc_id, doc in task_requests.documents.items():
        asked, own = known.get(doc_id), tuple(requests[doc_id])
        if asked is None or asked.doc is not doc or asked.requests != own:
            with task_code(f"task '{task_requests.task}': its own code fails on document {doc_id}"):
                asked = requested_document(task, doc, firsts[doc_id], own)
            known[doc_id] = asked
        yield asked


# What a model answered, document by document: an option, or a text after the filter.


def given_answers(
    answers: TaskAnswers, documents: Sequence[AnsweredDocument], filter_name: str, metric: str
) -> tuple[str, ...]:
    """What the documents were answered, as one metric sees it; () where any is unknown."""
    filtered = answers.filtered[filter_name]
    found = [_answer(document, filtered[document.doc_id], metric) for document in documents]
    known = tuple(answer for answer in found if answer is not None)
    return known if len(known) == len(found) else ()


def _answer(document: AnsweredDocument, filtered: Sequence[Any], metric: str) -> str | None:
    if document.asked.requests[0].kind == "generate_until":
        return filtered[0] if isinstance(filtered[0], str) else None
    if not document.asked.options:
        return None
    loglikelihoods = [loglikelihood for loglikelihood, _ in filtered]
    chosen = chosen_option(metric, loglikelihoods, document.asked.options)
    return None if chosen is None else str(chosen)


# What a task declares about its metrics: how documents combine, and which way is better.


def aggregation_name(task: Task, metric: str) -> tuple[str, str]:
    """Return lm-eval's name of a metric's aggregation, and a caveat or "".

    A function that is none of lm-eval's (nor numpy's or the standard library's mean) goes by its
    own name.
    """
    declared = task.aggregation()
    if metric not in declared:
        return "mean", "no aggregation declared: mean, as lm-eval takes it"
    function = declared[metric]
    for name, known in _known_aggregations():
        if function is known:
            return name, ""
    return getattr(function, "__name__", type(function).__name__), ""


def direction(task: Task, metric: str) -> tuple[bool, str]:
    """Return whether higher is better (the task's word, else lm-eval's registry), and a caveat."""
    from lm_eval.api.registry import HIGHER_IS_BETTER_REGISTRY

    declared = task.higher_is_better().get(metric)
    if declared is None and metric in HIGHER_IS_BETTER_REGISTRY:
        declared = HIGHER_IS_BETTER_REGISTRY[metric]
    if declared is None:
        return True, "direction not declared: higher taken as better"
    return bool(declared), ""


def _known_aggregations() -> list[tuple[str, Any]]:
    from lm_eval.api.registry import AGGREGATION_REGISTRY

    means = [("mean", np.mean), ("mean", statistics.mean), ("mean", statistics.fmean)]
    return [*AGGREGATION_REGISTRY.items(), *means, ("nanmean", np.nanmean)]


# Repeats: documents that a task asks several times, averaged per document.
#
# lm-eval clones a request ``repeats`` times, and its default filter (``take_first``) drops all
# answers but the first. Each answer can be scored by the task's own ``process_results`` as well; a
# task whose filter uses the answers together (a majority vote, pass@k) is left as it is.


Items = Mapping[int, Any]
_MEANS = ("mean", "nanmean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """A metric's items averaged over the answers to each document, and how many these were."""

    items: Items
    repeats: int


def average_repeats(
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
