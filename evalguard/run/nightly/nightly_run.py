"""Compares every pair of the guard files in one night, and says what changed since last night."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import evalguard
from evalguard.config.guard import GuardSet
from evalguard.core.gate import gravest_exit_code
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.night_changes import gone_since, other_bases
from evalguard.core.reports.night_report import (
    NightReport,
    PairNight,
)
from evalguard.core.settings import digest_of
from evalguard.run.history.location import shared_history_file
from evalguard.run.history.storage import prepare_history
from evalguard.run.interrupts import interruptible
from evalguard.run.nightly.changes_tonight import find_changes_tonight
from evalguard.run.nightly.night import RunningNight
from evalguard.run.nightly.night_files import NightlyResult, check_night_files, write_night
from evalguard.run.nightly.night_folders import (
    JOURNAL_SCHEMA,
    find_unfinished_night,
    hours_ago,
    latest_night_name,
    list_unfinished_nights,
    new_night_folder,
    read_last_night,
)
from evalguard.run.nightly.night_history import NightHistory
from evalguard.run.nightly.night_on_trackers import track_night
from evalguard.run.nightly.nightly_lock import hold_nightly_lock
from evalguard.run.nightly.pair_process import PairRunner
from evalguard.run.nightly.pair_time import check_hours
from evalguard.run.nightly.pairs import NightPair, guards_digest, list_pairs
from evalguard.run.options import DEFAULT_OUTPUT, CompareOptions, make_options
from evalguard.run_token import run_scope
from evalguard.store.night_journal import NightJournal
from evalguard.store.run_folder import check_writable
from evalguard.store.safe_names import safe_name

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
            found = night.run(pairs)
        runner.close()  # before the rest of the night needs its memory
        report = _report(night, found, guards=guards, history=history)
        report = replace(report, notes=tuple(filter(None, (note, *_night_notes(night, resumed)))))
        result = write_night(replace(report, command=redacted_text(options.command)), options, cwd)
        return replace(result, tracked=track_night(report, pairs, options))


def _history_file(guards: GuardSet, options: CompareOptions, root: Path) -> Path | None:
    """As said, else as the guard files say, else beside the nights."""
    if not options.use_history:
        return None
    if options.history is not None:
        return options.history.expanduser().absolute()
    return (shared_history_file(guards) or root / "history.sqlite").absolute()


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
        history=None,
        use_history=False,  # the night keeps its runs
        output=(),
        output_format=None,
        track=("none",),  # after all verdicts, in one group
    )


def _report(
    night: RunningNight, pairs: tuple[PairNight, ...], *, guards: GuardSet, history: Path | None
) -> NightReport:
    before = read_last_night(night.folder.parent, guards.where, before=night.folder)
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
        resumed=sum("resumed" in record for record in night.journal.records),
        pairs=pairs,
        changes=changes,
        gone=gone_since(pairs, earlier),
        other_bases=other_bases(pairs, earlier),
        exit_code=gravest_exit_code(pair.exit_code for pair in pairs),
        version=evalguard.__version__,
    )


def _night_notes(night: RunningNight, resumed: bool) -> list[str]:
    said = []
    if resumed:
        said.append("this night was stopped, and gone on with")
    later = latest_night_name(night.folder.parent)
    if later > night.folder.name:
        said.append(
            f"the clock went back: there is a night {later} already; this one is compared with "
            "the night before its own time"
        )
    if night.journal.damaged:
        said.append(f"damaged lines of {night.journal.path} are left out: {night.journal.damaged}")
    return said


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
