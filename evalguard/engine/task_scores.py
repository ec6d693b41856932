"""From a model's answers to a task to its scores; answers to a few documents are set aside."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evalguard.answers.figure_tables import answers_by_document, figure_tables
from evalguard.core.chat import take_apart
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.scorer import ModelDescription, Request, Response
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import ShownTokens, TopLogprobs
from evalguard.harness.requests import TaskRequests, random_subset
from evalguard.harness.score_tables import TaskScores, score_tables

AnsweredRequests = tuple[tuple[Request, Response], ...]
_ROLLING_BOS = {
    "lm-eval": "whole texts: the likelihood of BOS given BOS counts, as in lm-eval "
    "(rolling_bos: once leaves it out)",
    "once": "whole texts: BOS is read once and not scored (rolling_bos: once); lm-eval itself "
    "gives another value",
}


@dataclass(slots=True, kw_only=True)
class TaskScoring:
    """Scores tasks as lm-eval does.

    Attributes:
        documents: of every task and model, drawn with ``seed``, whose answers are set aside.
        aside: requests and answers by (model, task).
        shown: by (model, task), the tokens that a server showed beside the scored ones.
        figures: of generated answers that have score tables as metrics have, as a gate names them.
        expected: by task, structure that all of its answers must have, as a guard file says.
    """

    documents: int = 0
    seed: int = 0
    aside: dict[tuple[str, str], AnsweredRequests] = field(default_factory=dict)
    shown: dict[tuple[str, str], ShownTokens] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    expected: Mapping[str, ExpectedAnswer] = field(default_factory=dict)

    def shown_by(self, model: str) -> Mapping[str, ShownTokens]:
        """What a model showed, by task; nothing of one that is no server."""
        return {task: shown for (name, task), shown in self.shown.items() if name == model if shown}

    def scores(
        self,
        model: str,
        asked: TaskRequests,
        told: Sequence[Response],
        description: ModelDescription | None = None,
    ) -> TaskScores:
        """Score a task that a model has answered.

        Args:
            description: of the model, where its tables are to say how it read whole texts.

        Raises:
            EvaluationError: the task's own code fails.
        """
        if self.documents:
            drawn = frozenset(random_subset(asked, self.documents, seed=self.seed).doc_ids)
            pairs = zip(asked.requests, told, strict=True)
            self.aside[model, asked.task] = tuple(p for p in pairs if p[0].doc_id in drawn)
        self.shown[model, asked.task] = collect_shown_tokens(asked.requests, told)
        made = score_tables(
            asked,
            told,
            source=model,
            tables_of_answers=self._figure_tables if self.figures else None,
        )
        scores = drop_unsound_scores(made, asked.requests, told)
        if description is None:
            return scores
        template = describe_used_template(description, asked)
        tables = tuple(_with_reading(table, description, template) for table in scores.tables)
        return replace(scores, tables=tables)

    def _figure_tables(
        self, blank: ScoreTable, samples: Sequence[Mapping[str, Any]]
    ) -> Sequence[ScoreTable]:
        answers = answers_by_document(blank.task, samples)
        return figure_tables(blank, answers, self.figures, self.expected.get(blank.task))


def collect_shown_tokens(requests: Sequence[Request], responses: Sequence[Response]) -> ShownTokens:
    """What a server showed of a task's scored tokens; {} where any likelihood has none."""
    by_document: dict[int, list[tuple[int, TopLogprobs]]] = defaultdict(list)
    for request, response in zip(requests, responses, strict=True):
        if request.kind == "generate_until":
            continue
        if response.top_logprobs is None:
            return {}
        by_document[request.doc_id].append((request.index, response.top_logprobs))
    return {
        doc: tuple(shown for _, shown in sorted(of, key=_first)) for doc, of in by_document.items()
    }


def _first(pair: tuple[int, TopLogprobs]) -> int:
    return pair[0]


def describe_reading(environment: Mapping[str, Value], max_length: int = 0) -> dict[str, Value]:
    """What token ids follow from, as ``ScoreTable.reading`` has it, of a model's environment."""
    packages = environment.get("packages")
    reading: dict[str, Value] = {
        "lm_eval": packages.get("lm_eval") if isinstance(packages, Mapping) else None,
        "max_length": max_length or None,
        **{name: environment.get(name) for name in _READING_KEYS},
    }
    return {name: value for name, value in reading.items() if value is not None}


_READING_KEYS = ("add_bos_token", "prefix_token_id", "rolling_bos")


def describe_used_template(description: ModelDescription, asked: TaskRequests) -> str:
    """Which chat template made a model's prompts, as ``describe_template`` says it.

    "server": the one that a server has; "" where there is none, or it is not known.
    """
    if not asked.chat or not asked.requests:
        return ""
    tokenizer = description.configuration.get("tokenizer")
    template = tokenizer.get("chat template") if isinstance(tokenizer, Mapping) else None
    if isinstance(template, str):
        return template
    sends_messages = take_apart(str(asked.requests[0].arguments[0])).is_conversation
    return "server" if sends_messages or description.model_type == "llama_server" else ""


def _with_reading(table: ScoreTable, description: ModelDescription, template: str) -> ScoreTable:
    """Say what token ids follow from, and how whole texts were read where that matters."""
    reading = describe_reading(description.environment, description.max_length)
    if template:
        reading["chat_template"] = template
    table = replace(table, reading=reading)
    rolling_bos = description.environment.get("rolling_bos")
    if rolling_bos is None or table.run.get("output_type") != "loglikelihood_rolling":
        return table
    return replace(
        table,
        run={**table.run, "rolling_bos": rolling_bos},
        provenance=(*table.provenance, _ROLLING_BOS[str(rolling_bos)]),
    )


def drop_unsound_scores(
    scores: TaskScores, requests: Sequence[Request], responses: Sequence[Response]
) -> TaskScores:
    """Give NaN to every metric of a document with a likelihood that is none (NaN or +inf).

    An accuracy would hide it: the largest of several NaN is the first, so that a model of NaN
    answers every multiple-choice question, and some of them correctly.
    """
    broken = {
        request.doc_id
        for request, response in zip(requests, responses, strict=True)
        if response.loglikelihood is not None and _is_no_likelihood(response.loglikelihood)
    }
    if not broken:
        return scores
    return replace(
        scores, tables=tuple(_without_documents(table, broken) for table in scores.tables)
    )


def _is_no_likelihood(loglikelihood: float) -> bool:
    return math.isnan(loglikelihood) or loglikelihood == math.inf


def _without_documents(table: ScoreTable, broken: set[int]) -> ScoreTable:
    values = np.where(np.isin(table.doc_ids, sorted(broken)), math.nan, table.values)
    return replace(table, values=values)
