"""From a model's answers to a task to its scores; answers to a few documents are set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from evalguard.harness import TaskRequests, TaskScores, score_tables
from evalguard.harness.subset import random_subset
from evalguard.pipeline.soundness import only_sound
from evalguard.scorer import ModelDescription, Request, Response
from evalguard.scores import ScoreTable
from evalguard.settings import Value

Pairs = tuple[tuple[Request, Response], ...]

_ROLLING_BOS = {
    "lm-eval": "whole texts: the likelihood of BOS given BOS counts, as in lm-eval (--rolling-bos "
    "once leaves it out)",
    "once": "whole texts: BOS is read once and not scored (--rolling-bos once); lm-eval itself "
    "gives another value",
}


@dataclass(slots=True, kw_only=True)
class TaskScoring:
    """Scores tasks as lm-eval does.

    Attributes:
        documents: of every task and model, drawn with ``seed``, whose answers are set aside.
        aside: requests and answers by (model, task).
    """

    documents: int = 0
    seed: int = 0
    aside: dict[tuple[str, str], Pairs] = field(default_factory=dict)

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
        scores = only_sound(score_tables(asked, told, source=model), asked.requests, told)
        if description is None:
            return scores
        tables = tuple(_with_reading(table, description) for table in scores.tables)
        return replace(scores, tables=tables)


def reading_of(environment: Mapping[str, Value], max_length: int = 0) -> dict[str, Value]:
    """What token ids follow from, as ``ScoreTable.reading`` has it, of a model's environment."""
    packages = environment.get("packages")
    found: dict[str, Value] = {
        "lm_eval": packages.get("lm_eval") if isinstance(packages, Mapping) else None,
        "max_length": max_length or None,
        **{name: environment.get(name) for name in _OF_READING},
    }
    return {name: value for name, value in found.items() if value is not None}


_OF_READING = ("add_bos_token", "prefix_token_id", "rolling_bos")


def _with_reading(table: ScoreTable, description: ModelDescription) -> ScoreTable:
    """Say what token ids follow from, and how whole texts were read where that matters."""
    reading = reading_of(description.environment, description.max_length)
    table = replace(table, reading=reading)
    rolling_bos = description.environment.get("rolling_bos")
    if rolling_bos is None or table.run.get("output_type") != "loglikelihood_rolling":
        return table
    return replace(
        table,
        run={**table.run, "rolling_bos": rolling_bos},
        caveats=(*table.caveats, _ROLLING_BOS[str(rolling_bos)]),
    )
