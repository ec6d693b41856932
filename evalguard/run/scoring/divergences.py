"""Divergences of all tasks, as they are measured block by block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evalguard.core.divergence import TOP_K, Divergence, DocumentDivergence
from evalguard.core.scorer import ComparedAnswer, Request

GENERATION_ONLY = "it generates text, and only scored tokens have distributions to be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDivergences:
    """How two models' distributions differ on one task's documents.

    ``documents`` is empty where that was not measured; ``reason`` says why.
    """

    task: str
    documents: tuple[DocumentDivergence, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class DivergenceTables:
    """What was measured so far, by task and document."""

    reasons: dict[str, str] = field(default_factory=dict)
    _found: dict[str, dict[int, dict[int, Divergence]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    def add(self, requests: Sequence[Request], compared: ComparedAnswer) -> None:
        """Take in one block; a task of which one block cannot be compared is not measured."""
        task = requests[0].task
        if compared.reason:
            self.give_up(task, compared.reason)
            return
        for request, divergence in zip(requests, compared.divergences, strict=True):
            found = _NO_POSITIONS if divergence is None else divergence
            self._found[task][request.doc_id][request.index] = found

    def give_up(self, task: str, reason: str) -> None:
        """Say why a task is not measured; the first reason counts."""
        self.reasons.setdefault(task, reason)

    def of(self, tasks: Sequence[str]) -> Mapping[str, TaskDivergences]:
        """Return what was measured; a task without any likelihood request generates."""
        return {task: self._of(task) for task in tasks}

    def _of(self, task: str) -> TaskDivergences:
        if task in self.reasons or task not in self._found:
            return TaskDivergences(task=task, reason=self.reasons.get(task, GENERATION_ONLY))
        documents = tuple(
            DocumentDivergence(doc_id=doc_id, requests=tuple(of for _, of in sorted(asked.items())))
            for doc_id, asked in sorted(self._found[task].items())
        )
        return TaskDivergences(task=task, documents=documents)


_NO_POSITIONS = Divergence(
    token_ids=np.empty(0, dtype=np.int64),
    base_logprobs=np.empty(0),
    candidate_logprobs=np.empty(0),
    kl=np.empty(0),
    base_top=np.empty(0, dtype=np.int64),
    candidate_top=np.empty(0, dtype=np.int64),
    shared_top=np.empty(0, dtype=np.int64),
    top_k=TOP_K,
)
