"""Ending: all that follows a verdict, in one order.

1. The run folder, whole or not at all.
2. The history: a row of the verdict, which nothing that comes later can lose.
3. The bisection, where one is asked for, and with it result.json once more.
4. The report in files: those of the run folder, then those that the user asked for.
5. The experiment trackers, which get these files.

None of it changes the verdict or the exit code. What could not be done is a note of the report,
and a problem of the result.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evalguard.compare_report import CompareReport
from evalguard.pipeline.bisection.after import bisected
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.stored_request import StoredRequest
from evalguard.pipeline.drifts import document_drifts
from evalguard.pipeline.history.keeping import kept_in_history
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.named_tokens import named_tokens
from evalguard.pipeline.record import write_run
from evalguard.pipeline.report_files import asked_files, shown_in_files
from evalguard.pipeline.result import CompareResult
from evalguard.pipeline.tracking.tracking import tracked

DEFAULT_OUTPUT = Path("reports")


def ended(finished: Finished, request: StoredRequest) -> CompareResult:
    """Do all that follows the verdict of a comparison.

    Raises:
        Interrupted: on Ctrl-C before the run folder and the history are written.
    """
    return continued(kept(finished), request, decided=finished.report)


def kept(finished: Finished) -> Finished:
    """Write the run folder of a comparison, and put it into the history.

    Raises:
        Interrupted: on Ctrl-C.
    """
    if finished.options.write:
        with interruptible("writing the result"):
            finished = replace(finished, report=_written(finished))
    with interruptible("keeping the run in the history"):
        return replace(finished, report=_kept(finished))


def continued(
    finished: Finished, request: StoredRequest, *, decided: CompareReport | None = None
) -> CompareResult:
    """Do what follows the verdict of a comparison whose run folder is there already.

    Args:
        decided: its report before the folder was written; notes that came since are problems.
    """
    return _result(decided or finished.report, _shown(finished, request))


def _shown(finished: Finished, request: StoredRequest) -> CompareReport:
    asked = asked_files(finished.options, cwd=request.cwd)
    report = shown_in_files(bisected(finished, request), asked)
    return tracked(report, finished.choices.track, quiet=finished.options.quiet)


def _result(decided: CompareReport, report: CompareReport) -> CompareResult:
    problems = tuple(note for note in report.notes if note not in decided.notes)
    return CompareResult(report, problems)


def _written(finished: Finished) -> CompareReport:
    base, candidate = finished.scored
    return write_run(
        finished.report,
        base.samples,
        candidate.samples,
        finished.options.output_path or DEFAULT_OUTPUT,
        divergences=candidate.divergences,
        drifts=document_drifts(finished.report, finished.scored, finished.choices.allow),
        texts=named_tokens(finished.sources, candidate.divergences.values()),
    )


def _kept(finished: Finished) -> CompareReport:
    choices = finished.choices
    return kept_in_history(finished.report, finished.scored, choices.allow, choices.history)
