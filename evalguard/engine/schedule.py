"""Which slot takes which unit of work next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Condition

from evalguard.engine.sources import ModelSource
from evalguard.engine.work import Unit, Work

_MOST_LOSSES = 3


@dataclass(slots=True)
class _RemainingUnits:
    work: Work
    units: deque[Unit]
    slots: int = 0


@dataclass(slots=True)
class WorkSchedule:
    """Units that are left, by work; slots on several threads take from it.

    Attributes:
        loading: seconds that loading takes, and ``scoring`` a unit; 0 where nothing is known.
        slots: how many slots take from it, where what one loses is given to another: nobody is
            told that nothing is left while a unit may come back. 0: what is lost has failed.
    """

    works: Sequence[Work]
    loading: float = 0.0
    scoring: float = 0.0
    slots: int = 0
    _left: list[_RemainingUnits] = field(default_factory=list)
    _turn: Condition = field(default_factory=Condition)
    _in_work: int = 0
    _losses: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Begin with everything."""
        self._left = [_RemainingUnits(work, deque(work.units)) for work in self.works]

    def take(self, loaded: ModelSource | None, before: Work | None) -> tuple[Work, Unit] | None:
        """The next unit for a slot, or None where nothing is left that is worth its while.

        Args:
            loaded: the model that the slot has loaded.
            before: the work that its last unit was of.
        """
        with self._turn:
            while (found := self._best(loaded, before)) is None:
                if not (self.slots and self._in_work):
                    return None
                self._turn.wait()
            if found.work is not before:
                found.slots += 1
            self._in_work += 1
            return found.work, found.units.popleft()

    def finish(self) -> None:
        """Note that a unit that was taken is done, or has failed."""
        with self._turn:
            self._in_work -= 1
            self._turn.notify_all()

    def give_back(self, work: Work, unit: Unit, *, lost: bool) -> bool:
        """Let another slot take a unit that could not be answered; whether one may.

        Args:
            lost: what answered it is gone; a unit with which that goes on happening is not
                innocent. False: it was not even begun.
        """
        with self._turn:
            if not self.slots:
                return False
            self._losses[id(work), unit.block.digest] += lost
            if self._losses[id(work), unit.block.digest] > _MOST_LOSSES:
                return False
            for left in self._left:
                if left.work is work:
                    left.units.appendleft(unit)
            return True

    def leave(self) -> bool:
        """Take no more units, unless this is the last slot that does; whether it may leave."""
        with self._turn:
            if self.slots < 2:
                return False
            self.slots -= 1
            return True

    def drop(self, work: Work) -> None:
        """Leave out what is left of a work."""
        with self._turn:
            for left in self._left:
                if left.work is work:
                    left.units.clear()

    def stop(self) -> None:
        """Leave out everything."""
        with self._turn:
            self.slots = 0
            for left in self._left:
                left.units.clear()
            self._turn.notify_all()

    def _best(self, loaded: ModelSource | None, before: Work | None) -> _RemainingUnits | None:
        """Go on; else what is loaded; else what nobody works on; else help where most is left."""
        open_ = [left for left in self._left if left.units]
        for left in open_:
            if left.work is before:
                return left
        for left in open_:
            if loaded is not None and left.work.source.variant == loaded.variant:
                return left
        for left in open_:
            if not left.slots:
                return left
        most = max(open_, key=lambda left: len(left.units), default=None)
        return most if most is not None and self._helps(most) else None

    def _helps(self, left: _RemainingUnits) -> bool:
        """Whether one more slot would finish before those that work on it already."""
        alone = len(left.units) * self.scoring / left.slots
        return not self.scoring or alone > self.loading + self.scoring
