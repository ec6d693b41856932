"""What ``evalguard.floor`` returns."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalguard.core.noise_floor import MetricFloor, Shift
from evalguard.core.reports.floor_report import FloorReport
from evalguard.core.settings import Value
from evalguard.report.contract.floor_document import floor_document
from evalguard.report.floor_terminal import render_floor

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FloorResult:
    """A measured floor. ``report`` holds everything; the properties are shortcuts to it."""

    report: FloorReport

    @property
    def floors(self) -> tuple[MetricFloor, ...]:
        """One floor per (task, filter, metric)."""
        return self.report.floors

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """How far each variation moved each metric."""
        return self.report.shifts

    @property
    def exit_code(self) -> int:
        """What the command line ends with: 0, or 3 where a metric has no floor."""
        return self.report.exit_code

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON contract (schema ``evalguard.floor/1``) as plain data."""
        return floor_document(self.report)

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the JSON contract as text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per variation and metric, one column per field of ``Shift``.

        ``sigma_interval`` becomes ``sigma_low`` and ``sigma_high``.
        """
        import pandas as pd

        rows = []
        for shift in self.shifts:
            row = {f.name: getattr(shift, f.name) for f in dataclasses.fields(shift)}
            low, high = row.pop("sigma_interval")
            rows.append({**row, "sigma_low": low, "sigma_high": high})
        return pd.DataFrame(rows)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the floor."""
        return render_floor(self.report, width=width, color=color, verbose=verbose)
