"""What makes a task's samples score tables again, kept beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from evalguard.core.scores import Aggregation, ScoreTable, Uninformative
from evalguard.core.settings import Value
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.record_reading import read_record


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFacts:
    """One metric of one side, without its documents; the fields are those of ``ScoreTable``."""

    filter: str
    metric: str
    aggregation: Aggregation
    higher_is_better: bool
    directed: bool = True
    figure: bool = False
    n_total: int = 0
    run: Mapping[str, Value]
    uninformative: Uninformative | None = None
    caveats: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> MetricFacts:
        """Read back what ``describe_metrics`` wrote; an earlier version wrote less.

        Raises:
            StoreError: it is not that.
        """
        facts: MetricFacts = read_record(cls, told, "facts")
        return facts


def describe_metrics(tables: Sequence[ScoreTable]) -> list[dict[str, Any]]:
    """The facts of a task's tables as plain data."""
    names = [field.name for field in fields(MetricFacts)]
    facts = [MetricFacts(**{name: getattr(table, name) for name in names}) for table in tables]
    return [write_record(one) for one in facts]
