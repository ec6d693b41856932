"""After the verdict: bisect where that was asked for, and write what was found beside it.

The run folder is complete before a bisection begins. Whatever happens in it, the verdict, the exit
code and the files stay what they were.
"""

from __future__ import annotations

import logging
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

from evalguard.core.checksum import with_checksum
from evalguard.core.reports.bisect_report import BisectReport
from evalguard.core.reports.compare_report import CompareReport, NotBisected
from evalguard.core.score_rows import finite_rows
from evalguard.errors import EvalguardError, Interrupted, error_text
from evalguard.report.contract.compare_document import COMPARE_SCHEMA, compare_document
from evalguard.report.contract.non_finite import NON_FINITE, null_texts
from evalguard.report.progress import ProgressLine
from evalguard.run.bisection.bisect_findings import BisectFindings
from evalguard.run.bisection.derived_settings import SearchableCandidate
from evalguard.run.bisection.model_differences import why_not_derivable
from evalguard.run.bisection.model_search import KEPT_FOLDER
from evalguard.run.bisection.oracle_opening import open_model_oracle
from evalguard.run.bisection.rounds import Bisection
from evalguard.run.bisection.settings_oracle import OpenOracle
from evalguard.run.bisection.stored_request import StoredRequest
from evalguard.run.bisection.subject import Subject, choose_subject, explain_chance
from evalguard.run.bisection.unsearchable import why_unsearchable
from evalguard.run.finished_comparison import FinishedComparison
from evalguard.run.judging import build_report
from evalguard.run.scoring.score_models import score_sides
from evalguard.run.sources import ModelSource
from evalguard.store.result_file import read_result
from evalguard.store.run_folder import write_document
from evalguard.worker.server_pool import keep_servers

_LOG = logging.getLogger(__name__)


def attach_bisection(
    finished: FinishedComparison,
    request: StoredRequest,
    *,
    open_oracle: OpenOracle = open_model_oracle,
) -> CompareReport:
    """Return a finished comparison's report with its bisection, or with why there is none.

    No exception but one of the interpreter's own leaves this: a verdict is not lost any more.

    Args:
        request: what was asked for; kept in the run folder, so that the bisection can go on.
        open_oracle: asks the candidate under other assignments, in place of the real one.
    """
    report = finished.report
    found: BisectReport | str
    ended: NotBisected = ""
    try:
        against = _reason_against(finished)
        found, ended = against or (_bisect_or_reason(finished, request, open_oracle), "")
    except (KeyboardInterrupt, Interrupted):
        found, ended = _interrupted_reason(finished), "interrupted"
    except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
        _LOG.info("the bisection failed", exc_info=True)  # shown under --debug
        found, ended = error_text(error), "failed"
    if isinstance(found, str):
        with_it = replace(report, bisect_reason=found, bisect_ended=ended)
    else:
        with_it = replace(report, bisect=found)
    return with_it if with_it == report else _store_bisection(with_it)


def _interrupted_reason(finished: FinishedComparison) -> str:
    """Nothing was found out by then; how to go on, if the run folder knows what was asked for."""
    said, folder = "interrupted before anything was found out", finished.folder
    if folder is None or not StoredRequest.is_in(folder):
        return said
    return f"{said}; evalguard bisect --resume {shlex.quote(str(folder))} goes on"


def _bisect_or_reason(
    finished: FinishedComparison, request: StoredRequest, open_oracle: OpenOracle
) -> BisectReport | str:
    finished = _with_finite_scores(_score_in_full(finished))
    searchable = SearchableCandidate.of(finished)
    if isinstance(searchable, str):
        return searchable
    subject = choose_subject(
        finished.report.comparisons,
        finished.report.gate,
        finished.scored[0].tables,
        failing_only=finished.choices.bisect.use == "auto",
        divergences=finished.scored[1].divergences,
        candidate=finished.scored[1].tables,
    )
    if not isinstance(subject, Subject):
        return subject
    stored = finished.folder is not None and request.write(finished.folder)
    with keep_servers(), ProgressLine(quiet=finished.options.quiet) as progress:
        bisection = Bisection(
            findings=BisectFindings(finished=finished, searchable=searchable),
            open_oracle=open_oracle,
            progress=progress,
        )
        found = bisection.run(subject, resumable=stored)
    if finished.folder is not None and found.status != "stopped":
        shutil.rmtree(finished.folder / KEPT_FOLDER, ignore_errors=True)
    return found


def _with_finite_scores(finished: FinishedComparison) -> FinishedComparison:
    """The comparison of the documents that have a finite score on both sides, as it was judged.

    An assignment is asked about the others too, and what it answers there decides nothing.
    """
    base, candidate = finished.scored
    theirs = {table.key: table for table in candidate.tables}
    pairs = [
        finite_rows(table, theirs[table.key]) if table.key in theirs else (table, None)
        for table in base.tables
    ]
    others = {other.key: other for _, other in pairs if other is not None}
    return replace(
        finished,
        scored=(
            replace(base, tables=tuple(ours for ours, _ in pairs)),
            replace(candidate, tables=tuple(others.get(t.key, t) for t in candidate.tables)),
        ),
    )


def _score_in_full(finished: FinishedComparison) -> FinishedComparison:
    """The comparison of all documents, where that was stopped early."""
    run = finished.report.sequential
    if run is None or not run.early:
        return finished
    choices = replace(finished.choices, sequential_alpha=None)
    scored = score_sides(finished.sources, choices, finished.options)
    report = build_report(scored, choices, finished.options)
    kept = replace(report, run_folder=finished.report.run_folder, command=finished.report.command)
    return replace(finished, scored=scored, choices=choices, report=kept)


def _reason_against(finished: FinishedComparison) -> tuple[str, NotBisected] | None:
    """Why there is nothing to bisect, with how that ended; "" where nobody expects it, None where
    there is."""
    use, candidate = finished.choices.bisect.use, finished.candidate
    if finished.choices.bisect.instead:
        return finished.choices.bisect.instead, ""
    gate = finished.report.gate
    if use == "never" or (use == "auto" and gate.state != "regressed"):
        declared = candidate is not None and candidate.variant.settings
        if use == "never" or gate.state != "undecided" or not declared:
            return "", ""
        return next(iter(explain_chance(finished.report.comparisons, gate)), ""), ""
    over = finished.choices.bisect.over
    refusal = why_unsearchable(*finished.sources, over=over)
    if refusal is not None:
        return error_text(refusal) if use == "always" or candidate is not None else "", ""
    if (
        over == "settings"
        and use == "auto"
        and candidate is not None
        and not candidate.variant.settings
    ):
        models = (one.variant for one in finished.sources if isinstance(one, ModelSource))
        why = next(filter(None, map(why_not_derivable, models)), "")
        return (
            f"the candidate declares no settings, and none can be derived: {why}"
            if why
            else "the candidate declares no settings (evalguard bisect derives them from the two "
            "models)",
            "undeclared",
        )
    return None


def _store_bisection(report: CompareReport) -> CompareReport:
    """Put the bisection into the run folder's result; a disk that refuses costs only that."""
    if report.run_folder is None:
        return report
    folder = Path(report.run_folder)
    try:
        write_document(folder, "result.json", _result_with_bisection(folder, report))
    except (EvalguardError, OSError, ValueError) as error:
        where = folder / "result.json"
        return report.with_unstored(f"the bisection is not in {where}: {error_text(error)}")
    return report


def _result_with_bisection(folder: Path, report: CompareReport) -> dict[str, object]:
    """The document that is there, with the bisection in it: everything else stays as it was."""
    there = read_result(
        folder, schema=COMPARE_SCHEMA
    )  # refused, not sealed anew, if it was changed
    new = compare_document(report)
    lost = {at: kind for at, kind in new[NON_FINITE].items() if at.startswith("bisect.")}
    notes = [*there["notes"], *null_texts(lost)]
    told = {NON_FINITE: {**there[NON_FINITE], **lost}} if NON_FINITE in there else {}
    return with_checksum(
        {
            **there,
            "bisect": new["bisect"],
            "bisect_reason": new["bisect_reason"],
            "bisect_ended": new["bisect_ended"],
            "notes": list(dict.fromkeys(notes)),
            **told,
        }
    )
