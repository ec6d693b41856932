"""The report of a trace: both sides loaded, traced, and their hyper-parameters compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import evalguard
from evalguard.comparison.needed_guards import find_guards
from evalguard.comparison.refusals import check_models
from evalguard.comparison.stored_run import StoredRun
from evalguard.config.guard import GuardSet
from evalguard.config.local_paths import resolve_path
from evalguard.config.options import DEFAULT_OUTPUT, CompareOptions
from evalguard.core.hyperparameters import compare_hyperparameters
from evalguard.core.redaction import redacted_text
from evalguard.core.trace_points import ModelInputs, RecordedActivations
from evalguard.core.trace_record import Trace
from evalguard.engine.choices import Choices, resolve_choices
from evalguard.engine.error_places import with_location
from evalguard.engine.fairness import lead_to_tokenizer
from evalguard.engine.loading.foreign_code import has_own_process, reaching_task_code
from evalguard.engine.memory import MemoryPolicy
from evalguard.engine.run_environment import read_environment
from evalguard.engine.sources import (
    ModelSource,
    SideSpec,
    Source,
    is_user_folder,
    resolve_side,
    with_base_settings,
    with_distinct_names,
)
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED, UsageError
from evalguard.models.loading import default_device
from evalguard.models.process_state import use_threads
from evalguard.page.progress import ProgressLine
from evalguard.store.cache_folder import open_cache_dir
from evalguard.tensor_files.activation_dumps import is_dump
from evalguard.tracing.measure.activation_spool import SpooledActivations
from evalguard.tracing.measure.passes import ReportStep
from evalguard.tracing.model_apart import open_apart, record_side_apart
from evalguard.tracing.recordings import check_dump, open_dumped_side, open_worker_side
from evalguard.tracing.trace_report import PaddedTwin, TraceReport
from evalguard.tracing.traced_documents import (
    DocumentChoice,
    EncodedSequences,
    MovedDocuments,
    check_same_inputs,
    choose_first,
    choose_moved,
    encode_sequences,
    find_comparisons,
    list_recorded_inputs,
    read_own_documents,
)
from evalguard.tracing.traced_sides import (
    TracedSide,
    is_torch_here,
    open_torch_side,
    refuse_untraceable,
    refuse_worker_base,
)

if TYPE_CHECKING:
    import torch

    from evalguard.core.settings import Value

# Where the documents are the user's own, no task is asked for; nothing loads one of this name.
_NO_TASK = "(own documents)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """``own``: the user's documents; ``reports``: where comparisons lie, of which others are.

    ``candidate`` is a folder where activations were recorded, by names that ``name_map`` tells.
    """

    base: ModelSource
    candidate: ModelSource | Path
    name_map: Path | None
    choices: Choices
    choice: DocumentChoice
    own: MovedDocuments | None
    reports: Path | None
    notes: tuple[str, ...]


def resolve_trace_request(
    base: str,
    candidate: str,
    options: CompareOptions,
    choice: DocumentChoice,
    name_map: Path | None,
) -> TraceRequest:
    """Settle names, tasks and documents; refuse what can be seen to be wrong by now."""
    cwd = Path.cwd()
    guards, notes = find_guards((base, candidate), options, cwd=cwd)
    first = refuse_untraceable(resolve_named_side("base", base, guards, options, cwd), "--base")
    folder = resolve_path(candidate, cwd)
    second: ModelSource | Path = folder
    named = candidate in guards.names and not is_user_folder(guards, folder)
    is_model = named or bool(options.cand_model_args or options.cand_set)
    if name_map is None and (is_model or not is_dump(folder)):
        named_candidate = resolve_named_side("cand", candidate, guards, options, cwd)
        pair = with_distinct_names(first, with_base_settings(first, named_candidate))
        first, second = refuse_untraceable(pair[0], "--base"), refuse_untraceable(pair[1], "--cand")
    refuse_worker_base(first, second)
    return complete_request(first, second, (guards, notes), options, choice, name_map)


def complete_request(
    base: ModelSource,
    candidate: ModelSource | Path,
    found: tuple[GuardSet, tuple[str, ...]],
    options: CompareOptions,
    choice: DocumentChoice,
    name_map: Path | None = None,
) -> TraceRequest:
    """Settle tasks and documents of sides that are known.

    Args:
        found: guard files, and what is to be said of them.

    Raises:
        UsageError: there are no documents, or they cannot be used.
    """
    guards, notes = found
    own = reports = last = None
    left_out: list[str] = []
    if not choice.own and not choice.ids and not options.tasks and isinstance(candidate, Path):
        recorded = list_recorded_inputs(candidate)
        choice = dataclasses.replace(choice, inputs=recorded, limit=len(recorded) or choice.limit)
    if choice.own:
        sequences = tuple(read_own_documents(choice))
        own = MovedDocuments(sequences=sequences, chosen="documents of your own")
    elif isinstance(candidate, ModelSource):
        reports = options.output_path or DEFAULT_OUTPUT
        last = next(
            find_comparisons(
                reports, base.name, candidate.name, options.tasks, note=left_out.append
            ),
            None,
        )
    tasks = options.tasks or (() if last is None else last.tasks) or ((_NO_TASK,) if own else ())
    sides = [side for side in (base, candidate) if isinstance(side, ModelSource)]
    if not tasks and not _tasks_of_guards(sides):
        missing = f", and there is no comparison of the two in {reports}" if reports else ""
        raise UsageError(
            f"no documents to trace: no task is named{missing}",
            hint="--text FILE reads a document of your own, --tasks NAME those of a task",
        )
    # the documents' number is the command's own matter
    of_tasks = dataclasses.replace(options, tasks=tasks, limit=None, track=("none",))
    choices = resolve_choices(base, sides[-1], guards, of_tasks)
    check_models(sides)
    return TraceRequest(
        base=base,
        candidate=candidate,
        name_map=name_map,
        choices=choices,
        choice=choice,
        own=own,
        reports=reports,
        notes=(*notes, *choices.notes, *left_out),
    )


def _tasks_of_guards(sides: Sequence[ModelSource]) -> tuple[str, ...]:
    names = [side.name for side in sides]
    guards = (side.guard for side in sides if side.guard is not None)
    return next((guard.tasks_of(names[0], names[-1]) for guard in guards), ())


def resolve_named_side(
    role: str,
    spec: str,
    guards: GuardSet,
    options: CompareOptions,
    cwd: Path,
    *,
    named_by: str = "",
) -> Source:
    model_args, assignment = (
        (options.base_model_args, options.base_set)
        if role == "base"
        else (options.cand_model_args, options.cand_set)
    )
    side = SideSpec(
        role=role, spec=spec, model_args=model_args, assignment=assignment, named_by=named_by
    )
    return resolve_side(side, guards, options, cwd=cwd)


def choose_documents(
    request: TraceRequest, base: TracedSide | None, candidate: TracedSide
) -> MovedDocuments:
    """The documents that are read: the user's, else those that moved, else the first ones.

    Those that moved are of the newest comparison of these two models with these settings: a name
    may have been another model's since. ``base``: None where it is not loaded yet.
    """
    if request.own is not None:
        return request.own
    tasks, other_run = request.choices.tasks, None
    for run in _find_named(request, tasks):
        moved = choose_moved(run, request.choice, tasks) if _is_of(run, base, candidate) else None
        if moved is not None:
            return moved
        other_run = other_run or run
    options, render_chat = request.choices.task_options, (base or candidate).render_chat
    first = choose_first(tasks, options, request.choice, render_chat=render_chat)
    if other_run is None:
        return first
    description = (
        f"{first.chosen}: {other_run.folder} compared other models or settings of these names"
    )
    return dataclasses.replace(first, chosen=description)


def _find_named(request: TraceRequest, tasks: Sequence[str]) -> Iterator[StoredRun]:
    if request.reports is None or not isinstance(request.candidate, ModelSource):
        return iter(())
    base, candidate = request.base.name, request.candidate.name
    return find_comparisons(request.reports, base, candidate, tasks, note=lambda _: None)


def _is_of(run: StoredRun, base: TracedSide | None, candidate: TracedSide) -> bool:
    stored = (run.report.base, run.report.candidate)
    pairs = zip(stored, (base, candidate), strict=True)
    return all(source is None or side.digest == source.identity.digest for side, source in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSides:
    """Both sides and what they read; ``classes``: names of their torch classes."""

    base: TracedSide
    candidate: TracedSide
    documents: MovedDocuments
    sequences: EncodedSequences
    classes: tuple[str, ...]


def load_sides(
    request: TraceRequest,
    options: CompareOptions,
    cache_dir: Path,
    step: ReportStep,
    stack: ExitStack,
) -> LoadedSides:
    """Load both sides, which the stack closes, and encode the documents.

    Both at the same time where they fit; else, or where that is asked for, the candidate is
    recorded and closed before the base is loaded.

    Args:
        step: is told what is recorded.

    Raises:
        UsageError, MisalignedRunsError, EvaluationError: as loading and encoding do.
    """
    if _loads_in_turn(request):
        return _load_in_turn(request, options, cache_dir, step, stack)
    return _load_both(request, options, cache_dir, stack)


def _load_both(
    request: TraceRequest,
    options: CompareOptions,
    cache_dir: Path,
    stack: ExitStack,
) -> LoadedSides:
    apart = _is_apart(request)  # before the base's code is here
    base = stack.enter_context(
        closing(_open_model(request.base, request.choices, options, cache_dir))
    )
    candidate = stack.enter_context(
        closing(_open_candidate(request, base, options, cache_dir, apart=apart))
    )
    documents = choose_documents(request, base, candidate)
    return LoadedSides(
        base=base,
        candidate=candidate,
        documents=documents,
        sequences=encode_sequences(documents.sequences, base, candidate),
        classes=_classes(base, candidate),
    )


def _load_in_turn(
    request: TraceRequest,
    options: CompareOptions,
    cache_dir: Path,
    step: ReportStep,
    stack: ExitStack,
) -> LoadedSides:
    """Record the candidate and close it, and only then load the base."""
    source = request.candidate
    assert isinstance(source, ModelSource)
    alone = record_alone(source, request, options, cache_dir, step, stack, apart=_is_apart(request))
    closed, documents = alone.side, alone.documents
    base = stack.enter_context(
        closing(_open_model(request.base, request.choices, options, cache_dir))
    )
    if documents.run is not None and documents.base_digest != base.identity.digest:
        description = f"{documents.chosen}, which compared another base of this name"
        documents = dataclasses.replace(documents, chosen=description, run=None)
    sequences = encode_sequences(documents.sequences, base, closed)
    check_same_inputs(alone.sequences, sequences, base.name, closed.name)
    return LoadedSides(
        base=base,
        candidate=closed,
        documents=documents,
        sequences=sequences,
        classes=(*_classes(base), *alone.classes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAlone:
    """A model that was recorded and closed; ``side`` has its activations and is no model now."""

    side: TracedSide
    documents: MovedDocuments
    sequences: EncodedSequences
    classes: tuple[str, ...]


def record_alone(
    source: ModelSource,
    request: TraceRequest,
    options: CompareOptions,
    cache_dir: Path,
    step: ReportStep,
    stack: ExitStack,
    *,
    apart: bool,
) -> RecordedAlone:
    """Load one model, record what flows in it, and close it; the stack closes what was recorded.

    Args:
        apart: whether a torch model gets a process of its own.

    Raises:
        UsageError, EvaluationError: as loading and encoding do.
    """
    choices = request.choices
    opened = (
        open_apart(source, choices.policy, options, cache_dir=cache_dir, outlined=False)
        if apart
        else _open_model(source, choices, options, cache_dir)
    )
    with closing(opened) as model:
        documents = choose_documents(request, None, model)
        read = encode_sequences(documents.sequences, model, model)
        recorded = _record(model, read, choices.policy.threads, step, stack)
        held, classes = model.held(), _classes(model)
        closed = dataclasses.replace(
            model, module=None, apart=None, recorded=recorded, held=lambda: held, encode=None,
            tokenizer=None, render_chat=None, locate_padding=None, close=_do_nothing,
        )  # fmt: skip
    del model, opened
    return RecordedAlone(side=closed, documents=documents, sequences=read, classes=classes)


def _record(
    candidate: TracedSide,
    read: EncodedSequences,
    threads: int,
    step: ReportStep,
    stack: ExitStack,
) -> RecordedActivations:
    """Record a model's own activations, for as long as the stack is open."""
    from evalguard.tracing.measure.forced_trace import DEFAULT_MEMORY, record_activations

    if candidate.record is not None:
        return stack.enter_context(closing(candidate.record(read.inputs, step)))
    if candidate.apart is not None:
        return stack.enter_context(
            closing(record_side_apart(candidate.apart, read.inputs, threads=threads, step=step))
        )
    assert candidate.module is not None
    return stack.enter_context(
        record_activations(candidate.module, read.inputs, memory=DEFAULT_MEMORY, report_step=step)
    )


def _do_nothing() -> None:
    """What was closed is not closed again."""


def _classes(*sides: TracedSide) -> tuple[str, ...]:
    kinds = (
        type(side.module).__name__ if side.module is not None else
        side.apart.trace_support().kind if side.apart is not None else ""
        for side in sides
    )  # fmt: skip
    return tuple(kind for kind in kinds if kind)


def _is_apart(request: TraceRequest) -> bool:
    """Whether the candidate, a torch model, gets a process of its own beside the base's.

    Where one of the two brings code, neither may be in a process with the other.
    """
    source = request.candidate
    if not isinstance(source, ModelSource) or not is_torch_here(source):
        return False
    return has_own_process(source.variant) or has_own_process(request.base.variant)


def _loads_in_turn(request: TraceRequest) -> bool:
    """Whether the two models are loaded one after the other: as asked, or as memory allows."""
    base, candidate = request.base, request.candidate
    if not isinstance(candidate, ModelSource):
        return False
    if not (is_torch_here(base) and is_torch_here(candidate)):
        return False
    device = default_device(request.choices.policy)
    return not MemoryPolicy(request.choices.memory).takes((base.variant, candidate.variant), device)


def _open_model(
    source: ModelSource, choices: Choices, options: CompareOptions, cache_dir: Path
) -> TracedSide:
    with with_location(source):
        if is_torch_here(source):
            return open_torch_side(source, choices.policy, cache_dir=cache_dir)
        return open_worker_side(source, choices.policy, options, cache_dir=cache_dir)


def _open_candidate(
    request: TraceRequest,
    base: TracedSide,
    options: CompareOptions,
    cache_dir: Path,
    *,
    apart: bool,
) -> TracedSide:
    source = request.candidate
    if isinstance(source, Path):
        return open_dumped_side(source, request.name_map, base)
    if apart:
        with with_location(source):
            return open_apart(source, request.choices.policy, options, cache_dir=cache_dir)
    return _open_model(source, request.choices, options, cache_dir)


_MOST_DETAILS = 3  # suspects that are shown by token and head


def make_trace_report(
    request: TraceRequest, options: CompareOptions, *, detail: bool, progress: ProgressLine
) -> TraceReport:
    """Load both sides, the base in this process, and trace them.

    Args:
        detail: errors by token and by head at the suspects, too; costs a second trace.

    Raises:
        MisalignedRunsError: the two models read other token ids.
        EvaluationError: a model cannot be loaded, or the two have nothing in common.
    """
    cache_dir = open_cache_dir(options.cache_dir)
    step = report_to(progress, request.base.name)
    with ExitStack() as stack:
        with lead_to_tokenizer(options.command):
            loaded = load_sides(request, options, cache_dir, step, stack)
        base, candidate = loaded.base, loaded.candidate
        sequences, documents = loaded.sequences, loaded.documents
        hyperparameters = compare_hyperparameters(base.held(), candidate.held())
        measure = _tracer(loaded, step, stack, request.choices.policy.threads)
        trace = measure(())
        points = [suspect.point for suspect in trace.suspects[:_MOST_DETAILS]]
        if detail and points:
            trace = dataclasses.replace(trace, details=measure(points).details)
        padded = _padded_twin(loaded)
        identities = base.identity, candidate.identity
    return TraceReport(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=redacted_text(options.command),
        base=identities[0],
        candidate=identities[1],
        trace=trace,
        hyperparameters=hyperparameters,
        documents=sequences.documents,
        chosen=documents.chosen,
        run=None if documents.run is None else str(documents.run),
        padded=padded,
        environment=read_environment(),
        notes=(
            *request.notes,
            *sequences.notes,
            *_task_notes(),
            *_class_notes(loaded.classes),
            *_unaligned_notes(trace),
        ),
        exit_code=_exit_code(trace, padded),
        version=evalguard.__version__,
    )


def _task_notes() -> tuple[str, ...]:
    """What is to be said where code of the task, which reads the documents here, reaches models."""
    reaching = reaching_task_code()
    if not reaching:
        return ()
    return (
        f"code of the task, {reaching}, ran in the process of the trace, and may have changed what "
        "the models compute: --text traces a document without it",
    )


def _class_notes(classes: Sequence[str]) -> tuple[str, ...]:
    if len(set(classes)) < 2:
        return ()
    return (
        f"the two models are of different classes ({', '.join(classes)}): what their architectures "
        "compute otherwise is an error here, too",
    )


def _unaligned_notes(found: Trace) -> tuple[str, ...]:
    left_out = sum(entry.side == "base" for entry in found.unaligned)
    if left_out <= len(found.layers):
        return ()
    return (
        f"only {len(found.layers)} points could be compared, and {left_out} of the base have no "
        "counterpart in the candidate: what lies between is not seen",
    )


def _tracer(
    loaded: LoadedSides, step: ReportStep, stack: ExitStack, threads: int
) -> Callable[[Sequence[str]], Trace]:
    """What traces the candidate, with details of some points: here, or in the base's worker."""
    base, candidate, inputs = loaded.base, loaded.candidate, loaded.sequences.inputs
    spooled: SpooledActivations | None = None
    if candidate.recorded is not None:
        check_dump(candidate.recorded, inputs)
    if candidate.record is not None:
        spooled = stack.enter_context(closing(candidate.record(inputs, step)))
    if base.module is None:
        assert base.trace is not None
        assert spooled is not None
        return partial(_trace_there, base.trace, spooled, inputs)
    candidate_source = candidate.module or candidate.recorded or spooled
    assert candidate_source is not None
    return partial(
        _trace_here, base.module, candidate_source, inputs, step, threads, candidate.said
    )


def _trace_here(
    base: torch.nn.Module,
    candidate: torch.nn.Module | RecordedActivations,
    inputs: Sequence[ModelInputs],
    step: ReportStep,
    threads: int,
    said: Mapping[str, Value],
    detail: Sequence[str],
) -> Trace:
    from evalguard.tracing.measure.forced_trace import trace_models

    with use_threads(threads):
        return trace_models(base, candidate, inputs, detail=detail, report_step=step, said=said)


def _trace_there(
    run: Callable[..., Trace],
    recorded: SpooledActivations,
    inputs: Sequence[ModelInputs],
    detail: Sequence[str],
) -> Trace:
    return run(recorded, inputs, detail=detail)


def report_to(progress: ProgressLine, name: str) -> Callable[[str, int, int], None]:
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


def _padded_twin(loaded: LoadedSides) -> PaddedTwin | None:
    """What padding changes in the candidate, where it does not in the base, and where it enters."""
    base, candidate = loaded.base.padding, loaded.candidate.padding
    if candidate is None or not candidate.before_matters or candidate.keeps_state:
        return None
    if base is not None and base.before_matters:
        return None
    module, error = "", 0.0
    side = loaded.candidate
    if side.locate_padding is not None:
        ids = np.ravel(loaded.sequences.inputs[0].get("input_ids", ())).astype(int).tolist()
        if ids:
            module, error = side.locate_padding(ids)
    return PaddedTwin(
        nats=candidate.left,
        base_nats=None if base is None else base.left,
        module=module,
        error=error if module else None,
    )


def _exit_code(found: Trace, padded: PaddedTwin | None) -> int:
    if found.suspects or padded is not None:
        return EXIT_REGRESSED
    measured = any(layer.local or layer.accumulated for layer in found.layers)
    # Beside a nan of the base's own no error can be told, here and in all that it reaches.
    seen = measured and not found.broken_base
    return EXIT_PASSED if seen and found.to_the_end and not found.missed else EXIT_FAILED
