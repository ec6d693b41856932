"""A model of arithmetic that counts what it is asked, and tables to compare."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.core.scorer import ModelDescription, Request, Response
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value
from evalguard.engine.executor import Evaluation, Executor
from evalguard.harness.tasks import TaskSet
from evalguard.page.progress import ProgressLine


class FakeScorer:
    """Scores by a hash of its name and the request.

    ``scored`` holds the document ids of every call; ``fails`` is raised at that many calls.
    """

    def __init__(
        self,
        name: str = "m",
        *,
        cached: bool = True,
        fails: Mapping[int, BaseException] | None = None,
        answers: int | None = None,
    ) -> None:
        self.name = name
        self.scored: list[tuple[int, ...]] = []
        self.closed = False
        self._identity: dict[str, Value] | None = {"weights": name} if cached else None
        self._fails = dict(fails or {})
        self._answers = answers

    def describe(self) -> ModelDescription:
        return ModelDescription(
            model_type="fake",
            identity=self._identity,
            vocabulary_digest="v",
            vocabulary_size=50_000,
        )

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        return [tuple(str(request.arguments).encode()) for request in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        if len(self.scored) in self._fails:
            raise self._fails.pop(len(self.scored))
        self.scored.append(tuple(dict.fromkeys(request.doc_id for request in requests)))
        return [self._respond(request) for request in requests][: self._answers]

    def _respond(self, request: Request) -> Response:
        digest = hashlib.sha256(f"{self.name} {request.arguments}".encode()).digest()
        return Response(
            loglikelihood=-1.0 - digest[0] / 16,
            is_greedy=digest[1] % 2 == 0,
            token_hash=hashlib.sha256(str(request.arguments).encode()).hexdigest(),
        )

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        return f"{self.name}:" + "|".join(message["content"] for message in messages)

    def close(self) -> None:
        self.closed = True


def executor(tasks: TaskSet, cache: Path | None, said: io.StringIO | None = None) -> Executor:
    """As a process of its own would have it: a lock of one is none of the other."""
    return Executor(
        tasks=tasks,
        kept=cache,
        progress=ProgressLine(stream=said or io.StringIO(), live=False),
    )


def scores_of(evaluation: Evaluation) -> dict[tuple[str, str, str], list[float]]:
    return {
        table.key: table.values.tolist()
        for scores in evaluation.scores.values()
        for table in scores.tables
    }


def table(values: Sequence[float], **changes: Any) -> ScoreTable:
    """A table of accuracies with hashes by document id."""
    n = len(values)
    hashes = tuple(f"hash-{i}" for i in range(n))
    fields: dict[str, Any] = {
        "task": "t",
        "filter": "none",
        "metric": "acc",
        "aggregation": "mean",
        "higher_is_better": True,
        "doc_ids": np.arange(n),
        "values": np.array(values, dtype=np.float64),
        "doc_hashes": hashes,
        "prompt_hashes": hashes,
        "target_hashes": hashes,
        "token_hashes": hashes,
        "n_total": n,
    }
    return ScoreTable(**{**fields, **changes})
