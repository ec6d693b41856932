"""``trace``: where in a candidate the error is introduced, module by module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evalguard.conversion.planning import plan_conversion
from evalguard.core.reports.trace_report import TraceReport
from evalguard.errors import EvalguardError, error_text
from evalguard.report.progress import ProgressLine
from evalguard.run.choices import with_workers
from evalguard.run.interrupts import interruptible
from evalguard.run.loading.foreign_code import has_own_process
from evalguard.run.options import DEFAULT_OUTPUT, CompareOptions, make_options
from evalguard.run.sources import ModelSource
from evalguard.run.stored_run import StoredRun, read_stored_run
from evalguard.run.tracing.build_trace import make_trace_report
from evalguard.run.tracing.request import TraceRequest, resolve_trace_request
from evalguard.run.tracing.sides import is_torch_here
from evalguard.run.tracing.swapping import choose_swaps, with_swap_effects
from evalguard.run.tracing.trace_result import TraceResult, finish_trace, requested_trace_files
from evalguard.run.tracing.trace_worker import NOTHING_KEPT, TraceWork, ask_for_trace
from evalguard.run.tracing.traced_documents import DocumentChoice
from evalguard.run_token import run_scope
from evalguard.store.run_folder import check_writable


@run_scope()
def trace(
    base: str | Path,
    candidate: str | Path,
    options: CompareOptions | None = None,
    *,
    documents: Sequence[int] = (),
    text: Sequence[str | Path] = (),
    inputs: Sequence[str | Path] = (),
    name_map: str | Path | None = None,
    detail: bool = False,
    swap: int | None = None,
    output: Sequence[str | Path] = (),
    **given: Any,
) -> TraceResult:
    """Say in which module of a candidate error is introduced, beyond what rounding makes.

    Both models read the same documents; at every module the candidate is given the base's own
    input, and its output is compared with the base's. The floor is what benign twins of the base
    show there: another batch shape, the candidate's precision.

    Args:
        base: as for ``evalguard.compare``; a model that torch runs in this process.
        candidate: likewise, or a model of another library, or a folder with activations that
            another runtime has written.
        options, given: as for ``evalguard.compare``; ``limit`` is the number of documents, and
            ``memory="sequential"`` records the candidate and closes it before the base is loaded.
        documents: those of the task to read, by lm-eval's numbers; (): those that moved most in
            the last comparison of the two, else the task's first ones.
        text: files with documents of your own. inputs: files with model inputs by name
            (npz, safetensors, json), for models that read no text.
        name_map: YAML file that says which recorded tensor is which of the base.
        detail: errors by token and by head at the suspects, too; costs a second trace.
        swap: how many suspects to take from the base, one at a time, to say what each is worth on
            the task; each costs an evaluation of the candidate. None: two, where the last
            comparison of both models took less than a minute to score.
        output: files that the trace is written to, in the format that their suffix says.

    Raises:
        UsageError: names, options or documents that cannot be used.
        MisalignedRunsError: the two models read other token ids.
        EvaluationError: a model cannot be loaded, or the two have nothing in common.
        Interrupted: on Ctrl-C; nothing is kept.
    """
    options = make_options(options, **given)
    choice = DocumentChoice.of(options.limit, documents=documents, text=text, inputs=inputs)
    files = requested_trace_files([Path(one) for one in output])
    with interruptible("reading what is to be traced", hint=NOTHING_KEPT):
        mapped = None if name_map is None else Path(name_map).expanduser()
        request = resolve_trace_request(str(base), str(candidate), options, choice, mapped)
        options = with_workers(options, request.choices)
    if options.write:
        check_writable(options.output_path or DEFAULT_OUTPUT)
    work = TraceWork(
        base=str(base), candidate=str(candidate), options=options, choice=choice,
        name_map=mapped, detail=detail,
    )  # fmt: skip
    with interruptible("tracing", hint=NOTHING_KEPT):
        report = _trace(request, work)
    report, last = _read_comparison(report)
    most = choose_swaps(swap, last) if _can_swap(request) else 0
    if most:
        report = with_swap_effects(
            report,
            (str(base), str(candidate)),
            dataclasses.replace(options, tasks=request.choices.tasks),
            most=most,
            last=last,
            say=_say(options),
        )
    return finish_trace(report, options, files)


def _trace(request: TraceRequest, work: TraceWork) -> TraceReport:
    """Trace in this process, or in one that is the base's own, where its code may be foreign."""
    variant = request.base.variant
    if is_torch_here(request.base) and has_own_process(variant):
        return ask_for_trace(work, env=plan_conversion(variant).env)
    with ProgressLine(quiet=work.options.quiet) as progress:
        return make_trace_report(request, work.options, detail=work.detail, progress=progress)


def _read_comparison(report: TraceReport) -> tuple[TraceReport, StoredRun | None]:
    """The comparison that a trace's documents come from; one that was damaged since is a note."""
    if report.run is None:
        return report, None
    try:
        return report, read_stored_run(Path(report.run))
    except EvalguardError as error:
        note = f"the comparison of these documents can no longer be read: {error_text(error)}"
        return dataclasses.replace(report, notes=(*report.notes, note)), None


def _can_swap(request: TraceRequest) -> bool:
    """Whether the candidate is a torch model, and there is a task to measure on."""
    source = request.candidate
    return isinstance(source, ModelSource) and is_torch_here(source) and request.own is None


def _say(options: CompareOptions) -> Callable[[str], None]:
    def say(text: str) -> None:
        with ProgressLine(quiet=options.quiet) as line:
            line.note(text)

    return say
