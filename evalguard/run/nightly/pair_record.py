"""A pair's night as plain data, for the journal and for the next night, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from evalguard.core.reports.night_report import NightlyMetric, PairNight
from evalguard.core.settings import Value
from evalguard.report.contract.non_finite import replace_non_finite


def dump_pair(pair: PairNight) -> dict[str, Value]:
    """The pair as JSON values; a number that JSON cannot hold is null."""
    found: dict[str, Value] = replace_non_finite(asdict(pair), "", {})
    return found


def read_pair(told: Mapping[str, Any]) -> PairNight:
    """Read back what ``dump_pair`` gave; keys that are not known are left out.

    Raises:
        ValueError, TypeError, KeyError: it is something else.
    """
    known = {field.name for field in fields(PairNight)}
    values = {name: value for name, value in told.items() if name in known}
    for name in ("culprits", "waivers", "expired", "notes", "problems"):
        values[name] = tuple(map(str, values.get(name, ())))
    values["metrics"] = tuple(_read_metric(one) for one in told["metrics"])
    return PairNight(**values)


def _read_metric(told: Mapping[str, Any]) -> NightlyMetric:
    known = {field.name for field in fields(NightlyMetric)}
    return NightlyMetric(**{name: value for name, value in told.items() if name in known})
