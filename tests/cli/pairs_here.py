"""Pairs of a night compared in this process: the night is what is tested, not where they run."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from evalguard.nights.night_report import PairNight
from evalguard.nights.pair_process import PairWork, bisect_pair, compare_pair


class PairsHere:
    """Does what ``PairRunner`` does; ``before`` and ``after`` are told each candidate.

    What they raise leaves the night as it would leave it where the whole night is killed.
    """

    before: Callable[[str], None] = staticmethod(lambda _: None)
    after: Callable[[str], None] = staticmethod(lambda _: None)

    def run(self, work: PairWork, *, seconds: float = math.inf) -> PairNight:
        assert seconds > 0.0
        work = PairWork.read(work.as_record())  # as it travels to a process
        if work.verdict is not None:
            return bisect_pair(work.verdict, work.options, work.cwd)
        self.before(work.candidate)
        found = compare_pair(work.base, work.candidate, work.options)
        self.after(work.candidate)
        return found

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> PairsHere:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def pairs_here(monkeypatch: pytest.MonkeyPatch) -> type[PairsHere]:
    """Compare every pair in this process; a class whose ``before`` and ``after`` may be set."""

    class Here(PairsHere):
        pass

    monkeypatch.setattr("evalguard.nights.night.PairRunner", Here)
    return Here
