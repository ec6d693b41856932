"""``evalguard nightly``: all pairs of a guard file, compared one after the other, and resumed.

Its journal, the pairs that are finished, and their runs in the history.

Only the night writes there, from the run folders. Another process may hold the file (a backup, a
long export): what cannot be kept in its turn is tried again when all verdicts are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import evalguard
from evalguard.comparison.stored_run import read_stored_run
from evalguard.config.guard import GuardSet
from evalguard.config.options import DEFAULT_OUTPUT, NO_HISTORY, CompareOptions, make_options
from evalguard.core.exit_code import gravest_exit_code
from evalguard.core.redaction import redacted_text
from evalguard.core.settings import digest_of
from evalguard.engine.history_location import shared_history_file
from evalguard.engine.interrupts import interruptible
from evalguard.errors import EvalguardError, EvaluationError, StoreError, WorkerError, error_text
from evalguard.nights.history_runs import AlreadyInHistoryError, add_run, prepare_history
from evalguard.nights.night_changes import find_changes_tonight, gone_since, other_bases
from evalguard.nights.night_folders import (
    JOURNAL_SCHEMA,
    NightJournal,
    dump_pair,
    find_unfinished_night,
    hold_nightly_lock,
    hours_ago,
    latest_night_name,
    list_unfinished_nights,
    new_night_folder,
    read_last_night,
    read_pair,
)
from evalguard.nights.night_on_trackers import track_night
from evalguard.nights.night_page import NightlyResult, check_night_files, write_night
from evalguard.nights.night_pairs import (
    NightPair,
    check_hours,
    guards_digest,
    hours_text,
    list_pairs,
)
from evalguard.nights.night_report import (
    NightReport,
    PairNight,
    build_failed_pair,
    build_pair_night,
)
from evalguard.nights.pair_process import PairExecutor, PairRunner, PairWork
from evalguard.page.progress import ProgressLine
from evalguard.run_token import run_scope
from evalguard.store.atomic_files import safe_name
from evalguard.store.run_folder import check_writable


@dataclass(slots=True)
class NightHistory:
    """The history of a night.

    Attributes:
        file: None: no history is kept.
        trouble: why the last run could not be kept; "" while all can. Waiting for the file takes
            half a minute, so that nothing is tried any more then, but ``again``.
    """

    file: Path | None
    trouble: str = ""

    def kept(self, pair: PairNight) -> PairNight:
        """Keep a pair's run; where that fails, the pair says why."""
        if self.file is None or not pair.created:
            return pair
        return replace(pair, not_kept=self.trouble or self._tried(self.file, pair))

    def again(self) -> None:
        """Forget what was in the way."""
        self.trouble = ""

    def _tried(self, file: Path, pair: PairNight) -> str:
        if pair.run_folder is None:
            return "it has no run folder"
        try:
            add_run(file, Path(pair.run_folder))
        except AlreadyInHistoryError:
            return ""
        except EvalguardError as error:
            self.trouble = error_text(error)
            return self.trouble
        return ""


# A pair that takes the whole night down would otherwise be begun again for ever.
MOST_DEATHS = 2
_NIGHT_RESUME_HINT = "the same command goes on with this pair"
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
            pair.names: self._verdict(pair, f"{number} of {len(pairs)}")
            for number, pair in enumerate(sorted(pairs, key=self._risky), 1)
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
        verdict = self._left_behind(pair) if deaths else None
        if verdict is None and deaths >= MOST_DEATHS:
            verdict = build_failed_pair(*pair.names, _death_error("compared"))
        if verdict is None:
            self._say(f"pair {place}: {pair.candidate} against {pair.base}")
            verdict = self._compared(pair)
        verdict = self.history.kept(verdict)
        self.journal.add({"verdict": list(pair.names), "pair": dump_pair(verdict)})
        return verdict

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
            updated = replace(verdict, bisection=f"failed: {_death_error('bisected')}")
        else:
            self._say(f"bisecting {pair.candidate} against {pair.base}")
            updated = self._searched(pair, verdict)
        self.journal.add({"bisected": list(pair.names), "pair": dump_pair(updated)})
        return updated

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
        with interruptible(f"{pair.candidate} was being {work.doing}", hint=_NIGHT_RESUME_HINT):
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
    differ = [finding.text for finding in verdict.findings if finding.kind == "sides_differ"]
    return "; ".join(("no settings are declared", *differ))


RESUME_HOURS = 12.0
_RESUME_HINT = "the same command goes on with the next pair"


@run_scope()
def nightly(
    options: CompareOptions | None = None,
    *,
    resume_hours: float = RESUME_HOURS,
    pair_hours: float | None = None,
    **given: Any,
) -> NightlyResult:
    """Compare every pair of the guard files; one that fails stops no other.

    A night that was stopped goes on where it was: finished pairs are not compared again.

    Args:
        options: of every comparison; ``given`` are fields of it that override it.
        resume_hours: a night that began longer ago is not gone on with; 0: never.
        pair_hours: a pair that takes longer is stopped, and has failed, and so for its bisection;
            0: never; None: as its guard file says, else after 12 hours.

    Raises:
        UsageError: the guard file cannot be used, or has no pairs.
        EvaluationError: another process is running this night.
        StoreError: its folder cannot be written.
        Interrupted: on Ctrl-C.
    """
    options, cwd = make_options(options, **given), Path.cwd()
    check_hours(pair_hours)
    with interruptible("reading what is to be compared"):
        guards, pairs = list_pairs(options, cwd, hours=pair_hours)
        root = (options.output_path or DEFAULT_OUTPUT).expanduser().absolute() / "nightly"
        check_writable(root)
        history = _history_file(guards, options, root)
        prepare_history(history)
        check_night_files(options, cwd=cwd)
    digest = guards_digest(guards)
    lock = root / f".{safe_name(guards.where)}-{digest_of(guards.where)[:8]}.lock"
    with hold_nightly_lock(lock) as note, PairRunner() as runner:
        head = _journal_head(digest, pairs, options)
        folder = None
        if resume_hours > 0.0:
            folder = find_unfinished_night(root, head, since=hours_ago(resume_hours))
        resumed = folder is not None
        journal = _open_journal(folder or new_night_folder(root, datetime.now(timezone.utc)), head)
        night = RunningNight(
            journal=journal,
            options=_pair_options(options, journal),
            cwd=cwd,
            runner=runner,
            history=NightHistory(history),
            earlier=list_unfinished_nights(root, digest, before=journal.folder),
        )
        with interruptible("the night was running", hint=_RESUME_HINT):
            verdicts = night.run(pairs)
        runner.close()  # before the rest of the night needs its memory
        report = _report(night, verdicts, guards=guards, history=history)
        notes = (note, *_night_notes(night, resumed), *report.notes)
        report = replace(report, notes=tuple(filter(None, notes)))
        result = write_night(replace(report, command=redacted_text(options.command)), options, cwd)
        return replace(result, tracked=track_night(report, pairs, options))


def _history_file(guards: GuardSet, options: CompareOptions, root: Path) -> Path | None:
    """As said, else as the guard files say, else beside the nights."""
    if options.history == NO_HISTORY:
        return None
    if options.history is not None:
        return options.history.expanduser().absolute()
    file = shared_history_file(guards)
    if file is None and any(guard.run.history == NO_HISTORY for guard in guards.guards):
        return None
    return (file or root / "history.sqlite").absolute()


def _journal_head(
    digest: str, pairs: tuple[NightPair, ...], options: CompareOptions
) -> dict[str, Any]:
    """What a night has to have in common with one that it goes on with."""
    counting = replace(options, command="", quiet=False, output=(), output_format=None)
    return {
        "schema": JOURNAL_SCHEMA,
        "guard": digest,
        "pairs": [list(pair.names) for pair in pairs],
        "options": digest_of(repr(counting)),
        "evalguard": evalguard.__version__,
    }


def _open_journal(folder: Path, head: dict[str, Any]) -> NightJournal:
    journal = NightJournal(folder)
    if journal.head:
        journal.add({"resumed": _now()})
    else:
        journal.begin({**head, "created": _now()})
    return journal


def _pair_options(options: CompareOptions, journal: NightJournal) -> CompareOptions:
    """The options of every comparison of a night.

    For all of them it is the day on which the night began, also after midnight and where it goes on
    later: a waiver holds for the whole night, or for none of it.
    """
    return replace(
        options,
        today=options.today or str(journal.head["created"])[:10],
        output_path=journal.folder,
        history=NO_HISTORY,  # the night keeps its runs
        output=(),
        output_format=None,
        track=("none",),  # after all verdicts, in one group
    )


def _report(
    night: RunningNight, pairs: tuple[PairNight, ...], *, guards: GuardSet, history: Path | None
) -> NightReport:
    notes: list[str] = []
    before = read_last_night(
        night.folder.parent, guards.where, before=night.folder, note=notes.append
    )
    previous, earlier = before or ("", ())
    with interruptible("asking the history"):
        changes = find_changes_tonight(pairs, earlier, history)
    return NightReport(
        name=night.folder.name,
        created=str(night.journal.head["created"]),
        finished=_now(),
        guard=guards.where,
        folder=str(night.folder),
        history="" if history is None else str(history),
        previous=previous,
        notes=tuple(notes),
        resumed=sum("resumed" in record for record in night.journal.records),
        pairs=pairs,
        changes=changes,
        gone=gone_since(pairs, earlier),
        other_bases=other_bases(pairs, earlier),
        exit_code=gravest_exit_code(pair.exit_code for pair in pairs),
        version=evalguard.__version__,
    )


def _night_notes(night: RunningNight, resumed: bool) -> list[str]:
    notes = []
    if resumed:
        notes.append("this night was stopped, and gone on with")
    later = latest_night_name(night.folder.parent)
    if later > night.folder.name:
        notes.append(
            f"the clock went back: there is a night {later} already; this one is compared with "
            "the night before its own time"
        )
    if night.journal.damaged:
        notes.append(f"damaged lines of {night.journal.path} are left out: {night.journal.damaged}")
    return notes


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
