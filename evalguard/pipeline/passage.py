"""A task's way through its blocks, some of which another process may be scoring just now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evalguard.harness import Block, TaskRequests
from evalguard.pipeline.answering import Answered, Answering
from evalguard.pipeline.kept_blocks import turn
from evalguard.scorer import Response

# Looking again costs a few system calls a block; a block takes from tenths of a second to minutes.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# A process that was stopped, or a dead machine's lock on a network disk, must not hold up a run.
PATIENCE = 15 * 60.0

Place = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class Passage:
    """The blocks of a task, until every model has answered all of them.

    Attributes:
        requests: of each model, about the same documents.
        left: blocks without an answer, each model's beside the others'.
        total, done: documents, in every block again.
    """

    requests: Sequence[TaskRequests]
    left: list[tuple[Block, ...]]
    total: int = field(init=False)
    done: int = 0
    _answers: list[dict[Place, Response]] = field(init=False)

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

    def go(
        self, answering: Answering, advance: Callable[[int, Answered], None], *, alone: bool = False
    ) -> None:
        """Answer every block that is left but for those that other processes are scoring.

        Args:
            advance: is told of every finished block: its documents, and the answers.
            alone: score these too.
        """
        left = []
        for blocks in self.left:
            entries = answering.entries(blocks)
            answered = answering.kept(blocks)
            if answered is None:
                with turn(entries) as ours:
                    # This looks into the caches once more: it may have been finished meanwhile.
                    answered = answering.answer(blocks) if ours or alone else None
            if answered is None:
                left.append(blocks)
                continue
            for entry in entries:
                entry.describe(self.task)
            for found, block, told in zip(self._answers, blocks, answered.responses, strict=True):
                for request, response in zip(block.requests, told, strict=True):
                    found[request.doc_id, request.index] = response
            self.done += len(blocks[0].doc_ids)
            advance(len(blocks[0].doc_ids), answered)
        self.left = left


def wait_for_others(
    passages: Sequence[Passage],
    go: Callable[[Passage, bool], None],
    say: Callable[[str], None],
) -> None:
    """Go on with passages until nothing of them is left.

    What another process finishes is read; what it gives up, or dies over, is scored here.

    Args:
        go: lets a passage go on; True: whatever others are doing.
        say: takes what a person is to know of the waiting.
    """
    pause, since = _FIRST_PAUSE, time.monotonic()
    left = _left(passages)
    while left:
        patient = time.monotonic() - since < PATIENCE
        if not patient:
            say("another process is not getting on with its documents: they are scored here too")
        for passage in passages:
            if passage.left:
                go(passage, not patient)
        before, left = left, _left(passages)
        if left < before:
            pause, since = _FIRST_PAUSE, time.monotonic()
        elif left:
            if pause == _FIRST_PAUSE:
                say(f"waiting for {_documents(passages)} that another process is scoring")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _left(passages: Sequence[Passage]) -> int:
    return sum(len(passage.left) for passage in passages)


def _documents(passages: Sequence[Passage]) -> str:
    number = sum(passage.total - passage.done for passage in passages)
    return f"{number:,} documents of {', '.join(p.task for p in passages if p.left)}"
