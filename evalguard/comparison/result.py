"""CompareResult: what ``evalguard.compare`` returns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.comparison.report_files import write_files
from evalguard.comparison.stored_run import open_documents, open_run_trace
from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison, Influence, Stopping
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.gate import GateResult
from evalguard.core.noise_floor import Floor
from evalguard.core.option_words import Format
from evalguard.core.result import Result
from evalguard.core.settings import Value
from evalguard.report.compare_document import compare_document, distribution_row
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.formats import render_report

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class CompareResult(Result[CompareReport]):
    """A finished comparison.

    ``report`` holds everything; the properties are shortcuts to it. ``passed`` is True only if
    the gate passed: a comparison that failed, so that nothing is known, has not passed.
    ``problems`` say what could not be written or kept after the verdict; the report's findings
    have them too.
    """

    problems: tuple[str, ...] = ()

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """One comparison per (task, filter, metric)."""
        return self.report.comparisons

    @property
    def distributions(self) -> tuple[DistributionComparison, ...]:
        """How the two models' distributions differ, one per task; () where not measured."""
        return self.report.distributions

    @property
    def gate(self) -> GateResult:
        """The gate's answer over all comparisons."""
        return self.report.gate

    @property
    def passed(self) -> bool:
        """Whether the gate passed."""
        return self.report.gate.passed

    @property
    def run_folder(self) -> str | None:
        """Folder with result.json and the samples, or None if nothing was written."""
        return self.report.run_folder

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON contract (schema ``evalguard.compare/1``) as plain data."""
        return compare_document(self.report)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per comparison, one column per field of ``Comparison``.

        ``sigma_interval`` becomes ``sigma_low`` and ``sigma_high``, ``same_answer_interval``
        likewise; of ``influence`` there are ``influence_moved``, ``influence_half``,
        ``influence_removed``, ``influence_sigma_without`` and ``influence_documents``,
        (task, doc_id, contribution, share) of each; of ``floor`` ``floor_sigma``, ``floor_times``
        and ``floor_variation``; of ``stopping`` ``stopped_early``, ``stopping_method`` and
        ``guarantee``.
        """
        import pandas as pd

        rows = []
        for comparison in self.comparisons:
            row = {f.name: getattr(comparison, f.name) for f in dataclasses.fields(comparison)}
            for name in ("sigma", "same_answer"):
                low, high = row.pop(f"{name}_interval") or (None, None)
                row |= {f"{name}_low": low, f"{name}_high": high}
            row |= _floor_columns(row.pop("floor"))
            row |= _influence_columns(row.pop("influence"))
            row |= _stopping_columns(row.pop("stopping"))
            rows.append(row)
        return pd.DataFrame(rows)

    def distributions_to_pandas(self) -> pd.DataFrame:
        """Return one row per task of ``distributions``.

        A figure like ``kl`` has the columns ``kl``, ``kl_stderr``, ``kl_low`` and ``kl_high`` (its
        interval), ``kl_bound_low`` and ``kl_bound_high``; a percentile is ``kl_p99.9``.
        """
        import pandas as pd

        return pd.DataFrame([distribution_row(distribution) for distribution in self.distributions])

    def rendered(self, chosen: Format) -> str:
        """Return the report in a format, as the text of a file.

        Documents are read from the run folder, if one was written.

        Raises:
            StoreError: a file of the run folder is damaged.
        """
        trace = open_run_trace(self.report.run_folder)
        return render_report(self.report, chosen, open_documents(self.report), trace)

    def to_markdown(self) -> str:
        """Return the report as Markdown, for a pull request or a notebook."""
        return self.rendered("markdown")

    def to_html(self) -> str:
        """Return the report as one self-contained page, with every document of the run folder."""
        return self.rendered("html")

    def save(self, path: str | Path, chosen: Format | None = None) -> None:
        """Write the report to a file, in the format that its suffix says if none is chosen.

        Raises:
            UsageError: no format is known by that suffix, or the file's folder is not there.
            StoreError: it cannot be written.
        """
        write_files(self.report, [Path(path)], chosen)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the report."""
        return render_terminal(self.report, width=width, color=color, verbose=verbose)


def _floor_columns(floor: Floor | None) -> dict[str, object]:
    """A floor as columns; None in each where it is not known."""
    return {f"floor_{name}": getattr(floor, name, None) for name in ("sigma", "times", "variation")}


def _influence_columns(influence: Influence | None) -> dict[str, object]:
    """An influence as columns; None in each where there is none."""
    names = [f.name for f in dataclasses.fields(Influence)]
    row = {f"influence_{name}": getattr(influence, name, None) for name in names}
    if influence is not None:
        row["influence_documents"] = [
            dataclasses.astuple(document) for document in influence.documents
        ]
    return row


def _stopping_columns(stopping: Stopping | None) -> dict[str, object]:
    return {
        "stopped_early": stopping is not None and stopping.early,
        "stopping_method": None if stopping is None else stopping.method,
        "guarantee": None if stopping is None else stopping.guarantee,
    }
