"""``trace``: where in a candidate the error is introduced, module by module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import evalguard
from evalguard.config.entries import resolve_path
from evalguard.config.guard import GuardSet
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.trace import SuspectModule, Trace, TraceReport
from evalguard.core.settings import Value
from evalguard.core.tracing.hyperparameters import compare_hyperparameters
from evalguard.core.tracing.points import ModelInputs, RecordedActivations
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED, StoreError, UsageError
from evalguard.report.progress import ProgressLine
from evalguard.report.trace.document import render_trace_json, trace_document
from evalguard.report.trace.terminal import render_trace
from evalguard.run.choices import Choices, resolve_choices
from evalguard.run.meter import error_text, interruptible, write_run_page
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
from evalguard.run.stored_run import TRACE_FILE, StoredRun, read_run_trace
from evalguard.run.tracing.documents import (
    DocumentChoice,
    MovedDocuments,
    choose_first,
    choose_moved,
    find_last_comparison,
    read_own_documents,
)
from evalguard.run.tracing.sides import (
    TorchSide,
    TracedSide,
    encode_sequences,
    is_recording,
    is_torch_here,
    open_recorded_side,
    open_torch_side,
    open_worker_side,
    refuse_untraceable,
)
from evalguard.run.tracing.swapping import choose_swaps, with_swap_effects
from evalguard.store.block_cache import open_cache_dir
from evalguard.store.files import check_output, write_output
from evalguard.store.run_folder import RunFolder, check_writable, write_document, write_text

if TYPE_CHECKING:
    import torch

_NOTHING_KEPT = "nothing of a trace is kept: the same command starts it anew"
_MOST_DETAILS = 3  # suspects that are shown by token and head
TRACE_PAGE = "trace.html"
_SUFFIXES = (".html", ".htm", ".json", ".txt")
# Where the documents are the user's own, no task is asked for; nothing loads one of this name.
_NO_TASK = "(own documents)"


@dataclass(frozen=True, slots=True)
class TraceResult:
    """A finished trace. ``report`` holds everything.

    ``problems`` say what could not be written; they change no exit code.
    """

    report: TraceReport
    problems: tuple[str, ...] = ()

    @property
    def first(self) -> SuspectModule | None:
        """The first module beyond the floor; None: nothing is."""
        return self.report.trace.first

    @property
    def suspects(self) -> tuple[SuspectModule, ...]:
        """Modules beyond the floor, the largest local ratio first."""
        return self.report.trace.suspects

    @property
    def exit_code(self) -> int:
        """0 nothing beyond the floor, 1 a location is named, 3 nothing known."""
        return self.report.exit_code

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON contract (schema ``evalguard.trace/1``) as plain data."""
        return trace_document(self.report)

    def to_json(self) -> str:
        """Return the JSON contract as text."""
        return render_trace_json(self.report)

    def to_html(self) -> str:
        """Return the trace as one self-contained page."""
        from evalguard.report.html.trace import render_trace_page

        return render_trace_page(self.report)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the trace."""
        return render_trace(self.report, width=width, color=color, verbose=verbose)

    def save(self, path: str | Path) -> None:
        """Write the trace to a file, in the format that its suffix says.

        Raises:
            UsageError: no format is known by that suffix, or the file's folder is not there.
            StoreError: it cannot be written.
        """
        (file,) = requested_trace_files([Path(path)])
        texts: dict[str, Callable[[], str]] = {
            ".json": lambda: self.to_json() + "\n",
            ".txt": lambda: self.render(width=80, verbose=True) + "\n",
        }
        write_output(file, texts.get(file.suffix.lower(), self.to_html)())


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
    files = requested_trace_files(options.output)
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
    return _finish(report, options, files)


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
    own = last = None
    if choice.own:
        found = tuple(read_own_documents(choice))
        own = MovedDocuments(sequences=found, chosen="documents of your own")
    elif isinstance(second, ModelSource):
        root = options.output_path or DEFAULT_OUTPUT
        last = find_last_comparison(root, first.name, second.name, options.tasks)
    tasks = options.tasks or (() if last is None else last.tasks) or ((_NO_TASK,) if own else ())
    # the documents' number is the trace's own matter
    of_tasks = dataclasses.replace(options, tasks=tasks, limit=None, track=("none",))
    sides = [one for one in (first, second) if isinstance(one, ModelSource)]
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


def _side(role: str, spec: str, guards: GuardSet, options: CompareOptions, cwd: Path) -> Source:
    model_args, assignment = (
        (options.base_model_args, options.base_set)
        if role == "base"
        else (options.cand_model_args, options.cand_set)
    )
    side = SideSpec(role=role, spec=spec, model_args=model_args, assignment=assignment)
    return resolve_side(side, guards, options, cwd=cwd)


def _choose(request: _Request, base: TorchSide) -> MovedDocuments:
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
    with closing(_open_torch(request.base, request.choices, cache_dir)) as base:
        documents = _choose(request, base)
        with closing(_open_candidate(request, options, cache_dir)) as candidate:
            sequences = encode_sequences(documents.sequences, base, candidate)
            if isinstance(candidate, TorchSide):
                held = candidate.read_hyperparameters()
                other: torch.nn.Module | RecordedActivations = candidate.module
            else:
                held = list(candidate.held)
                progress.note(f"recording what {candidate.name} computes")
                other = candidate.record(sequences.inputs)
            hyperparameters = compare_hyperparameters(base.read_hyperparameters(), held)
            found = _measure(base, other, sequences.inputs, progress, detail=detail)
            identities = base.identity, candidate.identity
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
        notes=(*request.notes, *sequences.notes),
        exit_code=_exit_code(found),
        version=evalguard.__version__,
    )


def _open_torch(source: ModelSource, choices: Choices, cache_dir: Path) -> TorchSide:
    with with_location(source):
        return open_torch_side(source, choices.policy, cache_dir=cache_dir)


def _open_candidate(request: _Request, options: CompareOptions, cache_dir: Path) -> TracedSide:
    source, choices = request.candidate, request.choices
    if isinstance(source, Path):
        return open_recorded_side(source, request.name_map)
    if is_torch_here(source):
        return _open_torch(source, choices, cache_dir)
    with with_location(source):
        return open_worker_side(source, choices.policy, options, cache_dir=cache_dir)


def _measure(
    base: TorchSide,
    candidate: torch.nn.Module | RecordedActivations,
    inputs: Sequence[ModelInputs],
    progress: ProgressLine,
    *,
    detail: bool,
) -> Trace:
    from evalguard.models.tracing.trace import trace_models

    step = _report_to(progress, base.name)
    found = trace_models(base.module, candidate, inputs, report_step=step)
    points = [one.point for one in found.suspects[:_MOST_DETAILS]]
    if not detail or not points:
        return found
    again = trace_models(base.module, candidate, inputs, detail=points, report_step=step)
    return dataclasses.replace(found, details=again.details)


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


# What is written: a folder of the trace's own, and beside the comparison that it explains.


def requested_trace_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files that a trace is to be written to.

    Raises:
        UsageError: a suffix says no format, or the file cannot be written.
    """
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"{path}: the suffix {path.suffix!r} says no format of a trace",
                hint=f"one of {', '.join(_SUFFIXES)}",
            )
        check_output(path.expanduser())
    return tuple(path.expanduser() for path in paths)


def read_trace_folder(folder: Path) -> TraceResult | None:
    """Read the trace in a folder of its own; None where it is none, or a comparison's.

    Raises:
        StoreError: it is damaged.
    """
    folder = folder.expanduser()
    if (folder / "result.json").exists():
        return None
    report = read_run_trace(folder)
    return None if report is None else TraceResult(report)


def _finish(report: TraceReport, options: CompareOptions, files: Sequence[Path]) -> TraceResult:
    problems: list[str] = []
    if options.write:
        try:
            report = _write_folder(report, options.output_path or DEFAULT_OUTPUT)
        except StoreError as error:
            problems.append(f"no folder was written: {error_text(error)}")
        problems += _write_beside(report)
    for path in files:
        try:
            TraceResult(report).save(path)
        except StoreError as error:
            problems.append(f"{path} was not written: {error_text(error)}")
    return TraceResult(report, tuple(problems))


def _write_folder(report: TraceReport, root: Path) -> TraceReport:
    created = datetime.fromisoformat(report.created)
    name = f"{report.candidate.name}-trace"
    with RunFolder.create(root, report.base.name, name, created) as folder:
        report = dataclasses.replace(report, folder=str(folder.path))
        write_document(folder.partial, TRACE_FILE, trace_document(report))
        write_text(folder.partial, TRACE_PAGE, TraceResult(report).to_html())
        folder.commit()
    return report


def _write_beside(report: TraceReport) -> list[str]:
    """Put the trace into the run folder of the comparison that its documents come from."""
    if report.run is None:
        return []
    try:
        write_document(Path(report.run), TRACE_FILE, trace_document(report))
        write_run_page(Path(report.run))
    except StoreError as error:
        return [f"the page of {report.run} does not show this trace: {error_text(error)}"]
    return []
