"""Schedule: which lane takes which block next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from evalguard.harness import Block
from evalguard.pipeline.bisection.runner import Work
from evalguard.pipeline.sources import ModelSource


@dataclass(slots=True)
class _Left:
    work: Work
    blocks: deque[Block]
    lanes: int = 0


@dataclass(slots=True)
class Schedule:
    """Blocks that are left, by work; lanes on several threads take from it.

    Attributes:
        loading: seconds that loading takes, and ``scoring`` a block; 0 where nothing is known.
    """

    works: Sequence[Work]
    loading: float = 0.0
    scoring: float = 0.0
    _left: list[_Left] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Begin with everything."""
        self._left = [_Left(work, deque(work.blocks)) for work in self.works]

    def take(self, loaded: ModelSource | None, before: Work | None) -> tuple[Work, Block] | None:
        """The next block for a lane, or None where nothing is left that is worth its while.

        Args:
            loaded: the model that the lane has loaded.
            before: the work that its last block was of.
        """
        with self._lock:
            found = self._best(loaded, before)
            if found is None:
                return None
            if found.work is not before:
                found.lanes += 1
            return found.work, found.blocks.popleft()

    def drop(self, work: Work) -> None:
        """Leave out what is left of a work."""
        with self._lock:
            for left in self._left:
                if left.work is work:
                    left.blocks.clear()

    def stop(self) -> None:
        """Leave out everything."""
        with self._lock:
            for left in self._left:
                left.blocks.clear()

    def _best(self, loaded: ModelSource | None, before: Work | None) -> _Left | None:
        """Go on; else what is loaded; else what nobody works on; else help where most is left."""
        open_ = [left for left in self._left if left.blocks]
        for left in open_:
            if left.work is before:
                return left
        for left in open_:
            if loaded is not None and left.work.source.variant == loaded.variant:
                return left
        for left in open_:
            if not left.lanes:
                return left
        most = max(open_, key=lambda left: len(left.blocks), default=None)
        return most if most is not None and self._helps(most) else None

    def _helps(self, left: _Left) -> bool:
        """Whether one more lane would finish before those that work on it already."""
        alone = len(left.blocks) * self.scoring / left.lanes
        return not self.scoring or alone > self.loading + self.scoring
