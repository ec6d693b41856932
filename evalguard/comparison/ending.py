"""All that follows a verdict, in one order.

1. The run folder, whole or not at all. 2. The history: a row of the verdict, which nothing that
comes later can lose. 3. The bisection, where one is asked for, and with it result.json once more.
4. The report in files: those of the run folder, then those that the user asked for. 5. The
experiment trackers, which get these files.

None of it changes the verdict or the exit code. What could not be done is a finding of the report,
and a problem of the result.
"""

from __future__ import annotations

from dataclasses import replace

from evalguard import tools
from evalguard.comparison.asked_comparison import StoredRequest
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.report_files import requested_files, write_report_files
from evalguard.comparison.result import CompareResult
from evalguard.comparison.run_record import compute_document_drifts, name_tokens, write_run_folder
from evalguard.config.options import DEFAULT_OUTPUT
from evalguard.core.compare_report import CompareReport
from evalguard.engine.interrupts import interruptible


def finish_run(finished: FinishedComparison, request: StoredRequest) -> CompareResult:
    """Do all that follows the verdict of a comparison.

    Raises:
        Interrupted: on Ctrl-C before the run folder and the history are written.
    """
    return finish_resumed_run(store_run(finished), request, decided=finished.report)


def store_run(finished: FinishedComparison) -> FinishedComparison:
    """Write the run folder of a comparison, and put it into the history.

    Raises:
        Interrupted: on Ctrl-C.
    """
    if finished.options.write:
        with interruptible("writing the result"):
            finished = replace(finished, report=_write_run_folder(finished))
    with interruptible("keeping the run in the history"):
        return replace(finished, report=_store_run(finished))


def finish_resumed_run(
    finished: FinishedComparison, request: StoredRequest, *, decided: CompareReport | None = None
) -> CompareResult:
    """Do what follows the verdict of a comparison whose run folder is there already.

    Args:
        decided: its report before the folder was written; what could not be stored since is a
            problem.
    """
    return _build_result(decided or finished.report, _publish(finished, request))


def _publish(finished: FinishedComparison, request: StoredRequest) -> CompareReport:
    asked = requested_files(finished.options, cwd=request.cwd)
    choices = finished.choices
    report = finished.report
    asked_for = choices.bisect.use == "always" or choices.bisect.instead
    if asked_for or (finished.candidate is not None and tools.has("attach_bisection")):
        # what searches is loaded where something may be searched: two finished runs need none of it
        report = tools.fetch("attach_bisection")(finished, request)
    report = write_report_files(report, asked)
    if not choices.track:
        return report
    tracked: CompareReport = tools.fetch("track_run")(
        report,
        choices.track,
        documents=choices.track_documents,
        quiet=finished.options.quiet,
    )
    return tracked


def _build_result(decided: CompareReport, report: CompareReport) -> CompareResult:
    later = (finding for finding in report.findings if finding not in decided.findings)
    problems = tuple(finding.text for finding in later if finding.kind == "not_stored")
    return CompareResult(report, problems)


def _write_run_folder(finished: FinishedComparison) -> CompareReport:
    base, candidate = finished.scored
    return write_run_folder(
        finished.report,
        base.samples,
        candidate.samples,
        finished.options.output_path or DEFAULT_OUTPUT,
        divergences=candidate.divergences,
        drifts=compute_document_drifts(finished.report, finished.scored, finished.choices.allow),
        texts=name_tokens(finished.sources, candidate.divergences.values()),
    )


def _store_run(finished: FinishedComparison) -> CompareReport:
    choices = finished.choices
    if choices.history is None:
        return finished.report
    store = tools.fetch("store_in_history")
    stored: CompareReport = store(finished.report, finished.scored, choices.allow, choices.history)
    return stored
