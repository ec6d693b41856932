"""Answers: a model's responses put back into lm-eval's instances and scored by its own code."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evalguard.core.chosen_option import chosen_option
from evalguard.core.documents.likelihoods import restore_infinity, restore_token_infinities
from evalguard.core.score_items import check_loglikelihoods
from evalguard.core.scorer import Request, Response
from evalguard.errors import EvaluationError
from evalguard.harness.asked_document import AskedDocument, requested_document
from evalguard.harness.requests import TaskRequests, in_request_order
from evalguard.harness.single_answers import FilterAnswers, average_repeats, score_alone
from evalguard.harness.surroundings import lm_eval_surroundings, task_code

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


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
    responses = [_with_infinity(*one) for one in zip(requests, responses, strict=True)]
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
