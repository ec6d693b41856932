"""Night: its folder and journal, and the pairs that are finished in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalguard.errors import EvalguardError, EvaluationError, Interrupted, StoreError, UsageError
from evalguard.night_report import PairNight
from evalguard.pipeline.history.changing import add_run
from evalguard.pipeline.nightly.pair_run import (
    bisected_pair,
    failed_pair,
    pair_night,
    verdict_of,
)
from evalguard.pipeline.nightly.pairs import NightPair
from evalguard.pipeline.nightly.told_pair import read_pair, told_pair
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.stored_run import stored_run
from evalguard.report.progress import Progress
from evalguard.store import NightJournal

Work = Callable[[], PairNight]

# A pair that takes the process down with it would otherwise be begun again for ever.
MOST_DEATHS = 2


@dataclass(slots=True, kw_only=True)
class Night:
    """A night that is being run.

    Attributes:
        options: of every comparison; its output path is the night's folder.
        cwd: folder that names of models and files start at.
        earlier: records of the nights directly before that never finished.
    """

    folder: Path
    journal: NightJournal
    options: CompareOptions
    cwd: Path
    earlier: tuple[Mapping[str, Any], ...] = ()

    def run(self, pairs: Sequence[NightPair]) -> tuple[PairNight, ...]:
        """Give every pair its verdict, then search the settings of those that failed.

        Raises:
            Interrupted, KeyboardInterrupt: on Ctrl-C; the same command goes on.
            StoreError: the journal cannot be written.
        """
        verdicts = {
            pair.names: self._verdict(pair, f"{place} of {len(pairs)}")
            for place, pair in enumerate(sorted(pairs, key=self._risky), 1)
        }
        return tuple(self._bisected(pair, verdicts[pair.names]) for pair in pairs)

    def _risky(self, pair: NightPair) -> bool:
        """Whether the process died in it before: the others come first."""
        return self._deaths("begun", pair, "verdict") > 0

    def _verdict(self, pair: NightPair, place: str) -> PairNight:
        known = self._known("verdict", pair)
        if known is not None:
            return known
        found = self._left_behind(pair)
        if found is None and self._deaths("begun", pair, "verdict") >= MOST_DEATHS:
            found = failed_pair(*pair.names, _died("it was compared"))
        if found is None:
            self._say(f"pair {place}: {pair.candidate} against {pair.base}")
            found = self._watched("begun", pair, lambda: verdict_of(*pair.names, self.options))
        self.journal.add({"verdict": list(pair.names), "pair": told_pair(found)})
        return found

    def _bisected(self, pair: NightPair, verdict: PairNight) -> PairNight:
        known = self._known("bisected", pair)
        if known is not None:
            return known
        failing = verdict.state == "regressed"
        if verdict.run_folder is None or not (failing or pair.bisects == "always"):
            return verdict
        if pair.bisects == "never":
            return verdict
        if pair.bisects == "auto" and not pair.declares_settings:
            return replace(verdict, bisection="the candidate declares no settings")
        if self._deaths("bisecting", pair, "bisected") >= MOST_DEATHS:
            found = replace(verdict, bisection=str(_died("it was bisected")))
        else:
            self._say(f"bisecting {pair.candidate} against {pair.base}")
            found = self._watched(
                "bisecting", pair, lambda: bisected_pair(verdict, self.options, self.cwd)
            )
        self.journal.add({"bisected": list(pair.names), "pair": told_pair(found)})
        return found

    def _watched(self, step: str, pair: NightPair, work: Work) -> PairNight:
        """Do a step that is written down before: a process that dies in it leaves that behind."""
        self.journal.add({step: list(pair.names)})
        try:
            return work()
        except (KeyboardInterrupt, Interrupted):
            self.journal.add({"stopped": list(pair.names), "in": step})
            raise

    def _known(self, step: str, pair: NightPair) -> PairNight | None:
        for record in reversed(self.journal.records):
            if record.get(step) == list(pair.names):
                try:
                    return read_pair(record["pair"])
                except (ValueError, TypeError, KeyError):
                    return None
        return None

    def _deaths(self, step: str, pair: NightPair, done: str) -> int:
        """How often the process died in a step of a pair."""
        names = list(pair.names)
        of_pair: Counter[str] = Counter()
        for record in (*self.earlier, *self.journal.records):
            of_pair["begun"] += record.get(step) == names
            of_pair["ended"] += record.get(done) == names
            of_pair["ended"] += record.get("stopped") == names and record.get("in") == step
        return of_pair["begun"] - of_pair["ended"]

    def _left_behind(self, pair: NightPair) -> PairNight | None:
        """A verdict whose run folder is whole, of a process that died before it said so here."""
        if not self._deaths("begun", pair, "verdict"):
            return None
        for file in sorted(self.folder.glob("*/result.json"), reverse=True):
            try:
                report = stored_run(file).report
            except EvalguardError:
                continue
            if (report.base.name, report.candidate.name) == pair.names:
                return self._kept(pair_night(report, pair.names), file.parent)
        return None

    def _kept(self, pair: PairNight, folder: Path) -> PairNight:
        """The same, its run in the history, whether or not it was put there by then."""
        if self.options.history is None:
            return pair
        try:
            add_run(self.options.history, folder)
        except UsageError:  # it is there
            return pair
        except StoreError as error:
            return replace(pair, notes=(*pair.notes, f"this run is not in the history: {error}"))
        return pair

    def _say(self, text: str) -> None:
        with Progress(quiet=self.options.quiet) as progress:
            progress.note(text)


def _died(when: str) -> EvaluationError:
    return EvaluationError(
        f"the process died {MOST_DEATHS} times while {when} (memory that ran out?): it is left out",
        hint="evalguard compare runs this pair alone, with its messages",
    )
