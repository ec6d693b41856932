"""``trace``: where in a candidate the error is introduced, module by module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import evalguard
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.trace import PaddedTwin, Trace, TraceReport
from evalguard.core.tracing.hyperparameters import compare_hyperparameters
from evalguard.core.tracing.points import ModelInputs, RecordedActivations
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED, UsageError
from evalguard.models.machine import use_threads
from evalguard.models.tracing.passes import ReportStep
from evalguard.report.progress import ProgressLine
from evalguard.run.meter import interruptible
from evalguard.run.options import CompareOptions, make_options
from evalguard.run.record import read_environment
from evalguard.run.result import DEFAULT_OUTPUT
from evalguard.run.scoring.fairness import lead_to_tokenizer
from evalguard.run.sources import ModelSource
from evalguard.run.tracing.documents import DocumentChoice
from evalguard.run.tracing.loading import LoadedSides, load_sides
from evalguard.run.tracing.request import TraceRequest, resolve_trace_request
from evalguard.run.tracing.result import TraceResult, finish_trace, requested_trace_files
from evalguard.run.tracing.sides import check_dump, is_torch_here
from evalguard.run.tracing.swapping import choose_swaps, with_swap_effects
from evalguard.store.activation_dumps import SpooledActivations
from evalguard.store.block_cache import open_cache_dir
from evalguard.store.run_folder import check_writable

if TYPE_CHECKING:
    import torch

    from evalguard.core.settings import Value

_NOTHING_KEPT = "nothing of a trace is kept: the same command starts it anew"
_MOST_DETAILS = 3  # suspects that are shown by token and head


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
    choice = DocumentChoice(
        ids=tuple(documents),
        texts=tuple(Path(one) for one in text),
        inputs=tuple(Path(one) for one in inputs),
        **({} if options.limit is None else {"limit": _count(options.limit)}),
    )
    files = requested_trace_files([Path(one) for one in output])
    with interruptible("reading what is to be traced", hint=_NOTHING_KEPT):
        mapped = None if name_map is None else Path(name_map).expanduser()
        request = resolve_trace_request(str(base), str(candidate), options, choice, mapped)
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


def _can_swap(request: TraceRequest) -> bool:
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


# The trace itself.


def _run(
    request: TraceRequest, options: CompareOptions, *, detail: bool, progress: ProgressLine
) -> TraceReport:
    cache_dir = open_cache_dir(options.cache_dir)
    step = _report_to(progress, request.base.name)
    with ExitStack() as stack:
        with lead_to_tokenizer(options.command):
            loaded = load_sides(request, options, cache_dir, step, stack)
        base, candidate = loaded.base, loaded.candidate
        sequences, documents = loaded.sequences, loaded.documents
        hyperparameters = compare_hyperparameters(base.held(), candidate.held())
        measure = _tracer(loaded, step, stack, request.choices.policy.threads)
        found = measure(())
        points = [one.point for one in found.suspects[:_MOST_DETAILS]]
        if detail and points:
            found = dataclasses.replace(found, details=measure(points).details)
        padded = _padded_twin(loaded)
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
        padded=padded,
        environment=read_environment(),
        notes=(
            *request.notes,
            *sequences.notes,
            *_class_notes(loaded.classes),
            *_unaligned_notes(found),
        ),
        exit_code=_exit_code(found, padded),
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


def _tracer(
    loaded: LoadedSides, step: ReportStep, stack: ExitStack, threads: int
) -> Callable[[Sequence[str]], Trace]:
    """What traces the candidate, with details of some points: here, or in the base's worker."""
    base, candidate, inputs = loaded.base, loaded.candidate, loaded.sequences.inputs
    spooled: SpooledActivations | None = None
    if candidate.recorded is not None:
        check_dump(candidate.recorded, len(inputs))
    if candidate.record is not None:
        spooled = stack.enter_context(closing(candidate.record(inputs, step)))
    if base.module is None:
        assert base.trace is not None
        assert spooled is not None
        return partial(_trace_there, base.trace, spooled, inputs)
    other = candidate.module or candidate.recorded or spooled
    assert other is not None
    return partial(_trace_here, base.module, other, inputs, step, threads, candidate.said)


def _trace_here(
    base: torch.nn.Module,
    candidate: torch.nn.Module | RecordedActivations,
    inputs: Sequence[ModelInputs],
    step: ReportStep,
    threads: int,
    said: Mapping[str, Value],
    detail: Sequence[str],
) -> Trace:
    from evalguard.models.tracing.trace import trace_models

    with use_threads(threads):
        return trace_models(base, candidate, inputs, detail=detail, report_step=step, said=said)


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


def _padded_twin(loaded: LoadedSides) -> PaddedTwin | None:
    """What padding changes in the candidate, where it does not in the base, and where it enters."""
    base, candidate = loaded.base.padding, loaded.candidate.padding
    if candidate is None or not candidate.before_matters or candidate.keeps_state:
        return None
    if base is not None and base.before_matters:
        return None
    module, error = "", 0.0
    side = loaded.candidate
    if side.module is not None and side.tokenizer is not None:
        from evalguard.models.tracing.padded import locate_padding

        ids = np.ravel(loaded.sequences.inputs[0].get("input_ids", ())).astype(int).tolist()
        if ids:
            module, error = locate_padding(side.module, ids, side.tokenizer.pad_token_id)
    return PaddedTwin(
        nats=candidate.left,
        base_nats=None if base is None else base.left,
        module=module,
        error=error if module else None,
    )


def _exit_code(found: Trace, padded: PaddedTwin | None) -> int:
    if found.suspects or padded is not None:
        return EXIT_REGRESSED
    measured = any(one.local or one.accumulated for one in found.layers)
    return EXIT_PASSED if measured else EXIT_FAILED
