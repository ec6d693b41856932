"""Kept blocks: read where they are there, kept where that is possible, and what goes wrong said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from evalguard.errors import StoreError
from evalguard.scorer import ModelDescription, Scorer
from evalguard.settings import Value
from evalguard.store import BlockCache

Content = TypeVar("Content")


@dataclass(slots=True)
class KeptBlocks(Generic[Content]):
    """A cache that costs no verdict: a disk that refuses, or a damaged file, is only said.

    ``cache`` is None where nothing is read or kept. ``note`` takes what is to be said. ``lost``
    says whether something could not be kept.
    """

    cache: BlockCache[Content] | None
    note: Callable[[str], None]
    lost: bool = False
    _said: int = 0
    _described: set[tuple[str, str, str]] = field(default_factory=set)

    def get(self, key: str | None, block: str) -> Content | None:
        """Return a finished block, or None; ``key`` None: nothing of this model is kept."""
        if self.cache is None or key is None:
            return None
        found = self.cache.get(key, block)
        self._tell(self.cache.problems)
        return found

    def holds(self, key: str | None, block: str) -> bool:
        """Whether a block seems to be there; nothing is read."""
        return self.cache is not None and key is not None and self.cache.holds(key, block)

    def put(self, key: str | None, block: str, content: Content) -> None:
        """Keep a finished block where that is possible."""
        if self.cache is None or key is None:
            return
        try:
            self.cache.put(key, block, content)
        except StoreError as error:
            self.lost = True
            # The numbers are in memory: a full disk must not cost the verdict.
            hint = f" ({error.hint})" if error.hint else ""
            self.note(f"not everything could be kept in the cache: {error}{hint}")

    @contextmanager
    def locked(self, key: str | None, block: str) -> Iterator[bool]:
        """Hold a block while it is made; yields False where another process holds it."""
        if self.cache is None or key is None:
            yield True
            return
        with self.cache.locked(key, block) as ours:
            self._tell(self.cache.problems)
            yield ours

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
class Entry:
    """A block in one of the caches; ``key`` is None where it is not kept.

    ``models`` are those that the block is of, by their names.
    """

    kept: KeptBlocks[Any]
    key: str | None
    block: str
    models: Sequence[tuple[str, Scorer]]

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
def turn(entries: Sequence[Entry]) -> Iterator[bool]:
    """Hold all of these blocks, or none: yields False where another process holds one of them."""
    with ExitStack() as stack:
        yield all(
            stack.enter_context(entry.kept.locked(entry.key, entry.block)) for entry in entries
        )
