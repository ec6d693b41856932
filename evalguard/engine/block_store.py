"""Units that models answer, and the one place where answers are looked up and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from evalguard.core.divergence import SAMPLES, Reference
from evalguard.core.scorer import ComparedAnswer, ModelDescription, Response, Scorer
from evalguard.core.settings import Value, digest_of
from evalguard.engine.loading.lazy_scorer import LazyScorer, runs_here
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError, StoreError, error_text
from evalguard.harness.request_blocks import RequestBlock
from evalguard.run_token import run_of
from evalguard.store.block_cache import BlockCache, DivergenceCache, ReferenceCache, ScoreCache

BlockContent = TypeVar("BlockContent")
# Each is an open file; more blocks than these may be asked for by two processes.
_MOST_RESERVED = 256
# Names what is kept of a model whose weights are not proven, for as long as this run lasts.
_UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model while it is open, and what it was opened from; ``name`` is its name in reports.

    ``source`` has the policy that it is scored by; None: nothing can open it elsewhere once more.
    """

    name: str
    scorer: Scorer
    source: ModelSource | None = None


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
        content = self.cache.get(key, block)
        self._tell(self.cache.problems)
        return content

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
            self.find_unstored(f"not everything could be kept in the cache: {error_text(error)}")

    def drop(self, key: str | None, block: str) -> None:
        """Keep a block no more: what holds it has taken its place."""
        if self.cache is not None and key is not None:
            self.cache.drop(key, block)

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
        for reserved in [of for of in self._reserved if of[0] == key and block in ("", of[1])]:
            self._reserved.pop(reserved).close()

    def release_all(self) -> None:
        """Let go of all blocks that were reserved."""
        for key in {key for key, _ in self._reserved}:
            self.release(key)

    def describe(self, key: str | None, *, name: str, task: str, model: ModelDescription) -> None:
        """Write down for people what a key stands for, once."""
        label = (key or "", name, task)
        if self.cache is None or key is None or label in self._described:
            return
        self._described.add(label)
        about: dict[str, Value] = {
            "type": model.model_type, "dtype": model.dtype, "device": model.device
        }  # fmt: skip
        if run := run_of(model.identity):
            about["run"] = run
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
        name = " vs ".join(model.name for model in self.models)
        if self.key is not None:
            last = self.models[-1].scorer.describe()
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


class StoredReferences(Protocol):
    """A file of references, as ``ReferenceScorer`` reads it."""

    def references(self, task: str, block: str) -> Sequence[Reference | None] | None:
        """What was kept of the base's answers to a block; None for one that is not there."""


@dataclass(slots=True, kw_only=True)
class BaseReferences:
    """What is kept of the base: blocks of references, found again by task and block.

    Attributes:
        top_k: tokens kept at every position.
        key: the base's; None where its scores are not kept.
        kept: the references, in the cache or for this run only; or
        file: the file that they are in.
    """

    top_k: int
    key: str | None = None
    kept: SafeBlockCache[Sequence[Reference | None]] | None = None
    file: StoredReferences | None = None
    _blocks: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the references are kept under."""
        return digest_of([self.key or _UNPROVEN, self.top_k, SAMPLES])

    def known(self, block: RequestBlock) -> Sequence[Reference | None] | None:
        """The references of the base's block, and remember that it is this one."""
        self._blocks[_task_of_block(block), block.index] = block.digest
        return self._get(block, block.digest)

    def entries(self, block: RequestBlock, models: Sequence[LoadedModel]) -> Sequence[BlockEntry]:
        """Where the references of the base's block are kept."""
        return (
            () if self.kept is None else (BlockEntry(self.kept, self.name, block.digest, models),)
        )

    def put(self, block: RequestBlock, references: Sequence[Reference | None]) -> None:
        """Keep the references of the base's block, and remember that it is this one."""
        self._blocks[_task_of_block(block), block.index] = block.digest
        if self.kept is not None:
            self.kept.put(self.name, block.digest, references)

    def digest_beside(self, block: RequestBlock) -> str:
        """The digest of the base's block beside a candidate's."""
        return self._blocks[_task_of_block(block), block.index]

    def beside(self, block: RequestBlock) -> Sequence[Reference | None] | None:
        """The references of the base's block beside a candidate's."""
        return self._get(block, self.digest_beside(block))

    def pair_key(self, own: str | None) -> str | None:
        """What divergences of a model from the base are kept under; None where they are not.

        Args:
            own: the model's key.
        """
        return None if None in (own, self.key) else digest_of([self.name, own, "reference"])

    def pair_name(self, block: RequestBlock) -> str:
        """The digest of the base's block and of the one that stands beside it."""
        return digest_of([self.digest_beside(block), block.digest])

    def _get(self, block: RequestBlock, digest: str) -> Sequence[Reference | None] | None:
        if self.file is not None:
            return self.file.references(_task_of_block(block), digest)
        references = None if self.kept is None else self.kept.get(self.name, digest)
        return (
            references
            if references is not None and len(references) == len(block.requests)
            else None
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """A block that a model is to answer, by its likelihoods and texts alone or with more.

    Attributes:
        leaves: of a base: what is to be kept of its distributions, too.
        beside: of a candidate: what its distributions are to be held against.
        base: the base's own unit, of the same documents, which is answered together with this one.
        meets: whether the distributions of both are held against each other then (lock-step).
    """

    block: RequestBlock
    leaves: BaseReferences | None = None
    beside: BaseReferences | None = None
    base: Unit | None = None
    meets: bool = False

    @property
    def task(self) -> str:
        """The task that it is of."""
        return _task_of_block(self.block)

    @property
    def in_file(self) -> bool:
        """Whether a reference file holds the answers: nothing is asked, and nothing is kept."""
        return self.leaves is not None and self.leaves.file is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitAnswer:
    """What a model answered to a unit.

    Attributes:
        responses: one for each request of the block.
        references: where the unit leaves them, one for each request.
        compared: where the unit is held against a base, how the distributions differ.
        kept: whether the responses had been kept.
        base: to the base's unit, where that is answered together with this one.
    """

    unit: Unit
    responses: Sequence[Response]
    references: Sequence[Reference | None] = ()
    compared: ComparedAnswer | None = None
    kept: bool = False
    base: UnitAnswer | None = None

    @property
    def each(self) -> tuple[UnitAnswer, ...]:
        """The answers of every model, the base's first."""
        return (self,) if self.base is None else (self.base, self)


@dataclass(slots=True, kw_only=True)
class BlockStore:
    """Answers of models, by what the models are and what they were asked.

    Attributes:
        folder: of the caches; None: nothing is read or kept.
        note: takes what is to be said of them, ``find_unstored`` what could not be kept.
        show_tokens: whether answers of a model in this process count only with its most probable
            tokens, as a server beside it shows them.
        scores, divergences: what was answered, and how that differs from a base.
        parts: by block, what is kept of it until all of it is.
    """

    folder: Path | None
    note: Callable[[str], None]
    find_unstored: Callable[[str], None]
    show_tokens: bool = False
    scores: SafeBlockCache[Sequence[Response]] = field(init=False)
    divergences: SafeBlockCache[ComparedAnswer] = field(init=False)
    parts: dict[str, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Open the caches."""
        folder = self.folder
        scores = None if folder is None else ScoreCache(folder / "scores")
        divergences = None if folder is None else DivergenceCache(folder / "divergences")
        self.scores = SafeBlockCache(scores, self.note, self.find_unstored)
        self.divergences = SafeBlockCache(divergences, self.note, self.find_unstored)

    def key(self, scorer: Scorer) -> str | None:
        """Under which a model's blocks are kept; None where they are not."""
        identity = scorer.describe().identity
        return None if identity is None or self.folder is None else digest_of(dict(identity))

    def references_of(
        self, key: str | None, *, top_k: int, folder: Path | None = None
    ) -> BaseReferences:
        """What is kept of a base's distributions, or is to be.

        Args:
            key: the base's.
            top_k: tokens kept at every position.
            folder: another one than that of the caches.
        """
        path = folder or (self.folder and self.folder / "references")
        cache = ReferenceCache(path) if path else None
        references = SafeBlockCache(cache, self.note, self.find_unstored)
        return BaseReferences(top_k=top_k, kept=references, key=key)

    def entry(self, block: RequestBlock, model: LoadedModel) -> BlockEntry:
        """Where a model's responses to a block are kept."""
        return BlockEntry(self.scores, self.key(model.scorer), block.digest, (model,))

    def entries(self, unit: Unit, models: Sequence[LoadedModel]) -> tuple[BlockEntry, ...]:
        """Where all that a unit asks of its models is kept."""
        if unit.in_file:
            return ()
        blocks = [unit.block] if unit.base is None else [unit.base.block, unit.block]
        entries = tuple(self.entry(*pair) for pair in zip(blocks, models, strict=True))
        if unit.leaves is not None:
            return (*entries, *unit.leaves.entries(unit.block, models))
        if unit.beside is not None or unit.meets:
            key, name = self._pair(unit, [self.key(model.scorer) for model in models])
            return (*entries, BlockEntry(self.divergences, key, name, models))
        return entries

    def responses(self, block: RequestBlock, key: str | None) -> Sequence[Response] | None:
        """Return the responses to a block that are kept under a model's key, one per request."""
        responses = self.scores.get(key, block.digest)
        return (
            responses if responses is not None and len(responses) == len(block.requests) else None
        )

    def find_responses(self, block: RequestBlock, scorer: Scorer) -> Sequence[Response] | None:
        """Return a model's responses to a block where they are kept, with all that is wanted."""
        responses = self.responses(block, self.key(scorer))
        if responses is None:
            return None
        if self.show_tokens and runs_here(scorer) and scorer.describe().gives_rows:
            # Kept by a run without such a server beside it: scored once more, and kept with them.
            likely = (response for response in responses if response.loglikelihood is not None)
            if any(response.top_logprobs is None for response in likely):
                return None
        if isinstance(scorer, LazyScorer):
            scorer.from_cache.add(block.digest)
        return responses

    def find_compared(self, unit: Unit, *keys: str | None) -> ComparedAnswer | None:
        """Return how a model's distributions differ from the base's, where that is kept.

        Args:
            keys: of the unit's models.
        """
        if unit.beside is None and not unit.meets:
            return None
        compared = self.divergences.get(*self._pair(unit, keys))
        asked = len(unit.block.requests)
        if compared is None or compared.reason or len(compared.divergences) == asked:
            return compared
        return None

    def keep(self, answer: UnitAnswer, *keys: str | None) -> None:
        """Keep what a unit's models answered.

        Args:
            keys: theirs.

        Raises:
            EvaluationError: the answers are not one per request.
        """
        for model_answer, key in zip(answer.each, keys, strict=True):
            self._keep_responses(model_answer, key)
        unit, block = answer.unit, answer.unit.block
        if unit.leaves is not None:
            unit.leaves.put(block, answer.references)
        if answer.compared is not None and (unit.beside is not None or unit.meets):
            self.divergences.put(*self._pair(unit, keys), answer.compared)

    def _keep_responses(self, answer: UnitAnswer, key: str | None) -> None:
        block = answer.unit.block
        if len(answer.responses) != len(block.requests):
            raise EvaluationError(
                f"task '{answer.unit.task}', block {block.index}: {len(block.requests)} "
                f"requests were asked, {len(answer.responses)} answers came back"
            )
        self.scores.put(key, block.digest, answer.responses)
        for part in self.parts.pop(block.digest, ()):
            self.scores.drop(key, part)
        self.scores.release(key, block.digest)

    @staticmethod
    def _pair(unit: Unit, keys: Sequence[str | None]) -> tuple[str | None, str]:
        """Under which divergences from the base are kept: of two models, of two blocks."""
        if unit.beside is not None:
            return unit.beside.pair_key(keys[-1]), unit.beside.pair_name(unit.block)
        assert unit.base is not None
        key = None if None in keys else digest_of([*keys, "lockstep"])
        return key, digest_of([unit.base.block.digest, unit.block.digest])


def _task_of_block(block: RequestBlock) -> str:
    return block.requests[0].task
