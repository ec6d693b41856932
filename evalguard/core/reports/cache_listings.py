"""What lies in a cache, or was removed from it: plain data for the reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.core.settings import Value

SCHEMA = "evalguard.cache/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFolder:
    """What is kept of one model, or pair of models, in one way.

    Attributes:
        kind: scores, references, divergences, builds, floors, facts, devices, answers, logs.
        key: name of the folder: a digest of everything that can change what is in it.
        name: the model's, as it was last called; "" where nobody wrote it down.
        model: what is known of the model: type, dtype, device.
        files: finished blocks, or files where there are no blocks.
        size: bytes, of everything in it.
        last_used: seconds since 1970; 0 for an empty one.
        damaged: files that were set aside.
        leftovers: what killed processes left.
    """

    kind: str
    key: str
    path: str
    name: str = ""
    tasks: tuple[str, ...] = ()
    model: Mapping[str, Value] = field(default_factory=dict)
    created: str = ""
    files: int = 0
    size: int = 0
    last_used: float = 0.0
    damaged: int = 0
    leftovers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheListing:
    """What lies in a cache folder, the most recently used first."""

    folder: str
    entries: tuple[KeptFolder, ...]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedItem:
    """A block, a build or another file that was removed."""

    kind: str
    path: str
    size: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePruning:
    """What was removed from a cache folder.

    Attributes:
        in_use: what was kept because another process holds it.
        failed: what could not be removed, one message each.
        left: bytes that are left.
    """

    folder: str
    removed: tuple[RemovedItem, ...]
    left: int
    in_use: int = 0
    failed: tuple[str, ...] = ()

    @property
    def freed(self) -> int:
        """Bytes."""
        return sum(item.size for item in self.removed)
