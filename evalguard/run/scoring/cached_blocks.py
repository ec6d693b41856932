"""Kept blocks: read where they are there, kept where that is possible, and what goes wrong said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from evalguard.core.reference import Reference
from evalguard.core.scorer import ComparedAnswer, ModelDescription, Response, Scorer
from evalguard.core.settings import Value
from evalguard.errors import StoreError
from evalguard.harness.blocks import RequestBlock
from evalguard.harness.requests import TaskRequests
from evalguard.store.block_cache import BlockCache

BlockContent = TypeVar("BlockContent")


# Each is an open file; more blocks than these may be asked for by two processes.
_MOST_RESERVED = 256


class LoadedModel(NamedTuple):
    """A model while it is loaded; ``name`` is its name in reports."""

    name: str
    scorer: Scorer


@dataclass(slots=True)
class SafeBlockCache(Generic[BlockContent]):
    """A cache that costs no verdict: a disk that refuses, or a damaged file, is only said.

    ``cache`` is None where nothing is read or kept. ``note`` takes what is to be said,
    ``find_unstored`` what could not be kept; ``lost`` says whether there was such a thing.
    """

    cache: BlockCache[BlockContent] | None
    note: Callable[[str], None]
    find_unstored: Callable[[str], None]
    lost: bool = False
    _said: int = 0
    _reserved: dict[tuple[str, str], ExitStack] = field(default_factory=dict)
    _described: set[tuple[str, str, str]] = field(default_factory=set)

    def get(self, key: str | None, block: str) -> BlockContent | None:
        """Return a finished block, or None; ``key`` None: nothing of this model is kept."""
        if self.cache is None or key is None:
            return None
        found = self.cache.get(key, block)
        self._tell(self.cache.problems)
        return found

    def holds(self, key: str | None, block: str) -> bool:
        """Whether a block seems to be there; nothing is read."""
        return self.cache is not None and key is not None and self.cache.holds(key, block)

    def put(self, key: str | None, block: str, content: BlockContent) -> None:
        """Keep a finished block where that is possible."""
        if self.cache is None or key is None:
            return
        try:
            self.cache.put(key, block, content)
        except StoreError as error:
            self.lost = True
            # The numbers are in memory: a full disk must not cost the verdict.
            hint = f" ({error.hint})" if error.hint else ""
            self.find_unstored(f"not everything could be kept in the cache: {error}{hint}")

    @contextmanager
    def locked(self, key: str | None, block: str) -> Iterator[bool]:
        """Hold a block while it is made; yields False where another process holds it."""
        if self.cache is None or key is None:
            yield True
            return
        with self.cache.locked(key, block) as ours:
            self._tell(self.cache.problems)
            yield ours

    def reserve(self, key: str | None, block: str) -> bool:
        """Hold a block until it is released; False where another process holds it."""
        if self.cache is None or key is None or (key, block) in self._reserved:
            return True
        if len(self._reserved) == _MOST_RESERVED:
            return True
        with ExitStack() as stack:
            ours = stack.enter_context(self.cache.locked(key, block))
            if ours:
                self._reserved[key, block] = stack.pop_all()
        self._tell(self.cache.problems)
        return ours

    def release(self, key: str | None, block: str = "") -> None:
        """Let go of a block that was reserved, or of all of a key."""
        for place in [of for of in self._reserved if of[0] == key and block in ("", of[1])]:
            self._reserved.pop(place).close()

    def release_all(self) -> None:
        """Let go of all blocks that were reserved."""
        for key in {key for key, _ in self._reserved}:
            self.release(key)

    def describe(self, key: str | None, *, name: str, task: str, model: ModelDescription) -> None:
        """Write down for people what a key stands for, once."""
        said = (key or "", name, task)
        if self.cache is None or key is None or said in self._described:
            return
        self._described.add(said)
        about: dict[str, Value] = {
            "type": model.model_type, "dtype": model.dtype, "device": model.device
        }  # fmt: skip
        self.cache.describe(key, name=name, task=task, model=about)

    def _tell(self, problems: Sequence[str]) -> None:
        for problem in problems[self._said :]:
            self.note(problem)
        self._said = len(problems)


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """A block in one of the caches; ``key`` is None where it is not kept.

    ``models`` are those that the block is of, by their names.
    """

    kept: SafeBlockCache[Any]
    key: str | None
    block: str
    models: Sequence[LoadedModel]

    def describe(self, task: str) -> None:
        """Write down for people which models and which task this is of."""
        name = " vs ".join(name for name, _ in self.models)
        if self.key is not None:
            last = self.models[-1][1].describe()
            self.kept.describe(self.key, name=name, task=task, model=last)

    @property
    def is_there(self) -> bool:
        """Whether the block seems to be kept."""
        return self.kept.holds(self.key, self.block)


@contextmanager
def lock_blocks(entries: Sequence[BlockEntry]) -> Iterator[bool]:
    """Hold all of these blocks, or none: yields False where another process holds one of them."""
    with ExitStack() as stack:
        yield all(
            stack.enter_context(entry.kept.locked(entry.key, entry.block)) for entry in entries
        )


# Ahead: blocks that several workers can score before they are asked for.


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksAhead:
    """Blocks of one model that workers can score side by side, all in one way.

    ``top_k``: tokens of its distributions that are left as references; 0: none. ``beside``: the
    base's references, which its distributions are compared with; None: its scores are asked for.
    """

    blocks: Sequence[RequestBlock]
    top_k: int = 0
    beside: Callable[[RequestBlock], Sequence[Reference | None]] | None = None


class AnswerAhead(Protocol):
    """What a worker answered to a block, as ``ScoredBlock`` of the runner of probes."""

    @property
    def responses(self) -> Sequence[Response]: ...

    @property
    def references(self) -> Sequence[Reference | None]: ...

    @property
    def compared(self) -> ComparedAnswer | None: ...


@runtime_checkable
class AheadBlockScorer(Protocol):
    """One model's way of answering blocks, which workers can take ahead of it."""

    @property
    def models(self) -> Sequence[LoadedModel]:
        """The one model."""

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:
        """Where all that is found of a block is kept."""

    def split_ahead(self, blocks: Sequence[RequestBlock]) -> Sequence[BlocksAhead]:
        """How blocks are to be scored; they are without anything that is kept of them."""

    def store_ahead(self, block: RequestBlock, found: AnswerAhead) -> None:
        """Keep what a worker answered, for when the block is asked for."""


def split_by(
    blocks: Sequence[RequestBlock], holds: Callable[[RequestBlock], bool]
) -> tuple[list[RequestBlock], list[RequestBlock]]:
    """Return the blocks for which something holds, and the others."""
    told = [(block, holds(block)) for block in blocks]
    return [block for block, one in told if one], [block for block, one in told if not one]


# Alone: one model answers by itself, from the score cache where it can.


class BlockCaching(Protocol):
    """What answers and keeps blocks, as ``Evaluator`` does."""

    def entry(self, block: RequestBlock, model: LoadedModel) -> BlockEntry: ...

    def find_cached(self, block: RequestBlock, scorer: Scorer) -> Sequence[Response] | None: ...

    def score_block(
        self, block: RequestBlock, scorer: Scorer
    ) -> tuple[Sequence[Response], bool]: ...

    def store_answers(
        self, block: RequestBlock, scorer: Scorer, responses: Sequence[Response]
    ) -> None: ...


@dataclass(slots=True)
class SingleModelScorer:
    """One model answers by itself."""

    model: LoadedModel
    evaluator: BlockCaching

    @property
    def models(self) -> Sequence[LoadedModel]:
        """The one model."""
        return (self.model,)

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:
        """The model's answers."""
        return (self.evaluator.entry(blocks[0], self.model),)

    def find_cached(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks | None:
        """Return the answers where they are kept."""
        found = self.evaluator.find_cached(blocks[0], self.model.scorer)
        return None if found is None else ScoredBlocks(responses=(found,), kept=(True,))

    def answer(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks:
        """Answer a block, from the cache where it is there."""
        responses, cached = self.evaluator.score_block(blocks[0], self.model.scorer)
        return ScoredBlocks(responses=(responses,), kept=(cached,))

    def split_ahead(self, blocks: Sequence[RequestBlock]) -> Sequence[BlocksAhead]:
        """Scores of all; see ``AheadBlockScorer``."""
        return (BlocksAhead(blocks=blocks),)

    def store_ahead(self, block: RequestBlock, found: AnswerAhead) -> None:
        """Keep answers."""
        self.evaluator.store_answers(block, self.model.scorer, found.responses)


# Answering: how a block of documents is answered, by one model or by several side by side.


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


# A task's way through its blocks, some of which another process may be scoring just now.


# Looking again costs a few system calls a block; a block takes from tenths of a second to minutes.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
# A process that was stopped, or a dead machine's lock on a network disk, must not hold up a run.
BLOCK_PATIENCE = 15 * 60.0

BlockIndex = tuple[int, int]


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
        advance: Callable[[int, ScoredBlocks], None],
        *,
        alone: bool = False,
    ) -> None:
        """Answer every block that is left but for those that other processes are scoring.

        Args:
            advance: is told of every finished block: its documents, and the answers.
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
            advance(len(blocks[0].doc_ids), answered)
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
