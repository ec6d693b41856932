"""After the verdict: bisect where that was asked for, and write what was found beside it.

The run folder is complete before a bisection begins. Whatever happens in it, the verdict, the exit
code and the files stay what they were.
"""

from __future__ import annotations

import logging
import shlex
from dataclasses import replace
from pathlib import Path

from evalguard.bisect_report import BisectReport
from evalguard.checksum import with_checksum
from evalguard.compare_report import CompareReport
from evalguard.errors import EvalguardError, Interrupted
from evalguard.pipeline.bisection.bisect_findings import BisectFindings
from evalguard.pipeline.bisection.bisection import Bisection
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.open_oracle import OpenOracle
from evalguard.pipeline.bisection.opening import model_oracle
from evalguard.pipeline.bisection.searchable import Searchable
from evalguard.pipeline.bisection.stored_request import StoredRequest
from evalguard.pipeline.bisection.subject import Subject, chance_of, subject_of
from evalguard.pipeline.bisection.unsearchable import unsearchable
from evalguard.pipeline.conclusion import concluded
from evalguard.pipeline.scoring import score_sides
from evalguard.pipeline.told_error import told
from evalguard.report.contract import SCHEMA, document
from evalguard.report.progress import Progress
from evalguard.store import read_result, write_document

_LOG = logging.getLogger(__name__)


def bisected(
    finished: Finished, request: StoredRequest, *, open_oracle: OpenOracle = model_oracle
) -> CompareReport:
    """Return a finished comparison's report with its bisection, or with why there is none.

    No exception but one of the interpreter's own leaves this: a verdict is not lost any more.

    Args:
        request: what was asked for; kept in the run folder, so that the bisection can go on.
        open_oracle: asks the candidate under other assignments, in place of the real one.
    """
    report = finished.report
    found: BisectReport | str
    try:
        found = _found(finished, request, open_oracle)
    except (KeyboardInterrupt, Interrupted):
        found = _interrupted(finished)
    except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
        _LOG.info("the bisection failed", exc_info=True)  # shown under --debug
        found = told(error)
    if isinstance(found, str):
        with_it = replace(report, bisect_reason=found)
    else:
        with_it = replace(report, bisect=found)
    return with_it if with_it == report else _kept(with_it)


def _interrupted(finished: Finished) -> str:
    """Nothing was found out by then; how to go on, if the run folder knows what was asked for."""
    said, folder = "interrupted before anything was found out", finished.folder
    if folder is None or not StoredRequest.is_in(folder):
        return said
    return f"{said}; evalguard bisect --resume {shlex.quote(str(folder))} goes on"


def _found(
    finished: Finished, request: StoredRequest, open_oracle: OpenOracle
) -> BisectReport | str:
    reason = _not_asked_for(finished)
    if reason is not None:
        return reason
    finished = _in_full(finished)
    searchable = Searchable.of(finished)
    if isinstance(searchable, str):
        return searchable
    subject = subject_of(
        finished.report.comparisons,
        finished.report.gate,
        finished.scored[0].tables,
        failing_only=finished.choices.bisect.use == "auto",
        divergences=finished.scored[1].divergences,
    )
    if not isinstance(subject, Subject):
        return subject
    stored = finished.folder is not None and request.write(finished.folder)
    with Progress(quiet=finished.options.quiet) as progress:
        bisection = Bisection(
            findings=BisectFindings(finished=finished, searchable=searchable),
            open_oracle=open_oracle,
            progress=progress,
        )
        return bisection.run(subject, resumable=stored)


def _in_full(finished: Finished) -> Finished:
    """The comparison of all documents, where that was stopped early."""
    run = finished.report.sequential
    if run is None or not run.early:
        return finished
    choices = replace(finished.choices, sequential_alpha=None)
    scored = score_sides(finished.sources, choices, finished.options)
    report = concluded(scored, choices, finished.options)
    kept = replace(report, run_folder=finished.report.run_folder, command=finished.report.command)
    return replace(finished, scored=scored, choices=choices, report=kept)


def _not_asked_for(finished: Finished) -> str | None:
    """Why there is nothing to bisect; "" where nobody expects it, None where there is."""
    use, candidate = finished.choices.bisect.use, finished.candidate
    if finished.choices.bisect.instead:
        return finished.choices.bisect.instead
    gate = finished.report.gate
    if use == "never" or (use == "auto" and gate.state != "regressed"):
        declared = candidate is not None and candidate.variant.settings
        if use == "never" or gate.state != "undecided" or not declared:
            return ""
        return next(iter(chance_of(finished.report.comparisons, gate)), "")
    refusal = unsearchable(*finished.sources)
    if refusal is not None:
        return told(refusal) if use == "always" or candidate is not None else ""
    if use == "auto" and candidate is not None and not candidate.variant.settings:
        return (
            "the candidate declares no settings (evalguard bisect derives them from the two models)"
        )
    return None


def _kept(report: CompareReport) -> CompareReport:
    """Put the bisection into the run folder's result; a disk that refuses costs only that."""
    if report.run_folder is None:
        return report
    folder = Path(report.run_folder)
    try:
        write_document(folder, "result.json", _added(folder, report))
    except (EvalguardError, OSError, ValueError) as error:
        note = f"the bisection is not in {folder / 'result.json'}: {told(error)}"
        return replace(report, notes=(*report.notes, note))
    return report


def _added(folder: Path, report: CompareReport) -> dict[str, object]:
    """The document that is there, with the bisection in it: everything else stays as it was."""
    there = read_result(folder, schema=SCHEMA)  # refused, not sealed anew, if it was changed
    new = document(report)
    notes = [*there["notes"], *(note for note in new["notes"] if note.startswith("bisect."))]
    return with_checksum(
        {
            **there,
            "bisect": new["bisect"],
            "bisect_reason": new["bisect_reason"],
            "notes": list(dict.fromkeys(notes)),
        }
    )
