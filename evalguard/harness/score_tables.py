"""TaskScores: what a model's responses to one task are worth, metric by metric."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.document_columns import DocumentFields, Rows
from evalguard.core.document_statistics import (
    DocumentStatistics,
    NotComparableError,
    has_closed_form,
    read_items,
)
from evalguard.core.generation_comparison import GeneratedDocument
from evalguard.core.scorer import Response
from evalguard.core.scores import NotCompared, Rescoring, ScoreTable, Uninformative, rescoring
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import sample_columns
from evalguard.errors import EvaluationError
from evalguard.harness.requests import TaskRequests, written
from evalguard.harness.scored_answers import (
    AnsweredDocument,
    TaskAnswers,
    aggregation_name,
    direction,
    each_answer,
    given_answers,
    score_answers,
    single_scores,
)
from evalguard.harness.surroundings import describe_scoring, lm_eval_surroundings, task_code
from evalguard.stats.uninformative import gives_nothing, uninformative_answers, with_uninformative

if TYPE_CHECKING:
    from lm_eval.api.task import Task

Items = Mapping[tuple[str, str], Mapping[int, Any]]


def sample(
    document: AnsweredDocument, items: Items, given: Items, *, cut: bool
) -> dict[str, Value]:
    """Return a document's row; every row of a task has the same columns and types.

    Per-request columns (``arguments``, ``loglikelihood``, ``is_greedy``, ``text``,
    ``token_logprobs``) are lists in the order of the requests. ``doc``, each of ``arguments``,
    ``scores`` (filter -> metric -> lm-eval's item) and ``answers`` are JSON texts.

    Args:
        items: lm-eval's item of every document, by (filter, metric).
        given: what was answered, likewise, where it is known.
        cut: whether the document's token ids depend on the model's context length.
    """
    asked, answers = document.asked, document.responses
    return {
        "doc_id": asked.doc_id,
        "doc": asked.written,
        "prompt": asked.prompt,
        "target": asked.target,
        "doc_hash": asked.doc_hash,
        "prompt_hash": asked.prompt_hash,
        "target_hash": asked.target_hash,
        "token_hash": document.token_hash,
        "arguments": list(asked.arguments),
        "loglikelihood": [answer.loglikelihood for answer in answers],
        "is_greedy": [answer.is_greedy for answer in answers],
        "text": [answer.text for answer in answers],
        "token_logprobs": [
            None if answer.token_logprobs is None else answer.token_logprobs.tolist()
            for answer in answers
        ],
        "truncated": any(answer.truncated for answer in answers),
        "cut": cut,
        "scores": written(_of(document.doc_id, items)),
        "answers": written(_of(document.doc_id, given)),
    }


def generated_answers(
    task: Task, answers: TaskAnswers, document: AnsweredDocument
) -> dict[str, Value]:
    """More columns: what is known of a document's single answers, and their tokens.

    ``generated`` is "" if none is generated. The columns of tokens are there where the tokens of
    any answer to the task are known.
    """
    if not answers.alone:
        return {"generated": ""}
    known = GeneratedDocument(
        ended=tuple(answer.ended for answer in document.responses),
        missing={
            name: tuple(of.missing[document.doc_id])
            for name, of in answers.alone.items()
            if document.doc_id in of.missing
        },
        scores=single_scores(task, answers.alone, document.doc_id),
        messages=tuple(answer.message for answer in document.responses),
    )
    tokens = [answer.generated for answer in document.responses]
    return {
        "generated": known.written,
        **(sample_columns(tokens) if answers.shows_tokens else {}),
    }


def _of(doc_id: int, items: Items) -> dict[str, dict[str, Any]]:
    """What a document has, filter -> metric -> item."""
    by_filter: dict[str, dict[str, Any]] = {}
    for (filter_name, metric), by_document in items.items():
        if doc_id in by_document:
            by_filter.setdefault(filter_name, {})[metric] = by_document[doc_id]
    return by_filter


# Seconds of one aggregation; a bootstrap runs it some 450 times.
LONGEST = 5.0


def task_rescoring(task: Task, metric: str, items: Sequence[object], name: str) -> Rescoring:
    """Rescore a metric's items by the aggregation that the task declares for it.

    Args:
        name: what the aggregation is called (``metrics.aggregation_name``).

    Raises:
        NotComparableError: if the aggregation fails on the items, or takes too long to be run for
            hundreds of resamples.
    """
    function = task.aggregation()[metric]

    def aggregate(chosen: list[object]) -> float:
        with task_code(f"aggregation '{name}'"):
            return float(function(chosen))

    try:
        made, seconds = _timed(items, name, aggregate)
        if seconds > LONGEST:  # the first call may have imported a library
            made, seconds = _timed(items, name, aggregate)
    except EvaluationError as error:
        raise NotComparableError(str(error), quotes=error.quotes) from error
    if seconds > LONGEST:
        raise NotComparableError(
            f"its aggregation '{name}' takes {seconds:.0f} seconds, too long for the hundreds of "
            "times that a paired bootstrap needs it"
        )
    return made


def _timed(
    items: Sequence[object], name: str, aggregate: Callable[[list[object]], float]
) -> tuple[Rescoring, float]:
    """A rescoring, and the seconds of one aggregation."""
    started = time.perf_counter()
    with lm_eval_surroundings():
        made = rescoring(items, name, aggregate)
    return made, time.perf_counter() - started


_FEW_TOKENS = 16  # fewer may be the same by accident
_FEW_REPEATED = 3  # the answers to fewer documents may all agree by accident
_NEARLY_ALL = 0.95
_ROUNDING = 1e-5  # of a log-softmax in float32, in nats


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """Scores of one model on one task.

    Attributes:
        tables: one per (filter, metric) that can be compared.
        not_compared: every other metric of the task, with the reason.
        fields: texts and whole numbers of the documents, which may say what they share.
        samples: one row per document, ready to be stored as columns (see ``sample_rows.sample``).
        scoring: how answers are scored (``task_data.describe_scoring``); {} where it is not known.
        longest: most tokens of a text, with what was written to it; 0 where any is not known.
    """

    task: str
    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...]
    samples: Rows
    fields: DocumentFields = field(default_factory=DocumentFields)
    scoring: Mapping[str, Value] = field(default_factory=dict)
    longest: int = 0


# From a table of a task without values, and the task's samples.
TablesOfAnswers = Callable[[ScoreTable, Sequence[Mapping[str, Any]]], Sequence[ScoreTable]]


def score_tables(
    task_requests: TaskRequests,
    responses: Sequence[Response],
    *,
    source: str = "",
    tables_of_answers: TablesOfAnswers | None = None,
) -> TaskScores:
    """Score a model's responses with the task's own filters and process_results.

    Args:
        task_requests: as built for this model.
        responses: one per request, in the order of ``task_requests.requests``.
        source: whose scores these are, for messages.
        tables_of_answers: makes more tables of what was generated, beside the task's own metrics.

    Raises:
        ValueError: if there is not one response per request.
        EvaluationError: if the task's own code fails on the responses.
    """
    answers = score_answers(task_requests, responses)
    tables: list[ScoreTable] = []
    left_out: list[NotCompared] = []
    for (filter_name, metric), items in answers.items.items():
        if metric == "bypass":  # lm-eval's placeholder of runs without metrics
            continue
        try:
            tables.append(_table(task_requests, answers, filter_name, metric, items, source))
        except NotComparableError as error:
            left_out.append(
                NotCompared(
                    task=task_requests.task,
                    filter=filter_name,
                    metric=metric,
                    reason=str(error),
                    quotes=error.quotes,
                )
            )
    given = {
        (table.filter, table.metric): dict(zip(table.doc_ids.tolist(), table.answers, strict=True))
        for table in tables
        if table.answers
    }
    samples = tuple(
        sample(document, answers.items, given, cut=_depends_on_length(document))
        | generated_answers(task_requests.lm_eval_task, answers, document)
        for document in answers.documents
    )
    if tables_of_answers is not None and answers.alone:
        asked = sorted(answers.documents, key=lambda document: document.doc_id)
        tables += tables_of_answers(_blank_table(task_requests, asked, source), samples)
    return TaskScores(
        task=task_requests.task,
        tables=tuple(tables),
        not_compared=tuple(left_out),
        samples=samples,
        fields=task_requests.fields,
        scoring=describe_scoring(task_requests.lm_eval_task.dump_config()),
        longest=_longest(responses),
    )


def _longest(responses: Sequence[Response]) -> int:
    longest = 0
    for response in responses:
        written = 0 if response.generated is None else len(response.generated.ids)
        if response.n_tokens == 0 or (response.text is not None and response.generated is None):
            return 0
        longest = max(longest, response.n_tokens + written)
    return longest


def _table(
    task_requests: TaskRequests,
    answers: TaskAnswers,
    filter_name: str,
    metric: str,
    items: Mapping[int, Any],
    source: str,
) -> ScoreTable:
    task = task_requests.lm_eval_task
    aggregation, aggregation_caveat = aggregation_name(task, metric)
    higher_is_better = direction(task, metric)
    documents = sorted(
        (document for document in answers.documents if document.doc_id in items),
        key=lambda document: document.doc_id,
    )
    of_documents = [items[document.doc_id] for document in documents]
    if has_closed_form(aggregation):
        statistics = read_items(of_documents, aggregation)
    else:
        rescoring = task_rescoring(task, metric, of_documents, aggregation)
        statistics = DocumentStatistics.rescored(rescoring)
    blank = _blank_table(task_requests, documents, source)
    caveats = (aggregation_caveat, _repeated(answers.repeats.get((filter_name, metric), 1)))
    table = replace(
        blank,
        filter=filter_name,
        metric=metric,
        aggregation=statistics.aggregation,
        higher_is_better=higher_is_better is not False,
        directed=higher_is_better is not None,
        values=statistics.values,
        weights=statistics.weights,
        rescoring=statistics.rescoring,
        each_answer=_each_answer(task, answers, documents, filter_name, metric, statistics),
        answers=given_answers(answers, documents, filter_name, metric),
        caveats=(*blank.caveats, *(caveat for caveat in caveats if caveat)),
    )
    return with_uninformative(table, _uninformative(table, answers, documents))


def _each_answer(
    task: Task,
    answers: TaskAnswers,
    documents: Sequence[AnsweredDocument],
    filter_name: str,
    metric: str,
    statistics: DocumentStatistics,
) -> NDArray[np.float64] | None:
    """The metric of every single answer, where these are several or sampled."""
    if not answers.alone or statistics.aggregation != "mean" or not documents:
        return None
    if max(len(document.responses) for document in documents) > 1:
        doc_ids = [document.doc_id for document in documents]
        return each_answer(task, answers.alone.get(filter_name), metric, doc_ids)
    sampled = any(_temperature(document) > 0.0 for document in documents)
    return np.asarray(statistics.values, dtype=np.float64)[:, None] if sampled else None


def _blank_table(
    task_requests: TaskRequests, documents: Sequence[AnsweredDocument], source: str
) -> ScoreTable:
    """A table of these documents, in ascending doc_id, without any metric's values."""
    asked = [document.asked for document in documents]
    tokens = tuple(document.token_hash for document in documents)
    caveats = (
        *task_requests.notes,
        _equal_repeats(documents),
        _truncated(documents),
        _missing(len(documents), task_requests.n_documents),
    )
    return ScoreTable(
        task=task_requests.task,
        filter="",
        metric="",
        aggregation="mean",
        higher_is_better=True,
        doc_ids=np.array([document.doc_id for document in documents], dtype=np.int64),
        values=np.zeros(len(documents)),
        doc_hashes=tuple(document.doc_hash for document in asked),
        prompt_hashes=tuple(document.prompt_hash for document in asked),
        target_hashes=tuple(document.target_hash for document in asked),
        asked_hashes=tuple(document.asked_hash for document in asked),
        token_hashes=tokens if all(tokens) else (),
        cut=tuple(_depends_on_length(document) for document in documents),
        n_total=task_requests.n_total,
        source=source,
        run=task_requests.run,
        dataset=task_requests.dataset,
        caveats=tuple(caveat for caveat in caveats if caveat),
    )


def _depends_on_length(document: AnsweredDocument) -> bool:
    # whole texts are read in windows of the context's length; how many is not known here
    rolling = any(request.kind == "loglikelihood_rolling" for request in document.asked.requests)
    return rolling or any(answer.truncated for answer in document.responses)


def _repeated(repeats: int) -> str:
    if repeats < 2:
        return ""
    return (
        f"each document was answered {repeats} times, and its score is the average of all answers; "
        "lm-eval reports the first one only"
    )


def _uninformative(
    table: ScoreTable, answers: TaskAnswers, documents: Sequence[AnsweredDocument]
) -> Uninformative | None:
    """Where the answers say nothing about the model."""
    options = [set(document.asked.options) for document in documents]
    if options and all(len(choices) == 1 for choices in options):
        return Uninformative(kind="one_option", documents=len(options), n=len(options))
    responses = [answer for document in documents for answer in document.responses]
    if answers.alone:
        of_filter = answers.alone.get(table.filter)
        unfound = of_filter.missing if of_filter is not None else {}
        filtered = answers.filtered[table.filter]
        return uninformative_answers(
            table,
            [document.responses[0].text or "" for document in documents],
            [
                unfound[doc][0] if doc in unfound else gives_nothing(filtered[doc][0])
                for doc in (document.doc_id for document in documents)
            ],
        )
    tokens = [answer.token_logprobs for answer in responses if answer.token_logprobs is not None]
    scored = np.concatenate(tokens) if tokens and len(tokens) == len(responses) else np.empty(0)
    few = len(scored) < _FEW_TOKENS or not np.isfinite(scored).all()
    if few or float(np.ptp(scored)) > _ROUNDING:
        return None
    return Uninformative(kind="flat", documents=len(documents), n=len(documents))


def _equal_repeats(documents: Sequence[AnsweredDocument]) -> str:
    """Where sampled answers to a document are all the same text in (nearly) all documents."""
    several = [
        document
        for document in documents
        if len(document.responses) > 1
        and len(set(document.asked.arguments)) == 1
        and _temperature(document) > 0.0
    ]
    equal = sum(len({answer.text for answer in document.responses}) == 1 for document in several)
    if len(several) < _FEW_REPEATED or equal < _NEARLY_ALL * len(several):
        return ""
    return (
        f"the {len(several[0].responses)} answers to a document are the same text in {equal:,} of "
        f"{len(several):,} documents, though they are sampled (temperature "
        f"{_temperature(several[0]):g}): they count as one answer, as of a server that gives every "
        "request the same seed, or a cached answer"
    )


def _temperature(document: AnsweredDocument) -> float:
    """Of the first request for a text; 0 where it is decoded greedily, or says nothing."""
    options = document.asked.requests[0].arguments[-1]
    if not isinstance(options, Mapping) or options.get("do_sample") is False:
        return 0.0
    temperature = options.get("temperature")
    return float(temperature) if isinstance(temperature, (int, float)) else 0.0


def _truncated(documents: Sequence[AnsweredDocument]) -> str:
    cut = sum(any(answer.truncated for answer in document.responses) for document in documents)
    if not cut:
        return ""
    return f"{cut} of {len(documents)} documents cut from the left to fit the model's context"


def _missing(found: int, expected: int) -> str:
    if found == expected:
        return ""
    return f"{expected - found} of {expected} documents have no value for this metric"
