"""``evalguard trace``: where in a candidate the error is introduced, module by module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evalguard import tools
from evalguard.comparison.compare import compare_sides
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.stored_run import StoredRun, read_stored_run
from evalguard.config.options import DEFAULT_OUTPUT, NO_HISTORY, CompareOptions, make_options
from evalguard.conversion.planning import plan_conversion
from evalguard.core.trace_record import SuspectModule
from evalguard.engine.choices import with_workers
from evalguard.engine.interrupts import interruptible
from evalguard.engine.loading.foreign_code import has_own_process
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, error_text
from evalguard.page.progress import ProgressLine
from evalguard.report.metric_labels import decisive_comparison
from evalguard.run_token import run_scope
from evalguard.store.run_folder import check_writable
from evalguard.store.run_tables import read_sample_facts
from evalguard.tracing.both_sides import TraceRequest, make_trace_report, resolve_trace_request
from evalguard.tracing.trace_process import NOTHING_KEPT, TraceWork, ask_for_trace
from evalguard.tracing.trace_report import TraceReport
from evalguard.tracing.trace_result import TraceResult, finish_trace, requested_trace_files
from evalguard.tracing.traced_documents import DocumentChoice
from evalguard.tracing.traced_sides import is_torch_here

# Swapped unasked where the whole comparison took at most so many seconds to score.
_CHEAP_SECONDS = 60.0
_UNASKED = 2


def choose_swaps(asked: int | None, last: StoredRun | None) -> int:
    """Return how many suspects to swap: as asked; unasked two where a comparison of them is cheap.

    Args:
        last: the comparison whose scores the cache may have.
    """
    if asked is not None:
        return asked
    resources = None if last is None else last.report.resources
    if last is None or resources is None or decisive_comparison(last.report) is None:
        return 0
    fresh = 1.0 - resources.kept_share  # what came from the cache says nothing of the time
    if fresh <= 0.0:
        return 0
    return _UNASKED if resources.seconds("scoring") / fresh <= _CHEAP_SECONDS else 0


def with_swap_effects(
    report: TraceReport,
    named: tuple[str, str],
    options: CompareOptions,
    *,
    most: int,
    last: StoredRun | None,
    say: Callable[[str], None],
) -> TraceReport:
    """Return a trace whose first suspects say what they are worth on the task.

    The first one in order of execution and then the largest are swapped, each alone, in the
    comparison of both models; its scores come from the cache where they are there. What could not
    be measured is a note: the trace stands, also after Ctrl-C.

    Args:
        named: base and candidate, as they were typed.
        most: how many.
        last: the comparison that the documents come from; its task is the one that counts.
    """
    modules = _modules(report)[:most]
    if not modules:
        return report
    try:
        with_tasks = dataclasses.replace(options, **_comparison_options(last))
        finished = compare_sides(*named, with_tasks, cwd=Path.cwd())
        effects = tools.fetch("measure_swap_effects")(finished, modules, say=say)
        mixed = _note_mixed(finished)
    except EvalguardError as error:  # Ctrl-C, too: what was traced is shown
        note = f"what a module is worth on the task was not measured: {error_text(error)}"
        return dataclasses.replace(report, notes=(*report.notes, note))
    report = dataclasses.replace(report, notes=(*report.notes, *mixed))
    return _with_effects(report, effects)


def _note_mixed(finished: FinishedComparison) -> tuple[str, ...]:
    base, candidate = finished.sources[0], finished.candidate
    if candidate is None or not isinstance(base, ModelSource):
        return ()
    notes: tuple[str, ...] = tools.fetch("note_mixed_code")(base.variant, candidate.variant)
    return notes


def _modules(report: TraceReport) -> list[str]:
    """Suspects by name, the first in order of execution in front."""
    first = report.trace.first
    ordered = [*([first] if first is not None else []), *report.trace.suspects]
    return list(dict.fromkeys(suspect.module for suspect in ordered))


def _comparison_options(last: StoredRun | None) -> dict[str, Any]:
    """What the comparison is asked with: as the last one, where there is one, by its worst task."""
    options: dict[str, Any] = {
        "limit": None, "write": False, "history": NO_HISTORY, "bisect": "never",
        "track": ("none",), "output": (),
    }  # fmt: skip
    about = None if last is None else decisive_comparison(last.report)
    if last is None or about is None:
        return options
    options["tasks"] = (about.task,)
    facts = read_sample_facts(last.samples(about.task)) if about.task in last.tasks else {}
    tables = facts.get("candidate") or [{}]
    limit = tables[0].get("run", {}).get("limit")
    if isinstance(limit, (int, float)):
        options["limit"] = limit
    return options


def _with_effects(report: TraceReport, effects: Sequence[Any]) -> TraceReport:
    """The effects are bisect's ``SwapEffect``."""
    by_module = {effect.module: effect for effect in effects}
    notes = [
        f"{effect.module} could not be taken from the base: {effect.failure}"
        for effect in effects
        if effect.failure
    ]

    def measured(one: SuspectModule) -> SuspectModule:
        effect = by_module.get(one.module)
        return one if effect is None else dataclasses.replace(one, swap_sigma=effect.sigma)

    first = report.trace.first
    trace = dataclasses.replace(
        report.trace,
        suspects=tuple(map(measured, report.trace.suspects)),
        first=None if first is None else measured(first),
    )
    known = [effect for effect in effects if effect.sigma is not None]
    subject = f"{known[0].task} {known[0].metric}" if known else ""
    return dataclasses.replace(
        report, trace=trace, swap_task=subject, notes=(*report.notes, *notes)
    )


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
    files = requested_trace_files([Path(path) for path in output])
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
