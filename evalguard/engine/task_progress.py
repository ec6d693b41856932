"""A task's way through its blocks, some of which another process may be scoring just now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evalguard.core.scorer import Response
from evalguard.engine.kept_blocks import BlockEntry, LoadedModel, lock_blocks
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests

# Looking again costs a few system calls a block; a block takes from tenths of a second to minutes.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
# A process that was stopped, or a dead machine's lock on a network disk, must not hold up a run.
BLOCK_PATIENCE = 15 * 60.0
BlockIndex = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBlocks:
    """One block's answers, of every model that goes through the documents together.

    ``kept`` says of each model whether its answers had been kept.
    """

    responses: tuple[Sequence[Response], ...]
    kept: tuple[bool, ...]

    @property
    def cached(self) -> bool:
        """Whether nothing had to be scored."""
        return all(self.kept)


class BlockScorer(Protocol):
    """How blocks are answered; each model has its own blocks, of the same documents."""

    @property
    def models(self) -> Sequence[LoadedModel]:
        """Names and scorers of the models that answer."""

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:
        """Return what block_scorer these blocks may put into caches."""

    def find_cached(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks | None:
        """Return what is kept, where nothing has to be scored."""

    def answer(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks:
        """Answer blocks: take what is kept, and score the rest."""


@dataclass(slots=True, kw_only=True)
class TaskProgress:
    """The blocks of a task, until every model has answered all of them.

    Attributes:
        requests: of each model, about the same documents.
        left: blocks without an answer, each model's beside the others'.
        total, done: documents, in every block again.
    """

    requests: Sequence[TaskRequests]
    left: list[tuple[RequestBlock, ...]]
    total: int = field(init=False)
    done: int = 0
    _answers: list[dict[BlockIndex, Response]] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no answers."""
        # A task that asks in two ways goes through its documents twice.
        self.total = sum(len(blocks[0].doc_ids) for blocks in self.left)
        self._answers = [{} for _ in self.requests]

    @property
    def task(self) -> str:
        """The task's name."""
        return self.requests[0].task

    @property
    def answers(self) -> list[list[Response]]:
        """For each model one response per request, in the order of its requests."""
        return [
            asked.in_order(found) for asked, found in zip(self.requests, self._answers, strict=True)
        ]

    def run(
        self,
        block_scorer: BlockScorer,
        advance: Callable[[Sequence[RequestBlock], ScoredBlocks], None],
        *,
        alone: bool = False,
    ) -> None:
        """Answer every block that is left but for those that other processes are scoring.

        Args:
            advance: is told of every finished block of each model, and the answers.
            alone: score these too.
        """
        left = []
        for blocks in self.left:
            entries = block_scorer.entries(blocks)
            answered = block_scorer.find_cached(blocks)
            if answered is None:
                with lock_blocks(entries) as ours:
                    # This looks into the caches once more: it may have been finished meanwhile.
                    answered = block_scorer.answer(blocks) if ours or alone else None
            if answered is None:
                left.append(blocks)
                continue
            for entry in entries:
                entry.describe(self.task)
            for found, block, told in zip(self._answers, blocks, answered.responses, strict=True):
                for request, response in zip(block.requests, told, strict=True):
                    found[request.doc_id, request.index] = response
            self.done += len(blocks[0].doc_ids)
            advance(blocks, answered)
        self.left = left


def wait_for_others(
    running: Sequence[TaskProgress],
    go: Callable[[TaskProgress, bool], None],
    say: Callable[[str], None],
) -> None:
    """Go on with running until nothing of them is left.

    What another process finishes is read; what it gives up, or dies over, is scored here.

    Args:
        go: lets a task_progress go on; True: whatever others are doing.
        say: takes what a person is to know of the waiting.
    """
    pause, since = FIRST_PAUSE, time.monotonic()
    left = _blocks_left(running)
    while left:
        patient = time.monotonic() - since < BLOCK_PATIENCE
        if not patient:
            say("another process is not getting on with its documents: they are scored here too")
        for task_progress in running:
            if task_progress.left:
                go(task_progress, not patient)
        before, left = left, _blocks_left(running)
        if left < before:
            pause, since = FIRST_PAUSE, time.monotonic()
        elif left:
            if pause == FIRST_PAUSE:
                say(f"waiting for {_document_range(running)} that another process is scoring")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _blocks_left(running: Sequence[TaskProgress]) -> int:
    return sum(len(task_progress.left) for task_progress in running)


def _document_range(running: Sequence[TaskProgress]) -> str:
    number = sum(task_progress.total - task_progress.done for task_progress in running)
    return f"{number:,} documents of {', '.join(p.task for p in running if p.left)}"
