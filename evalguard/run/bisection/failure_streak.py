"""Whether probes fail because of their settings, or because nothing runs any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from evalguard.bisect.oracle import Untestable
from evalguard.errors import (
    EvaluationError,
)
from evalguard.harness.request_blocks import RequestBlock
from evalguard.run.executing.work import FailedWork, Unit, Work, WorkRunner
from evalguard.run.sources import ModelSource

_FIRST_CONTROL = 2  # failures in a row before the control is run


@dataclass(slots=True, kw_only=True)
class FailureStreak:
    """Counts failures in a row; after two, then four, a control has to run.

    The control is the candidate itself, which the comparison has scored: where it fails too, a
    device, a disk or a library is gone, and no assignment is to blame. Until something runs, a
    failure is not written down: it would be believed for ever.

    Attributes:
        control: the candidate; ``block``: something to ask it.
    """

    control: ModelSource
    block: RequestBlock
    _doubtful: list[Callable[[], None]] = field(default_factory=list)
    _enough: int = _FIRST_CONTROL
    _last: Untestable | None = None

    def succeeded(self) -> None:
        """A block was answered: what failed before did so for reasons of its own."""
        while self._doubtful:
            self._doubtful.pop(0)()

    def failed(self, refusal: Untestable, write_down: Callable[[], None]) -> None:
        """A probe gave no scores; that is written down when something else does."""
        self._doubtful.append(write_down)
        self._last = refusal

    def check(self, runner: WorkRunner) -> None:
        """Run the control if there is reason to.

        Raises:
            EvaluationError: it fails as well.
        """
        if len(self._doubtful) < self._enough or self._last is None:
            return
        self._enough *= 2
        for event in runner.run([Work(source=self.control, units=(Unit(block=self.block),))]):
            if isinstance(event, FailedWork):
                raise EvaluationError(
                    f"probes fail one after the other ({self._last.reason}), and the candidate, "
                    f"which was scored before, fails now, too: {event.error}",
                    hint=event.error.hint or "what is finished is kept: resume when this is fixed",
                )
        self.succeeded()
