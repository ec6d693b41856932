"""A night that is being run.

Its journal, the pairs that are finished, and their runs in the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalguard.core.reports.night_report import PairNight
from evalguard.errors import EvalguardError, EvaluationError, StoreError, WorkerError, error_text
from evalguard.report.progress import ProgressLine
from evalguard.run.interrupts import interruptible
from evalguard.run.nightly.night_history import NightHistory
from evalguard.run.nightly.pair_night import build_failed_pair, build_pair_night
from evalguard.run.nightly.pair_process import PairExecutor
from evalguard.run.nightly.pair_record import dump_pair, read_pair
from evalguard.run.nightly.pair_time import hours_text
from evalguard.run.nightly.pair_worker import PairWork
from evalguard.run.nightly.pairs import NightPair
from evalguard.run.options import CompareOptions
from evalguard.run.stored_run import read_stored_run
from evalguard.store.night_journal import NightJournal

# A pair that takes the whole night down would otherwise be begun again for ever.
MOST_DEATHS = 2
_RESUME_HINT = "the same command goes on with this pair"
_SINGLE_PAIR_HINT = "evalguard compare runs this pair alone, with its messages"


@dataclass(slots=True, kw_only=True)
class RunningNight:
    """A night that is being run.

    Attributes:
        options: of every comparison; its output path is the night's folder.
        cwd: folder that names of models and files start at.
        runner: does the work for a pair.
        history: where its runs are kept.
        earlier: records of the nights directly before that never finished.
    """

    journal: NightJournal
    options: CompareOptions
    cwd: Path
    runner: PairExecutor
    history: NightHistory
    earlier: tuple[Mapping[str, Any], ...] = ()

    @property
    def folder(self) -> Path:
        """Where it is written."""
        return self.journal.folder

    def run(self, pairs: Sequence[NightPair]) -> tuple[PairNight, ...]:
        """Give every pair its verdict, then search the settings of those that failed.

        Raises:
            Interrupted: on Ctrl-C; the same command goes on.
            StoreError: the journal cannot be written.
        """
        verdicts = {
            pair.names: self._verdict(pair, f"{place} of {len(pairs)}")
            for place, pair in enumerate(sorted(pairs, key=self._risky), 1)
        }
        self.history.again()
        for names, verdict in verdicts.items():
            if verdict.not_kept:
                verdicts[names] = self.history.kept(verdict)
        return tuple(self._bisected(pair, verdicts[pair.names]) for pair in pairs)

    def _risky(self, pair: NightPair) -> bool:
        """Whether the night died in it before: the others come first."""
        return self._deaths("begun", pair, "verdict") > 0

    def _verdict(self, pair: NightPair, place: str) -> PairNight:
        known = self._known("verdict", pair)
        if known is not None:
            return known
        deaths = self._deaths("begun", pair, "verdict")
        found = self._left_behind(pair) if deaths else None
        if found is None and deaths >= MOST_DEATHS:
            found = build_failed_pair(*pair.names, _death_error("compared"))
        if found is None:
            self._say(f"pair {place}: {pair.candidate} against {pair.base}")
            found = self._compared(pair)
        found = self.history.kept(found)
        self.journal.add({"verdict": list(pair.names), "pair": dump_pair(found)})
        return found

    def _bisected(self, pair: NightPair, verdict: PairNight) -> PairNight:
        known = self._known("bisected", pair)
        if known is not None:
            return replace(known, problems=verdict.problems, not_kept=verdict.not_kept)
        failing = verdict.state == "regressed"
        if verdict.run_folder is None or not (failing or pair.bisects == "always"):
            return verdict
        if pair.bisects == "never":
            return verdict
        if pair.bisects == "auto" and not pair.declares_settings:
            return replace(verdict, bisection=_undeclared_text(verdict))
        if self._deaths("bisecting", pair, "bisected") >= MOST_DEATHS:
            found = replace(verdict, bisection=f"failed: {_death_error('bisected')}")
        else:
            self._say(f"bisecting {pair.candidate} against {pair.base}")
            found = self._searched(pair, verdict)
        self.journal.add({"bisected": list(pair.names), "pair": dump_pair(found)})
        return found

    def _compared(self, pair: NightPair) -> PairNight:
        """Its verdict; a process that died, or took too long, may have left one behind."""
        try:
            return self._watched("begun", pair, self._work(pair))
        except EvaluationError as error:
            return self._left_behind(pair) or build_failed_pair(*pair.names, error)

    def _searched(self, pair: NightPair, verdict: PairNight) -> PairNight:
        """The verdict with its bisection; whatever happens in that, it stands."""
        try:
            return self._watched("bisecting", pair, self._work(pair, verdict))
        except EvaluationError as error:
            return replace(verdict, bisection=f"failed: {error_text(error)}")

    def _work(self, pair: NightPair, verdict: PairNight | None = None) -> PairWork:
        base, candidate = pair.names
        return PairWork(
            base=base, candidate=candidate, options=self.options, cwd=self.cwd, verdict=verdict
        )

    def _watched(self, step: str, pair: NightPair, work: PairWork) -> PairNight:
        """Do a step that is written down before: a night that dies in it leaves that behind.

        Raises:
            EvaluationError: the process that did it died, or its time was up.
        """
        self.journal.add({step: list(pair.names)})
        with interruptible(f"{pair.candidate} was being {work.doing}", hint=_RESUME_HINT):
            try:
                return self.runner.run(work, seconds=pair.seconds)
            except KeyboardInterrupt:
                self.journal.add({"stopped": list(pair.names), "in": step})
                raise
            except WorkerError as error:
                raise _lost_error(error, work, pair) from error

    def _known(self, step: str, pair: NightPair) -> PairNight | None:
        for record in reversed(self.journal.records):
            if record.get(step) == list(pair.names):
                try:
                    return read_pair(record.get("pair", {}))
                except StoreError:
                    return None
        return None

    def _deaths(self, step: str, pair: NightPair, done: str) -> int:
        """How often the night died in a step of a pair."""
        names = list(pair.names)
        of_pair: Counter[str] = Counter()
        for record in (*self.earlier, *self.journal.records):
            of_pair["begun"] += record.get(step) == names
            of_pair["ended"] += record.get(done) == names
            of_pair["ended"] += record.get("stopped") == names and record.get("in") == step
        return of_pair["begun"] - of_pair["ended"]

    def _left_behind(self, pair: NightPair) -> PairNight | None:
        """A verdict whose run folder is whole, of a process that died before it said so here."""
        for file in sorted(self.folder.glob("*/result.json"), reverse=True):
            try:
                report = read_stored_run(file).report
            except EvalguardError:
                continue
            if (report.base.name, report.candidate.name) == pair.names:
                return build_pair_night(report, pair.names)
        return None

    def _say(self, text: str) -> None:
        with ProgressLine(quiet=self.options.quiet) as progress:
            progress.note(text)


def _death_error(doing: str) -> EvaluationError:
    return EvaluationError(
        f"the night died {MOST_DEATHS} times while it was {doing} (memory that ran out?): it is "
        "left out",
        hint=_SINGLE_PAIR_HINT,
    )


def _lost_error(error: WorkerError, work: PairWork, pair: NightPair) -> EvaluationError:
    if error.cause == "late":
        return EvaluationError(
            f"timed out after {hours_text(pair.seconds)}, while it was {work.doing}",
            hint="--pair-hours N (in the guard file run: {pair_hours: N}) gives it more time; "
            "finished documents are kept, and the next night goes on with them",
        )
    return EvaluationError(
        f"{error} while it was {work.doing}", hint=error.hint or _SINGLE_PAIR_HINT
    )


def _undeclared_text(verdict: PairNight) -> str:
    """Why no settings were searched, and in what the two models differ, as far as they show it."""
    differ = [one.text for one in verdict.findings if one.kind == "sides_differ"]
    return "; ".join(("no settings are declared", *differ))
