"""What a history answers: which runs it holds, trends of their metrics, documents that flip.

Runs, trends with change points, flips between two nights; for a person, a program, or written to
files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.config.guard_search import load_guards
from evalguard.core.verdict import DriftUnit
from evalguard.engine.history_location import shared_history_file
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.nights.change_points import Floats, change_points
from evalguard.nights.history.history_file import HistoryFile
from evalguard.nights.history_flips import broken_documents, flips
from evalguard.nights.history_report import (
    Change,
    FlipReport,
    HistoryCheck,
    HistoryListing,
    HistoryRun,
    MetricFlips,
    MetricKey,
    Night,
    NightRun,
    Trend,
    TrendReport,
    common_unit,
)

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
    unit = common_unit(nights)
    used = tuple(index for index, night in enumerate(nights) if _usable(night, unit))
    scan = change_points(*select_scanned_numbers(nights, used), alpha=alpha)
    scanned = [nights[index] for index in used]
    changes = tuple(
        tuple(
            change
            for index in range(point.earliest, point.latest + 1)
            for change in find_environment_changes(scanned[index - 1], scanned[index], environment)
        )
        for point in scan.points
    )
    return Trend(key=key, nights=tuple(nights), scan=scan, used=used, changes=changes)


def select_scanned_numbers(nights: Sequence[Night], used: Sequence[int]) -> tuple[Floats, Floats]:
    """Drift and standard error of the nights that are scanned, in one unit, shape (n,) each.

    Of shares all nights count alike: a share's own error is 0 where it is 0, which would pull
    every level there.
    """
    unit = common_unit(nights)
    drifts = [nights[index].metric.drift_in(unit)[0] or 0.0 for index in used]
    errors = [nights[index].metric.stderr or 0.0 if unit == "sigma" else 0.0 for index in used]
    return np.array(drifts, np.float64), np.array(errors, np.float64)


def _usable(night: Night, unit: DriftUnit) -> bool:
    drift, _ = night.metric.drift_in(unit)
    return drift is not None and math.isfinite(drift)


def find_environment_changes(
    first: Night, second: Night, environment: ReadEnvironment
) -> list[Change]:
    """What else is other in the later of two nights."""
    before, after = first.run, second.run
    changes = [
        Change(
            run=after.number,
            what=what,
            before=str(earlier),
            after=str(later),
        )
        for what, earlier, later in (
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
        if earlier != later
    ]
    if before.environment != after.environment:
        sides = [dict(_flatten(environment(run.environment))) for run in (before, after)]
        names = dict.fromkeys((*sides[0], *sides[1]))
        changes += [
            Change(
                run=after.number,
                what=name,
                before=_value_text(sides[0].get(name)),
                after=_value_text(sides[1].get(name)),
            )
            for name in names
            if sides[0].get(name) != sides[1].get(name) and name != "packages.evalguard"
        ]
    return changes[:_MOST_CHANGES]


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


_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RUN_NAME_HINT = (
    "latest, latest~1 (the one before), a number of `evalguard history list`, or a date"
)


def find_named_run(name: str, runs: Sequence[NightRun]) -> NightRun:
    """The run that a name means among a pair's, which are in order of time.

    ``latest~K`` is K runs before the latest; digits are a run's number; a date, or how
    a time begins (2026-11-20T03), means the latest run of that time.

    Raises:
        UsageError: there is no such run.
    """
    back = _LATEST.fullmatch(name)
    if back is not None:
        steps = int(back[1] or 0)
        if steps < len(runs):
            return runs[len(runs) - 1 - steps]
        raise UsageError(
            f"there is no run {name}: the pair has {len(runs)} runs", hint=_RUN_NAME_HINT
        )
    if _NUMBER.fullmatch(name):
        matches = [run for run in runs if run.number == int(name)]
    else:
        matches = [run for run in runs if name and run.created.startswith(name)]
    if not matches:
        raise UsageError(f"the pair has no run '{name}'", hint=_RUN_NAME_HINT)
    return matches[-1]


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
        return all(name in ("", part) for name, part in zip(asked, key, strict=True))


def require_history_file(history: Path | None, config: Path | None) -> Path:
    """The history that is meant: the one named, else the guard file's.

    Raises:
        UsageError: there is none.
    """
    if history is not None:
        return history.expanduser()
    guards = load_guards(config, cwd=Path.cwd(), allow_code=False)
    file = shared_history_file(guards)
    if file is None:
        raise UsageError(
            f"no history is named, and {guards.where} names none",
            hint="--history FILE, or `run: {history: FILE}` in the guard file",
        )
    return file


def list_runs(file: Path, wanted: HistorySelection, *, last: int | None = None) -> HistoryListing:
    """The runs of a history, the oldest first.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    with HistoryFile(file) as history:
        runs = [run for run in history.runs() if wanted.has(run)]
        shown = runs[-last:] if last else runs
        history_runs = tuple(
            HistoryRun(run=run, metrics=history.metrics(run.number)) for run in shown
        )
        history.note_damage()
        problems = tuple(history.problems)
    return HistoryListing(file=str(file), runs=history_runs, total=len(runs), problems=problems)


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
        pair = _selected_pair(file, history, wanted)
        keys = _selected_keys(file, history, pair, wanted, everything=everything)
        series = {key: history.nights(pair, key)[-(last or 0) :] for key in keys}
        trends = tuple(
            build_trend(
                key, nights, alpha=alpha / len(keys) / looks, environment=history.environment
            )
            for key, nights in series.items()
            if nights
        )
        history.note_damage()
        problems = tuple(history.problems)
    return TrendReport(
        file=str(file),
        base=pair[0],
        candidate=pair[1],
        alpha=alpha,
        trends=trends,
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
        pair = _selected_pair(file, history, wanted)
        runs = history.runs(pair)
        first_run, second_run = find_named_run(first, runs), find_named_run(second, runs)
        if first_run.number == second_run.number:
            raise UsageError(
                f"'{first}' and '{second}' are the same run, {first_run.number}",
                hint="evalguard history list shows the runs",
            )
        keys = _selected_keys(file, history, pair, wanted, everything=everything)
        earlier = [
            run
            for run in runs
            if (run.created, run.number) < (second_run.created, second_run.number)
        ]
        metrics = tuple(_metric_flips(history, key, first_run, second_run, earlier) for key in keys)
        history.note_damage()
        problems = tuple(history.problems)
    return FlipReport(
        file=str(file),
        first=first_run,
        second=second_run,
        metrics=metrics,
        nights={run.number: run.created for run in earlier},
        problems=problems,
    )


def check_history(file: Path) -> HistoryCheck:
    """Read all of a history; see ``HistoryFile.check``."""
    with HistoryFile(file) as history:
        return history.check()


def _metric_flips(
    history: HistoryFile,
    key: MetricKey,
    first: NightRun,
    second: NightRun,
    earlier: Sequence[NightRun],
) -> MetricFlips:
    numbers = [run.number for run in earlier]
    documents = history.documents([*numbers, first.number, second.number], key)
    if second.number not in documents or first.number not in documents:
        lacking = second if second.number not in documents else first
        reason = f"run {lacking.number} keeps no scores of single documents for it"
        return MetricFlips(key=key, flips=None, broken=None, reason=reason)
    before = {number: documents[number] for number in numbers if number in documents}
    return MetricFlips(
        key=key,
        flips=flips(documents[first.number], documents[second.number]),
        broken=broken_documents(documents[second.number], before),
    )


def _selected_pair(file: Path, history: HistoryFile, wanted: HistorySelection) -> tuple[str, str]:
    """The one pair that is meant."""
    runs = history.runs()
    pairs = dict.fromkeys(run.pair for run in runs)
    meant = dict.fromkeys(run.pair for run in runs if wanted.has(run))
    if len(meant) == 1:
        return next(iter(meant))
    names = ", ".join(f"{base} vs {candidate}" for base, candidate in pairs)
    if not meant:
        _refuse_damaged(file, history)
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


def _refuse_damaged(file: Path, history: HistoryFile) -> None:
    """Say that what was asked for may be among what is damaged, where something is."""
    history.note_damage()
    if history.problems:
        first, *remaining = history.problems
        suffix = f" and {len(remaining)} more" if remaining else ""
        raise EvaluationError(
            f"of what is asked, nothing can be read in {file}: {first}{suffix}",
            hint=f"evalguard history check --history {file} shows all that is damaged",
        )


def _selected_keys(
    file: Path,
    history: HistoryFile,
    pair: tuple[str, str],
    wanted: HistorySelection,
    *,
    everything: bool,
) -> tuple[MetricKey, ...]:
    """The metrics that are meant: those named, else those that the gate judged last."""
    keys = history.keys(pair)
    if wanted.named:
        selected = tuple(key for key in keys if wanted.has_metric(key))
        if not selected:
            _refuse_damaged(file, history)
            known = [name for key in keys for name in key]
            asked = " ".join(filter(None, (wanted.task, wanted.filter, wanted.metric)))
            raise UsageError(
                f"{pair[0]} vs {pair[1]} has no metric {asked}"
                f"{nearest(wanted.metric or wanted.task, known)}",
                hint=f"it has: {', '.join(f'{task} {metric}' for task, _, metric in keys)}",
            )
        return selected
    latest = history.metrics(history.runs(pair)[-1].number)
    gated = {metric.key for metric in latest if metric.gated}
    return tuple(key for key in keys if key in gated) if gated and not everything else keys
