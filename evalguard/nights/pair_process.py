"""Both sides of the process that compares a night's pairs: a bad pair takes only it down.

Started as ``python -m evalguard.nights.pair_process`` by ``pair_process``, not by people. It
loads nothing heavy before its first pair: the night waits for a hello.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

from evalguard import tools
from evalguard.comparison.asked_comparison import StoredRequest
from evalguard.comparison.compare import RecurringBase, compare_pair_of
from evalguard.config.options import CompareOptions, describe_options, make_options
from evalguard.core.redaction import redacted_text
from evalguard.core.settings import Value
from evalguard.engine.own_process import OwnProcess, serve_work
from evalguard.errors import (
    EvalguardError,
    EvaluationError,
    Interrupted,
    StoreError,
    WorkerError,
    error_text,
)
from evalguard.garbage import freeze_gc, freeze_gc_at_exit, raise_gc_threshold
from evalguard.nights.night_folders import dump_pair, read_pair
from evalguard.nights.night_report import (
    PairNight,
    bisected_culprits,
    bisection_summary,
    build_failed_pair,
    build_pair_night,
)
from evalguard.worker.messages import Call

_LOG = logging.getLogger(__name__)


def compare_pair(base: str, candidate: str, options: CompareOptions) -> PairNight:
    """Compare a pair without its bisection; what goes wrong is a state of its own.

    Raises:
        Interrupted, KeyboardInterrupt: on Ctrl-C.
    """
    try:
        # Tonight's candidate is another one than last night's: only a kept reference of the base
        # spares it a run of its own for every candidate's distributions.
        result = compare_pair_of(
            base, candidate, replace(options, bisect="never"), recurring=RecurringBase()
        )
    except (KeyboardInterrupt, Interrupted):
        raise
    except Exception as error:  # noqa: BLE001 - the other pairs go on, whatever it is
        _LOG.info("%s vs %s failed", base, candidate, exc_info=True)  # shown under --debug
        return build_failed_pair(base, candidate, error)
    return build_pair_night(result.report, (base, candidate), problems=result.problems)


def bisect_pair(pair: PairNight, options: CompareOptions, cwd: Path) -> PairNight:
    """Look for the settings that make a pair fail, as its guard file and the options say.

    Raises:
        Interrupted, KeyboardInterrupt: on Ctrl-C.
    """
    assert pair.run_folder is not None
    folder = Path(pair.run_folder)
    request = StoredRequest(base=pair.base, candidate=pair.candidate, cwd=cwd, options=options)
    try:
        if not request.write(folder):
            return replace(pair, bisection="not possible: the options hold a secret")
        report = tools.fetch("resume_bisection")(folder, quiet=options.quiet).report
    except (KeyboardInterrupt, Interrupted):
        raise
    except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
        _LOG.info("the bisection of %s failed", pair.candidate, exc_info=True)
        return replace(pair, bisection=f"failed: {redacted_text(error_text(error))}")
    return replace(pair, culprits=bisected_culprits(report), bisection=bisection_summary(report))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairWork:
    """Compare a pair or, where its verdict is given, search the settings that made it.

    Attributes:
        cwd: folder that names of models and files start at.
    """

    base: str
    candidate: str
    options: CompareOptions
    cwd: Path
    verdict: PairNight | None = None

    @property
    def doing(self) -> str:
        """What is done, for "... while it was compared"."""
        return "compared" if self.verdict is None else "bisected"

    def as_record(self) -> dict[str, Value]:
        """The work as JSON values."""
        return {
            "base": self.base,
            "candidate": self.candidate,
            "options": describe_options(self.options),
            "cwd": str(self.cwd),
            "verdict": None if self.verdict is None else dump_pair(self.verdict),
        }

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> PairWork:
        """Read back what ``told`` gave.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        verdict = told["verdict"]
        return cls(
            base=told["base"],
            candidate=told["candidate"],
            options=make_options(None, **told["options"]),
            cwd=Path(told["cwd"]),
            verdict=None if verdict is None else read_pair(verdict),
        )


class PairDesk:
    """Compares pairs and bisects them, as it is asked to."""

    def answer(self, call: Call) -> Value:
        """Return what the pair came to.

        Raises:
            KeyboardInterrupt: the night is stopped, or this pair's time is up.
        """
        if call.name == "close":
            return None
        try:
            return dump_pair(_do_work(PairWork.read(cast("dict[str, Any]", call.argument))))
        except Interrupted:
            raise KeyboardInterrupt from None
        finally:
            freeze_gc()

    def close(self) -> None:
        """Nothing is held between two pairs."""


def _do_work(work: PairWork) -> PairNight:
    if work.verdict is None:
        return compare_pair(work.base, work.candidate, work.options)
    return bisect_pair(work.verdict, work.options, work.cwd)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the night until it closes; return the exit code."""
    return serve_work(PairDesk(), "evalguard.nights.pair_process", arguments)


if __name__ == "__main__":
    raise_gc_threshold()
    try:
        sys.exit(main())
    finally:
        freeze_gc_at_exit()


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
            night = self._request_night(work, end)
        except WorkerError as error:
            if error.cause == "late" or not shared:
                raise
            night = self._request_night(work, end)
        if not night.created or work.verdict is not None:
            self.close()
        return night

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
        night = _ask_for_night(process, work, end)
        self._process = process  # not where anything was raised: then it is gone
        return night


PAIR_WORKER_MODULE = "evalguard.nights.pair_process"


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
