"""The process that compares pairs, and the work that is sent to it as plain data.

Started as ``python -m evalguard.run.nightly.pair_worker`` by ``pair_process``, not by people. It
loads nothing heavy before its first pair: the night waits for a hello.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evalguard.core.reports.night_report import PairNight
from evalguard.core.settings import Value
from evalguard.errors import Interrupted
from evalguard.garbage import freeze_gc, freeze_gc_at_exit, raise_gc_threshold
from evalguard.run.nightly.pair_record import dump_pair, read_pair
from evalguard.run.options import CompareOptions, describe_options, make_options
from evalguard.run.work_program import serve_work
from evalguard.worker.messages import Call


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
    # Not before it is needed: the night waits for a hello.
    from evalguard.run.nightly.pair_steps import bisect_pair, compare_pair

    if work.verdict is None:
        return compare_pair(work.base, work.candidate, work.options)
    return bisect_pair(work.verdict, work.options, work.cwd)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the night until it closes; return the exit code."""
    return serve_work(PairDesk(), "evalguard.run.nightly.pair_worker", arguments)


if __name__ == "__main__":
    raise_gc_threshold()
    try:
        sys.exit(main())
    finally:
        freeze_gc_at_exit()
