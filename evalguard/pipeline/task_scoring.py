"""From a model's answers to a task to its scores; answers to a few documents are set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evalguard.harness import TaskRequests, TaskScores, score_tables
from evalguard.harness.subset import random_subset
from evalguard.pipeline.soundness import only_sound
from evalguard.scorer import Request, Response

Pairs = tuple[tuple[Request, Response], ...]


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

    def scores(self, model: str, asked: TaskRequests, told: Sequence[Response]) -> TaskScores:
        """Score a task that a model has answered.

        Raises:
            EvaluationError: the task's own code fails.
        """
        if self.documents:
            drawn = frozenset(random_subset(asked, self.documents, seed=self.seed).doc_ids)
            pairs = zip(asked.requests, told, strict=True)
            self.aside[model, asked.task] = tuple(p for p in pairs if p[0].doc_id in drawn)
        return only_sound(score_tables(asked, told, source=model), asked.requests, told)
