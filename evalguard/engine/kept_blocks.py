"""Kept blocks: read where they are there, kept where that is possible, and what goes wrong said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from evalguard.core.scorer import ModelDescription, Scorer
from evalguard.core.settings import Value
from evalguard.errors import StoreError, error_text
from evalguard.run_token import run_of
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
