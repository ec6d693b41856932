"""The night's side of the process that compares pairs: a bad pair takes only that process down."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any, Protocol, cast

from evalguard.core.reports.night_report import PairNight
from evalguard.errors import EvalguardError, EvaluationError, StoreError, WorkerError
from evalguard.run.nightly.pair_record import read_pair
from evalguard.run.nightly.pair_worker import PairWork
from evalguard.run.own_process import OwnProcess


class PairExecutor(Protocol):
    """Does work for pairs, as ``PairRunner`` does."""

    def run(self, work: PairWork, *, seconds: float = math.inf) -> PairNight:
        """Return what came of it."""


class PairRunner:
    """Does work for pairs, one after the other.

    Pairs share a process as long as all goes well, for starting one takes seconds. After one that
    gave no report (a GPU may be of no more use to its process), and after a bisection, the next has
    a new one.
    """

    def __init__(self) -> None:
        self._process: OwnProcess | None = None

    def run(self, work: PairWork, *, seconds: float = math.inf) -> PairNight:
        """Have a piece of work done.

        What takes down a process in which others were before is tried once more in a new one: what
        those left behind may have been the reason.

        Args:
            seconds: after which the process is killed with all that it started.

        Raises:
            WorkerError: the process died, or its time was up ("late").
            EvaluationError: it could do nothing at all.
            KeyboardInterrupt: on Ctrl-C; the process was stopped.
        """
        end = time.monotonic() + seconds
        shared = self._process is not None
        try:
            found = self._request_night(work, end)
        except WorkerError as error:
            if error.cause == "late" or not shared:
                raise
            found = self._request_night(work, end)
        if not found.created or work.verdict is not None:
            self.close()
        return found

    def close(self) -> None:
        """End the process; the next piece of work has a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> PairRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _request_night(self, work: PairWork, end: float) -> PairNight:
        process, self._process = self._process or OwnProcess(PAIR_WORKER_MODULE), None
        found = _ask_for_night(process, work, end)
        self._process = process  # not where anything was raised: then it is gone
        return found


PAIR_WORKER_MODULE = "evalguard.run.nightly.pair_worker"


def _ask_for_night(process: OwnProcess, work: PairWork, end: float) -> PairNight:
    try:
        answer = process.ask("pair", work.as_record(), end=end)
    except WorkerError:
        raise
    except EvalguardError as error:
        raise EvaluationError(str(error), hint=error.hint) from error
    try:
        return read_pair(cast("dict[str, Any]", answer))
    except StoreError as error:
        process.stop()
        raise WorkerError(f"its process sent a damaged answer: {error}") from error
