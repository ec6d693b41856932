"""Pairs of a night in real processes that compare nothing: see ``pipeline/fake_pair_worker.py``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

_WORKER = Path(__file__).parent / "run" / "fake_pair_worker.py"


class FakePairs:
    """What the processes noted: lines of words, the first the process's number."""

    def __init__(self, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        journal.touch()
        self._journal = journal
        monkeypatch.setenv("JOURNAL", str(journal))
        monkeypatch.setattr(
            "evalguard.engine.own_process.worker_command",
            lambda *_: [sys.executable, str(_WORKER)],
        )

    def told(self) -> list[list[str]]:
        return [line.split() for line in self._journal.read_text().splitlines()]

    def asked(self) -> list[str]:
        """The candidates, as they were asked for."""
        return [words[2] for words in self.told() if words[1] == "asked"]

    def hangs(self) -> bool:
        """Whether the latest one hangs by now."""
        told = self.told()
        return bool(told) and told[-1][1] == "hangs"

    def late_where_one_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let an age pass once one hangs, and no time that counts before."""
        hangs = self.hangs

        class Clock:
            @staticmethod
            def monotonic() -> float:
                return time.monotonic() + (1e9 if hangs() else 0.0)

        monkeypatch.setattr("evalguard.worker.pipe.time", Clock)


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for something that happens, for minutes if need be."""
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
