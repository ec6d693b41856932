"""A pair's night as plain data, for the journal and for the next night, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.core.reports.night_report import PairNight
from evalguard.core.settings import Value
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.non_finite import replace_non_finite
from evalguard.report.contract.record_reading import read_record


def dump_pair(pair: PairNight) -> dict[str, Value]:
    """The pair as JSON values; a number that JSON cannot hold is null."""
    found: dict[str, Value] = replace_non_finite(write_record(pair), "", {})
    return found


def read_pair(told: Mapping[str, Any]) -> PairNight:
    """Read back what ``dump_pair`` gave; keys that are not known are left out.

    Raises:
        StoreError: it is something else.
    """
    pair: PairNight = read_record(PairNight, told, "pair")
    return pair
