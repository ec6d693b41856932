"""Compares every pair of the guard files in one night, and says what changed since last night."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import evalguard
from evalguard.config.guard import GuardSet
from evalguard.core.gate import gravest_exit_code
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.history_report import MetricFlips, Trend, TrendReport
from evalguard.core.reports.night_changes import changed_since, gone_since, other_bases
from evalguard.core.reports.night_report import (
    BrokenTonight,
    NightReport,
    NightStep,
    PairChanges,
    PairNight,
)
from evalguard.core.settings import digest_of
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.run.history.location import shared_history_file
from evalguard.run.history.queries import HistorySelection, find_flips, select_scanned_numbers
from evalguard.run.history.storage import prepare_history
from evalguard.run.meter import interruptible
from evalguard.run.nightly.night import NightHistory, RunningNight
from evalguard.run.nightly.night_files import (
    JOURNAL_SCHEMA,
    NightlyResult,
    check_night_files,
    find_unfinished_night,
    hours_ago,
    latest_night_name,
    list_unfinished_nights,
    new_night_folder,
    read_last_night,
    read_night_trends,
    write_night,
)
from evalguard.run.nightly.night_on_trackers import track_night
from evalguard.run.nightly.pair_process import PairRunner
from evalguard.run.nightly.pairs import NightPair, check_hours, guards_digest, list_pairs
from evalguard.run.options import CompareOptions, make_options
from evalguard.run.result import DEFAULT_OUTPUT
from evalguard.stats.series.news import recently_found
from evalguard.store.files import FileLock, safe_name
from evalguard.store.night_journal import NightJournal
from evalguard.store.run_folder import check_writable

RESUME_HOURS = 12.0
_RESUME_HINT = "the same command goes on with the next pair"


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


# The lock that keeps a night from being run twice at once; one of a dead process holds nobody.


@contextmanager
def hold_nightly_lock(path: Path) -> Iterator[str]:
    """Hold the lock; yields a note where the file system has no locks, else "".

    The kernel frees it when the process ends, however it does.

    Raises:
        EvaluationError: another process holds it; the message says which, and since when.
    """
    try:
        lock = FileLock.tried(path)
    except OSError as error:
        yield (
            f"{path.parent} has no locks ({error.strerror or error}): nothing keeps another "
            "night from running at the same time"
        )
        return
    if lock is None:
        raise EvaluationError(
            f"another night of this guard file is running: {_lock_holder(path)}",
            hint="wait until it has finished, or end that process; then the same command goes on",
        )
    try:
        path.write_text(json.dumps(_lock_record()), encoding="utf-8")
        yield ""
    finally:
        lock.release()


def _lock_record() -> dict[str, object]:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"process": os.getpid(), "host": socket.gethostname(), "since": since}


def _lock_holder(path: Path) -> str:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return f"process {told['process']} on {told['host']}, since {told['since']} ({path})"
    except (OSError, ValueError, KeyError, TypeError):  # it has begun this very moment
        return str(path)


# What is other than last night: verdicts, and what the history says of levels and documents.


RECENT_NIGHTS = 7
"""Nights for which a change point is told of, from the one on that found it."""


def find_changes_tonight(
    pairs: Sequence[PairNight], before: Sequence[PairNight], history: Path | None
) -> tuple[PairChanges, ...]:
    """Compare a night with the one before, pair by pair.

    Args:
        before: the pairs of last night; () for the first one.
    """
    known = {pair.pair: pair for pair in before}
    found = [(pair, changed_since(pair, known.get(pair.pair))) for pair in pairs]
    return tuple(_add_history_changes(pair, changes, history) for pair, changes in found)


def _add_history_changes(
    pair: PairNight, changes: PairChanges, history: Path | None
) -> PairChanges:
    """The same, with change points and documents; a history that fails costs only these."""
    if history is None or not pair.created:
        return changes
    wanted = HistorySelection(base=pair.base, candidate=pair.candidate)
    try:
        found = read_night_trends(history, wanted)
        steps = tuple(step for trend in found.trends for step in _new_steps(trend))
        broken = _broken_documents(history, wanted, found)
    except EvalguardError as error:
        return replace(changes, problem=str(error))
    return replace(changes, steps=steps, broken=broken)


def _new_steps(trend: Trend) -> list[NightStep]:
    """Change points that are news."""
    sigmas, stderrs = select_scanned_numbers(trend.nights, trend.used)
    recent = recently_found(sigmas, stderrs, trend.scan, nights=RECENT_NIGHTS)
    nights = [trend.nights[place].run.created for place in trend.used]
    return [
        NightStep(
            key=trend.key,
            created=nights[point.position],
            earliest=nights[point.earliest],
            latest=nights[point.latest],
            before=point.before.mean,
            after=point.after.mean,
            stderr=point.stderr,
            changed=tuple(f"{one.what} {one.before} -> {one.after}" for one in changes),
        )
        for point, changes, new in zip(trend.scan.points, trend.changes, recent, strict=True)
        if new
    ]


def _broken_documents(
    history: Path, wanted: HistorySelection, found: TrendReport
) -> tuple[BrokenTonight, ...]:
    if max((len(trend.nights) for trend in found.trends), default=0) < 2:
        return ()
    flips = find_flips(history, wanted, first="latest~1", second="latest")
    told = (_broken_metric(metric, dict(flips.nights)) for metric in flips.metrics)
    return tuple(one for one in told if one is not None)


def _broken_metric(metric: MetricFlips, nights: dict[int, str]) -> BrokenTonight | None:
    broken = metric.broken
    if broken is None or not (broken.again or broken.new):
        return None
    alike = broken.alike
    return BrokenTonight(
        key=metric.key,
        total=broken.total,
        new=len(broken.new),
        again=len(broken.again),
        repaired=len(broken.repaired),
        alike="" if alike is None else nights.get(alike.run, ""),
        shared=0 if alike is None else alike.again,
        by_chance=0.0 if alike is None else alike.by_chance,
    )
