"""``trace``: where in a candidate the error is introduced, module by module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import evalguard
from evalguard.config.entries import resolve_path
from evalguard.config.guard import GuardSet
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.trace import Trace, TraceReport
from evalguard.core.tracing.hyperparameters import compare_hyperparameters
from evalguard.core.tracing.points import ModelInputs, RecordedActivations
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED, UsageError
from evalguard.models.machine import use_threads
from evalguard.report.progress import ProgressLine
from evalguard.run.choices import Choices, resolve_choices
from evalguard.run.meter import interruptible
from evalguard.run.options import CompareOptions, make_options
from evalguard.run.preflight import check_models, find_guards
from evalguard.run.record import read_environment
from evalguard.run.result import DEFAULT_OUTPUT
from evalguard.run.sources import (
    ModelSource,
    SideSpec,
    Source,
    resolve_side,
    with_base_settings,
    with_distinct_names,
    with_location,
)
from evalguard.run.stored_run import StoredRun
from evalguard.run.tracing.documents import (
    DocumentChoice,
    MovedDocuments,
    choose_first,
    choose_moved,
    find_last_comparison,
    read_own_documents,
)
from evalguard.run.tracing.encoding import encode_sequences
from evalguard.run.tracing.recorded import ReportStep
from evalguard.run.tracing.result import TraceResult, finish_trace, requested_trace_files
from evalguard.run.tracing.sides import (
    TracedSide,
    check_dump,
    is_recording,
    is_torch_here,
    open_dumped_side,
    open_torch_side,
    open_worker_side,
    refuse_untraceable,
    refuse_worker_base,
)
from evalguard.run.tracing.swapping import choose_swaps, with_swap_effects
from evalguard.store.activation_dumps import SpooledActivations
from evalguard.store.block_cache import open_cache_dir
from evalguard.store.run_folder import check_writable

if TYPE_CHECKING:
    import torch

_NOTHING_KEPT = "nothing of a trace is kept: the same command starts it anew"
_MOST_DETAILS = 3  # suspects that are shown by token and head
# Where the documents are the user's own, no task is asked for; nothing loads one of this name.
_NO_TASK = "(own documents)"


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
        options, given: as for ``evalguard.compare``; ``limit`` is the number of documents.
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
    choice = DocumentChoice(
        ids=tuple(documents),
        texts=tuple(Path(one) for one in text),
        inputs=tuple(Path(one) for one in inputs),
        **({} if options.limit is None else {"limit": _count(options.limit)}),
    )
    files = requested_trace_files([Path(one) for one in output])
    with interruptible("reading what is to be traced", hint=_NOTHING_KEPT):
        mapped = None if name_map is None else Path(name_map).expanduser()
        request = _resolve(str(base), str(candidate), options, choice, mapped)
    if options.write:
        check_writable(options.output_path or DEFAULT_OUTPUT)
    with (
        ProgressLine(quiet=options.quiet) as progress,
        interruptible("tracing", hint=_NOTHING_KEPT),
    ):
        report = _run(request, options, detail=detail, progress=progress)
    most = choose_swaps(swap, request.last) if _can_swap(request) else 0
    if most:
        report = with_swap_effects(
            report,
            (str(base), str(candidate)),
            dataclasses.replace(options, tasks=request.choices.tasks),
            most=most,
            last=request.last,
            say=_say(options),
        )
    return finish_trace(report, options, files)


def _can_swap(request: _Request) -> bool:
    """Whether the candidate is a torch model, and there is a task to measure on."""
    source = request.candidate
    return isinstance(source, ModelSource) and is_torch_here(source) and request.own is None


def _say(options: CompareOptions) -> Callable[[str], None]:
    def say(text: str) -> None:
        with ProgressLine(quiet=options.quiet) as line:
            line.note(text)

    return say


def _count(limit: float) -> int:
    if limit < 1 or not float(limit).is_integer():
        raise UsageError(
            f"--limit {limit:g}: a trace reads a whole number of documents", hint="--limit 8"
        )
    return int(limit)


# What is traced: both models, and the documents.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """``own``: the user's documents; ``last``: the comparison that others are chosen from.

    ``candidate`` is a folder where activations were recorded, by names that ``name_map`` tells.
    """

    base: ModelSource
    candidate: ModelSource | Path
    name_map: Path | None
    choices: Choices
    choice: DocumentChoice
    own: MovedDocuments | None
    last: StoredRun | None
    notes: tuple[str, ...]


def _resolve(
    base: str,
    candidate: str,
    options: CompareOptions,
    choice: DocumentChoice,
    name_map: Path | None,
) -> _Request:
    """Settle names, tasks and documents; refuse what can be seen to be wrong by now."""
    cwd = Path.cwd()
    guards, notes = find_guards((base, candidate), options, cwd=cwd)
    first = refuse_untraceable(_side("base", base, guards, options, cwd), "base")
    folder = resolve_path(candidate, cwd)
    second: ModelSource | Path = folder
    if name_map is None and (candidate in guards.names or not is_recording(folder)):
        other = _side("cand", candidate, guards, options, cwd)
        named = with_distinct_names(first, with_base_settings(first, other))
        first, second = (
            refuse_untraceable(named[0], "base"), refuse_untraceable(named[1], "cand"),
        )  # fmt: skip
    refuse_worker_base(first, second)
    own = last = None
    if choice.own:
        found = tuple(read_own_documents(choice))
        own = MovedDocuments(sequences=found, chosen="documents of your own")
    elif isinstance(second, ModelSource):
        root = options.output_path or DEFAULT_OUTPUT
        last = find_last_comparison(root, first.name, second.name, options.tasks)
    tasks = options.tasks or (() if last is None else last.tasks) or ((_NO_TASK,) if own else ())
    sides = [one for one in (first, second) if isinstance(one, ModelSource)]
    if not tasks and not _tasks_of_guards(sides):
        raise UsageError(
            "no documents to trace: no task is named, and there is no comparison of the two in "
            f"{options.output_path or DEFAULT_OUTPUT}",
            hint="--text FILE traces a document of your own, --tasks NAME those of a task",
        )
    # the documents' number is the trace's own matter
    of_tasks = dataclasses.replace(options, tasks=tasks, limit=None, track=("none",))
    choices = resolve_choices(first, sides[-1], guards, of_tasks)
    check_models(sides)
    return _Request(
        base=first,
        candidate=second,
        name_map=name_map,
        choices=choices,
        choice=choice,
        own=own,
        last=last,
        notes=(*notes, *choices.notes),
    )


def _tasks_of_guards(sides: Sequence[ModelSource]) -> tuple[str, ...]:
    names = [side.name for side in sides]
    guards = (side.guard for side in sides if side.guard is not None)
    return next((guard.tasks_of(names[0], names[-1]) for guard in guards), ())


def _side(role: str, spec: str, guards: GuardSet, options: CompareOptions, cwd: Path) -> Source:
    model_args, assignment = (
        (options.base_model_args, options.base_set)
        if role == "base"
        else (options.cand_model_args, options.cand_set)
    )
    side = SideSpec(role=role, spec=spec, model_args=model_args, assignment=assignment)
    return resolve_side(side, guards, options, cwd=cwd)


def _choose(request: _Request, base: TracedSide) -> MovedDocuments:
    """The documents that are read: the user's, else those that moved, else the first ones."""
    if request.own is not None:
        return request.own
    tasks = request.choices.tasks
    if request.last is not None:
        moved = choose_moved(request.last, request.choice, tasks)
        if moved is not None:
            return moved
    options = request.choices.task_options
    return choose_first(tasks, options, request.choice, render_chat=base.render_chat)


# The trace itself.


def _run(
    request: _Request, options: CompareOptions, *, detail: bool, progress: ProgressLine
) -> TraceReport:
    cache_dir = open_cache_dir(options.cache_dir)
    with closing(_open_model(request.base, request.choices, options, cache_dir)) as base:
        documents = _choose(request, base)
        with closing(_open_candidate(request, base, options, cache_dir)) as candidate:
            sequences = encode_sequences(documents.sequences, base, candidate)
            hyperparameters = compare_hyperparameters(base.held(), candidate.held())
            threads = request.choices.policy.threads
            found = _measure(
                base, candidate, sequences.inputs, progress, detail=detail, threads=threads
            )
            identities = base.identity, candidate.identity
            classes = [type(one.module).__name__ for one in (base, candidate) if one.module]
    return TraceReport(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=redacted_text(options.command),
        base=identities[0],
        candidate=identities[1],
        trace=found,
        hyperparameters=hyperparameters,
        documents=sequences.documents,
        chosen=documents.chosen,
        run=None if documents.run is None else str(documents.run),
        environment=read_environment(),
        notes=(*request.notes, *sequences.notes, *_class_notes(classes), *_unaligned_notes(found)),
        exit_code=_exit_code(found),
        version=evalguard.__version__,
    )


def _class_notes(classes: Sequence[str]) -> tuple[str, ...]:
    if len(set(classes)) < 2:
        return ()
    return (
        f"the two models are of different classes ({', '.join(classes)}): what their architectures "
        "compute otherwise is an error here, too",
    )


def _unaligned_notes(found: Trace) -> tuple[str, ...]:
    left_out = sum(one.side == "base" for one in found.unaligned)
    if left_out <= len(found.layers):
        return ()
    return (
        f"only {len(found.layers)} points could be compared, and {left_out} of the base have no "
        "counterpart in the candidate: what lies between is not seen",
    )


def _open_model(
    source: ModelSource, choices: Choices, options: CompareOptions, cache_dir: Path
) -> TracedSide:
    with with_location(source):
        if is_torch_here(source):
            return open_torch_side(source, choices.policy, cache_dir=cache_dir)
        return open_worker_side(source, choices.policy, options, cache_dir=cache_dir)


def _open_candidate(
    request: _Request, base: TracedSide, options: CompareOptions, cache_dir: Path
) -> TracedSide:
    source = request.candidate
    if isinstance(source, Path):
        return open_dumped_side(source, request.name_map, base)
    return _open_model(source, request.choices, options, cache_dir)


def _measure(
    base: TracedSide,
    candidate: TracedSide,
    inputs: Sequence[ModelInputs],
    progress: ProgressLine,
    *,
    detail: bool,
    threads: int,
) -> Trace:
    step = _report_to(progress, base.name)
    with ExitStack() as stack:
        measure = _tracer(base, candidate, inputs, step, stack, threads)
        found = measure(())
        points = [one.point for one in found.suspects[:_MOST_DETAILS]]
        if not detail or not points:
            return found
        return dataclasses.replace(found, details=measure(points).details)


def _tracer(
    base: TracedSide,
    candidate: TracedSide,
    inputs: Sequence[ModelInputs],
    step: ReportStep,
    stack: ExitStack,
    threads: int,
) -> Callable[[Sequence[str]], Trace]:
    """What traces the candidate, with details of some points: here, or in the base's worker."""
    module, recorded = base.module, None
    if candidate.dump is not None:
        check_dump(candidate.dump, len(inputs))
    if candidate.record is not None:
        recorded = stack.enter_context(closing(candidate.record(inputs, step)))
    if module is None:
        assert base.trace is not None
        assert recorded is not None
        return partial(_trace_there, base.trace, recorded, inputs)
    other = candidate.module or candidate.dump or recorded
    assert other is not None
    return partial(_trace_here, module, other, inputs, step, threads)


def _trace_here(
    base: torch.nn.Module,
    candidate: torch.nn.Module | RecordedActivations,
    inputs: Sequence[ModelInputs],
    step: ReportStep,
    threads: int,
    detail: Sequence[str],
) -> Trace:
    from evalguard.models.tracing.trace import trace_models

    with use_threads(threads):
        return trace_models(base, candidate, inputs, detail=detail, report_step=step)


def _trace_there(
    run: Callable[..., Trace],
    recorded: SpooledActivations,
    inputs: Sequence[ModelInputs],
    detail: Sequence[str],
) -> Trace:
    return run(recorded, inputs, detail=detail)


def _report_to(progress: ProgressLine, name: str) -> Callable[[str, int, int], None]:
    """Show steps on the progress line: a new line for what is done next, else another step."""
    now, shown = "", 0

    def report(doing: str, done: int, total: int) -> None:
        nonlocal now, shown
        if doing != now or done < shown:
            progress.start(name, doing, total)
            now, shown = doing, 0
        progress.advance(done - shown)
        shown = done

    return report


def _exit_code(found: Trace) -> int:
    if found.suspects:
        return EXIT_REGRESSED
    measured = any(one.local or one.accumulated for one in found.layers)
    return EXIT_PASSED if measured else EXIT_FAILED
