"""What a history answers.

Runs, trends with change points, flips between two nights; for a person, a program, or written to
files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.config.files import load_guards
from evalguard.core.history import MetricKey, Night, NightRun
from evalguard.core.reports.broken_on_nights import broken_documents
from evalguard.core.reports.document_flips import flips
from evalguard.core.reports.history_report import (
    Change,
    FlipReport,
    Found,
    HistoryCheck,
    HistoryExport,
    HistoryListing,
    HistoryRun,
    MetricFlips,
    Trend,
    TrendReport,
)
from evalguard.errors import EXIT_PASSED, EXIT_REGRESSED, UsageError, nearest
from evalguard.report.history import history_document, history_text
from evalguard.run.history.location import find_named_run, shared_history_file
from evalguard.stats.series.change_points import change_points
from evalguard.stats.series.levels import Floats
from evalguard.store.files import check_output, write_output
from evalguard.store.history.check import check_history, export_history
from evalguard.store.history.history_file import HistoryFile

DEFAULT_ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySelection:
    """Which models and metrics are meant; "" for any."""

    base: str = ""
    candidate: str = ""
    task: str = ""
    metric: str = ""
    filter: str = ""

    @property
    def named(self) -> bool:
        """Whether metrics are named."""
        return bool(self.task or self.metric or self.filter)

    def has(self, run: NightRun) -> bool:
        """Whether a run is of these models."""
        return self.base in ("", run.base) and self.candidate in ("", run.candidate)

    def has_metric(self, key: MetricKey) -> bool:
        """Whether a metric is meant."""
        asked = (self.task, self.filter, self.metric)
        return all(name in ("", found) for name, found in zip(asked, key, strict=True))


def require_history_file(history: Path | None, config: Path | None) -> Path:
    """The history that is meant: the one named, else the guard file's.

    Raises:
        UsageError: there is none.
    """
    if history is not None:
        return history.expanduser()
    guards = load_guards(config, cwd=Path.cwd(), allow_code=False)
    found = shared_history_file(guards)
    if found is None:
        raise UsageError(
            f"no history is named, and {guards.where} names none",
            hint="--history FILE, or `run: {history: FILE}` in the guard file",
        )
    return found


def list_runs(file: Path, wanted: HistorySelection, *, last: int | None = None) -> HistoryListing:
    """The runs of a history, the oldest first.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    with HistoryFile(file) as history:
        runs = [run for run in history.runs() if wanted.has(run)]
        shown = runs[-last:] if last else runs
        kept = tuple(HistoryRun(run=run, metrics=history.metrics(run.number)) for run in shown)
        problems = tuple(history.problems)
    return HistoryListing(file=str(file), runs=kept, total=len(runs), problems=problems)


def find_trends(
    file: Path,
    wanted: HistorySelection,
    *,
    last: int | None = None,
    alpha: float = DEFAULT_ALPHA,
    looks: int = 1,
    everything: bool = False,
) -> TrendReport:
    """Metrics of a pair over nights, with change points.

    Each trend, in each answer, is held to alpha / (trends looks): by Boole's inequality that holds
    however much answers have in common.

    Args:
        last: the latest nights only.
        alpha: chance of any false change point among all trends that are shown.
        looks: answers that share this chance: 365 for who asks every night of a year.
        everything: metrics that the gate did not judge in the latest run, too.

    Raises:
        UsageError: the history has no such pair or metric, or several pairs.
    """
    with HistoryFile(file) as history:
        pair = _selected_pair(file, history.runs(), wanted)
        keys = _selected_keys(history, pair, wanted, everything=everything)
        series = {key: history.nights(pair, key)[-(last or 0) :] for key in keys}
        found = tuple(
            build_trend(
                key, nights, alpha=alpha / len(keys) / looks, environment=history.environment
            )
            for key, nights in series.items()
            if nights
        )
        problems = tuple(history.problems)
    return TrendReport(
        file=str(file),
        base=pair[0],
        candidate=pair[1],
        alpha=alpha,
        trends=found,
        looks=looks,
        problems=problems,
    )


def find_flips(
    file: Path, wanted: HistorySelection, *, first: str, second: str, everything: bool = False
) -> FlipReport:
    """Documents that changed between two nights of a pair, and which broke again.

    Args:
        first, second: runs, as ``find_named_run`` reads them.

    Raises:
        UsageError: there are no such runs, or they are of different pairs.
    """
    with HistoryFile(file) as history:
        pair = _selected_pair(file, history.runs(), wanted)
        runs = history.runs(pair)
        one, other = find_named_run(first, runs), find_named_run(second, runs)
        if one.number == other.number:
            raise UsageError(
                f"'{first}' and '{second}' are the same run, {one.number}",
                hint="evalguard history list shows the runs",
            )
        keys = _selected_keys(history, pair, wanted, everything=everything)
        earlier = [run for run in runs if (run.created, run.number) < (other.created, other.number)]
        metrics = tuple(_metric_flips(history, key, one, other, earlier) for key in keys)
        problems = tuple(history.problems)
    return FlipReport(
        file=str(file),
        first=one,
        second=other,
        metrics=metrics,
        nights={run.number: run.created for run in earlier},
        problems=problems,
    )


def export_runs(file: Path, folder: Path, *, documents: bool = True) -> HistoryExport:
    """Write a history as parquet files; see ``export_history``."""
    return export_history(file, folder.expanduser(), documents=documents)


def verify_history(file: Path) -> HistoryCheck:
    """Read all of a history; see ``check_history``."""
    return check_history(file)


def _metric_flips(
    history: HistoryFile,
    key: MetricKey,
    first: NightRun,
    second: NightRun,
    earlier: Sequence[NightRun],
) -> MetricFlips:
    numbers = [run.number for run in earlier]
    found = history.documents([*numbers, first.number, second.number], key)
    if second.number not in found or first.number not in found:
        lacking = second if second.number not in found else first
        reason = f"run {lacking.number} keeps no scores of single documents for it"
        return MetricFlips(key=key, flips=None, broken=None, reason=reason)
    before = {number: found[number] for number in numbers if number in found}
    return MetricFlips(
        key=key,
        flips=flips(found[first.number], found[second.number]),
        broken=broken_documents(found[second.number], before),
    )


def _selected_pair(
    file: Path, runs: Sequence[NightRun], wanted: HistorySelection
) -> tuple[str, str]:
    """The one pair that is meant."""
    pairs = dict.fromkeys(run.pair for run in runs)
    meant = dict.fromkeys(run.pair for run in runs if wanted.has(run))
    if len(meant) == 1:
        return next(iter(meant))
    names = ", ".join(f"{base} vs {candidate}" for base, candidate in pairs)
    if not pairs:
        raise UsageError(f"the history {file} has no runs yet")
    if not meant:
        known = [name for pair in pairs for name in pair]
        asked = " vs ".join(filter(None, (wanted.base, wanted.candidate)))
        raise UsageError(
            f"the history {file} has no runs of {asked}"
            f"{nearest(wanted.candidate or wanted.base, known)}",
            hint=f"it has: {names}",
        )
    raise UsageError(
        f"the history {file} has several pairs: {names}", hint="choose with --base and --cand"
    )


def _selected_keys(
    history: HistoryFile, pair: tuple[str, str], wanted: HistorySelection, *, everything: bool
) -> tuple[MetricKey, ...]:
    """The metrics that are meant: those named, else those that the gate judged last."""
    keys = history.keys(pair)
    if wanted.named:
        found = tuple(key for key in keys if wanted.has_metric(key))
        if not found:
            known = [name for key in keys for name in key]
            asked = " ".join(filter(None, (wanted.task, wanted.filter, wanted.metric)))
            raise UsageError(
                f"{pair[0]} vs {pair[1]} has no metric {asked}"
                f"{nearest(wanted.metric or wanted.task, known)}",
                hint=f"it has: {', '.join(f'{task} {metric}' for task, _, metric in keys)}",
            )
        return found
    latest = history.metrics(history.runs(pair)[-1].number)
    gated = {metric.key for metric in latest if metric.gated}
    return tuple(key for key in keys if key in gated) if gated and not everything else keys


# A trend: nights of one metric, their change points, and what else changed there.


ReadEnvironment = Callable[[str], Mapping[str, Any]]
_SHORT_DIGEST = 8
_MOST_CHANGES = 8


def build_trend(
    key: MetricKey, nights: Sequence[Night], *, alpha: float, environment: ReadEnvironment
) -> Trend:
    """Scan one metric's nights.

    Args:
        alpha: chance of any false change point.
        environment: what a digest of an environment stands for.
    """
    used = tuple(place for place, night in enumerate(nights) if _usable(night))
    scan = change_points(*select_scanned_numbers(nights, used), alpha=alpha)
    scanned = [nights[place] for place in used]
    changes = tuple(
        tuple(
            change
            for place in range(point.earliest, point.latest + 1)
            for change in find_environment_changes(scanned[place - 1], scanned[place], environment)
        )
        for point in scan.points
    )
    return Trend(key=key, nights=tuple(nights), scan=scan, used=used, changes=changes)


def select_scanned_numbers(nights: Sequence[Night], used: Sequence[int]) -> tuple[Floats, Floats]:
    """Sigma and its standard error of the nights that are scanned, shape (n,) each."""
    sigmas = np.array([nights[place].metric.sigma or 0.0 for place in used], np.float64)
    stderrs = np.array([nights[place].metric.stderr or 0.0 for place in used], np.float64)
    return sigmas, stderrs


def _usable(night: Night) -> bool:
    sigma = night.metric.sigma
    return sigma is not None and math.isfinite(sigma)


def find_environment_changes(
    first: Night, second: Night, environment: ReadEnvironment
) -> list[Change]:
    """What else is other in the later of two nights."""
    before, after = first.run, second.run
    found = [
        Change(
            run=after.number,
            what=what,
            before=str(one),
            after=str(other),
        )
        for what, one, other in (
            ("base", _shorten_digest(before.base_digest), _shorten_digest(after.base_digest)),
            (
                "candidate",
                _shorten_digest(before.candidate_digest),
                _shorten_digest(after.candidate_digest),
            ),
            ("evalguard", before.version, after.version),
            # Sigma is in units of an error that shrinks with the documents.
            ("documents", first.metric.n_used, second.metric.n_used),
            ("margin", first.margin_text, second.margin_text),
        )
        if one != other
    ]
    if before.environment != after.environment:
        sides = [dict(_flatten(environment(run.environment))) for run in (before, after)]
        names = dict.fromkeys((*sides[0], *sides[1]))
        found += [
            Change(
                run=after.number,
                what=name,
                before=_value_text(sides[0].get(name)),
                after=_value_text(sides[1].get(name)),
            )
            for name in names
            if sides[0].get(name) != sides[1].get(name) and name != "packages.evalguard"
        ]
    return found[:_MOST_CHANGES]


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shorten_digest(digest: str) -> str:
    return digest[:_SHORT_DIGEST]


def _value_text(value: Any) -> str:
    return "none" if value is None else str(value)


# HistoryResult: what a history answered, for a person and for a program.


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """What was found."""

    found: Found

    @property
    def exit_code(self) -> int:
        """1 where a check found something damaged, else 0: a history judges nothing."""
        damaged = isinstance(self.found, HistoryCheck) and self.found.problems
        return EXIT_REGRESSED if damaged else EXIT_PASSED

    def to_json(self) -> str:
        """Return one JSON document (schema ``evalguard.history/1``)."""
        return json.dumps(history_document(self.found), indent=2, allow_nan=False)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return text for a terminal; with ``verbose`` every trend."""
        return history_text(self.found, width=width, color=color, verbose=verbose)


# Trends of a history, written to files: an HTML page with plots, text, JSON.


_SUFFIXES = (".html", ".htm", ".txt", ".json")


def check_trend_files(paths: Sequence[Path]) -> None:
    """Refuse files that cannot be written.

    Raises:
        UsageError: naming the first.
    """
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"{path}: trends are not written as {path.suffix or 'a file without a suffix'}",
                hint=f"name it {' or '.join(f'*{one}' for one in _SUFFIXES)}",
            )
        check_output(path)


def write_trends(report: TrendReport, paths: Sequence[Path]) -> None:
    """Write trends to each file, in the format of its suffix.

    Raises:
        StoreError: one cannot be written.
    """
    for path in paths:
        write_output(path, _render_trends(report, path.suffix.lower()))


def _render_trends(report: TrendReport, suffix: str) -> str:
    if suffix in (".html", ".htm"):
        from evalguard.report.html.history import render_history_page

        return render_history_page(report)
    result = HistoryResult(report)
    return (result.to_json() if suffix == ".json" else result.render()) + "\n"
