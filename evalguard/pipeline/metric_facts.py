"""MetricFacts: what makes a task's samples score tables again, kept beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from evalguard.scores import Aggregation, ScoreTable
from evalguard.settings import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFacts:
    """One metric of one side, without its documents; the fields are those of ``ScoreTable``."""

    filter: str
    metric: str
    aggregation: Aggregation
    higher_is_better: bool
    n_total: int = 0
    run: Mapping[str, Value]
    caveats: tuple[str, ...] = ()

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> MetricFacts:
        """Read back what ``told_facts`` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is not that.
        """
        if told["aggregation"] not in get_args(Aggregation):
            raise ValueError(f"there is no aggregation {told['aggregation']!r}")
        return cls(
            filter=str(told["filter"]),
            metric=str(told["metric"]),
            aggregation=cast(Aggregation, told["aggregation"]),
            higher_is_better=bool(told["higher_is_better"]),
            n_total=int(told["n_total"]),
            run=dict(told["run"]),
            caveats=tuple(map(str, told["caveats"])),
        )


def told_facts(tables: Sequence[ScoreTable]) -> list[dict[str, Any]]:
    """The facts of a task's tables as plain data."""
    return [
        {
            "filter": table.filter,
            "metric": table.metric,
            "aggregation": table.aggregation,
            "higher_is_better": table.higher_is_better,
            "n_total": table.n_total,
            "run": dict(table.run),
            "caveats": list(table.caveats),
        }
        for table in tables
    ]
