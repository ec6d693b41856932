"""Answers: a model's responses put back into lm-eval's instances and scored by its own code.

lm-eval clones a request ``repeats`` times, and its default filter (``take_first``) drops all
answers but the first. Here each answer goes through the filters that treat it alone, and through
the task's own ``process_results``. A filter that uses answers together (a majority vote, pass@k) is
left as lm-eval has it: only what comes before it is looked at.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.document_statistics import check_loglikelihoods, chosen_option
from evalguard.core.scorer import Request, Response
from evalguard.core.scores import restore_infinity, restore_token_infinities
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


def direction(task: Task, metric: str) -> bool | None:
    """Return whether higher is better: the task's word, else lm-eval's registry, else None."""
    from lm_eval.api.registry import HIGHER_IS_BETTER_REGISTRY

    declared = task.higher_is_better().get(metric)
    if declared is None and metric in HIGHER_IS_BETTER_REGISTRY:
        declared = HIGHER_IS_BETTER_REGISTRY[metric]
    return None if declared is None else bool(declared)


def _known_aggregations() -> list[tuple[str, Any]]:
    from lm_eval.api.registry import AGGREGATION_REGISTRY

    means = [("mean", np.mean), ("mean", statistics.mean), ("mean", statistics.fmean)]
    return [*AGGREGATION_REGISTRY.items(), *means, ("nanmean", np.nanmean)]


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
    by_filter = {}
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
        by_filter[str(ensemble.name)] = FilterAnswers(
            missing=walked.missing if getattr(task, "FINDS_ANSWERS", True) else {},
            scores=scores,
            first_only=walked.whole and len(steps) == 1,
            extracts=walked.extracts,
        )
    return by_filter


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
    missing = [[not str(text).strip() for text in of] for of in answers]
    taken = 0
    for step in steps:
        if isinstance(step, TakeFirstFilter) or not _treats_one(step):
            break
        given = [list(of) for of in step.apply(answers, [instance.doc for instance in instances])]
        if [len(of) for of in given] != [len(of) for of in answers]:
            break
        answers = given
        if hasattr(step, "fallback"):
            missing = [
                [was or text == step.fallback for was, text in zip(before, of, strict=True)]
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
    repeats, at = {}, 0
    for doc_id, instances in by_document.items():
        own = of_instances[at : at + len(instances)]
        at += len(instances)
        repeats[doc_id] = [list(repeat) for repeat in zip(*own, strict=False)]
    return repeats


def _scored(
    task_requests: TaskRequests, doc_id: int, answers: Sequence[list[Any]], what: str
) -> Iterator[Mapping[str, Any]]:
    """The task's own metrics of a document's first, second, ... answers."""
    doc = task_requests.documents[doc_id]
    for number, given in enumerate(answers, start=1):
        with task_code(f"{what}, document {doc_id}, answer {number}"):
            metrics = task_requests.lm_eval_task.process_results(doc, list(given))
        yield cast("Mapping[str, Any]", metrics)


def single_scores(
    task: Task, alone: Mapping[str, FilterAnswers], doc_id: int
) -> dict[str, dict[str, list[float]]]:
    """A document's scores per answer, filter -> metric: of metrics that are means of numbers."""
    scores: dict[str, dict[str, list[float]]] = {}
    for name, of_filter in alone.items():
        answers = of_filter.scores.get(doc_id, ())
        for metric in answers[0] if answers else ():
            if aggregation_name(task, metric)[0] not in _MEANS:
                continue
            values = [_number(metrics.get(metric)) for metrics in answers]
            known = [value for value in values if value is not None and math.isfinite(value)]
            if len(known) == len(answers):
                scores.setdefault(name, {})[metric] = known
    return scores


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
    averaged = {}
    for key, first in items.items():
        of_filter = alone.get(key[0], FilterAnswers())
        aggregation, _ = aggregation_name(task_requests.lm_eval_task, key[1])
        if not (of_filter.first_only and of_filter.scores and aggregation in _MEANS):
            continue
        values = _averages(key[1], first, of_filter.scores)
        if values is not None and values != first:
            repeats = max(map(len, of_filter.scores.values()))
            averaged[key] = Averaged(items=values, repeats=repeats)
    return averaged


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
        alone: of a task that generates, what each filter finds in every single answer.
        shows_tokens: whether the generated tokens of any answer are known.
    """

    documents: tuple[AnsweredDocument, ...]
    items: Mapping[tuple[str, str], Mapping[int, Any]]
    filtered: Mapping[str, Mapping[int, Sequence[Any]]]
    repeats: Mapping[tuple[str, str], int] = field(default_factory=dict)
    alone: Mapping[str, FilterAnswers] = field(default_factory=dict)
    shows_tokens: bool = False


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
    responses = [_with_infinity(*pair) for pair in zip(requests, responses, strict=True)]
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
        alone = score_alone(task_requests, by_document, what)
        averaged = average_repeats(task_requests, alone, items)
        items |= {key: dict(metric.items) for key, metric in averaged.items()}
        documents = tuple(_documents(task_requests, responses))
    repeats = {key: metric.repeats for key, metric in averaged.items()}
    return TaskAnswers(
        documents=documents,
        items=items,
        filtered=filtered,
        repeats=repeats,
        alone=alone,
        shows_tokens=any(response.generated is not None for response in responses),
    )


def look_for_answers(
    task_requests: TaskRequests, responses: Sequence[Response]
) -> dict[str, FilterAnswers]:
    """What each filter finds in single generated answers, by its name; nothing is scored.

    Raises:
        EvaluationError: the task's own filters fail.
    """
    by_document = _fill(task_requests, responses)
    what = f"task '{task_requests.task}': its own code fails on the model's answers"
    with lm_eval_surroundings():
        return score_alone(replace(task_requests, average_repeats=False), by_document, what)


def _with_infinity(request: Request, response: Response) -> Response:
    """The response with minus infinity where a server wrote a number for it."""
    if response.loglikelihood is None:
        return response
    text, tokens = request.arguments[-1], response.token_logprobs
    restored = restore_infinity(
        response.loglikelihood,
        token_logprobs=tokens,
        text=text if isinstance(text, str) else None,
    )
    if restored == response.loglikelihood or restored != restored:
        return response
    known = None if tokens is None else restore_token_infinities(tokens)
    return replace(response, loglikelihood=restored, token_logprobs=known)


def _loglikelihoods(
    requests: Sequence[Request], responses: Sequence[Response]
) -> dict[int, list[float]]:
    """Log-likelihoods of each document's distinct requests, in their order."""
    by_document: dict[int, dict[Any, float]] = defaultdict(dict)
    for request, response in zip(requests, responses, strict=True):
        if response.loglikelihood is not None:
            by_document[request.doc_id][str(request.arguments)] = response.loglikelihood
    return {doc_id: list(of.values()) for doc_id, of in by_document.items()}


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
                metrics = task_requests.lm_eval_task.process_results(doc, given)
            for metric, item in metrics.items():
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
        answers = tuple(answered[asked.doc_id])
        yield AnsweredDocument(asked=asked, responses=answers, token_hash=token_hash(answers))


def token_hash(responses: Sequence[Response]) -> str:
    """Hash of all token ids fed for one document; "" if a backend hid those of any request."""
    hashes = [response.token_hash for response in responses]
    if not all(hashes):
        return ""
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


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


def given_answers(
    answers: TaskAnswers, documents: Sequence[AnsweredDocument], filter_name: str, metric: str
) -> tuple[str, ...]:
    """What the documents were answered, as one metric sees it; () where any is unknown."""
    filtered = answers.filtered[filter_name]
    given = [_answer(document, filtered[document.doc_id], metric) for document in documents]
    known = tuple(answer for answer in given if answer is not None)
    return known if len(known) == len(given) else ()


def _answer(document: AnsweredDocument, filtered: Sequence[Any], metric: str) -> str | None:
    if document.asked.requests[0].kind == "generate_until":
        return filtered[0] if isinstance(filtered[0], str) else None
    if not document.asked.options:
        return None
    loglikelihoods = [loglikelihood for loglikelihood, _ in filtered]
    chosen = chosen_option(metric, loglikelihoods, document.asked.options)
    return None if chosen is None else str(chosen)
