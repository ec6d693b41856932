"""A trend: nights of one metric, their change points, and what else changed there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evalguard.core.drift_unit import DriftUnit
from evalguard.core.history_night import MetricKey, Night, common_unit
from evalguard.core.reports.history_report import (
    Change,
    Trend,
)
from evalguard.stats.series.change_points import change_points
from evalguard.stats.series.levels import Floats

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
    used = tuple(place for place, night in enumerate(nights) if _usable(night, unit))
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
    """Drift and standard error of the nights that are scanned, in one unit, shape (n,) each.

    Of shares all nights count alike: a share's own error is 0 where it is 0, which would pull
    every level there.
    """
    unit = common_unit(nights)
    drifts = [nights[place].metric.drift_in(unit)[0] or 0.0 for place in used]
    errors = [nights[place].metric.stderr or 0.0 if unit == "sigma" else 0.0 for place in used]
    return np.array(drifts, np.float64), np.array(errors, np.float64)


def _usable(night: Night, unit: DriftUnit) -> bool:
    drift, _ = night.metric.drift_in(unit)
    return drift is not None and math.isfinite(drift)


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
