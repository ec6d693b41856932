"""The report of a trace: both sides loaded, traced, and their hyper-parameters compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import evalguard
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.trace_report import PaddedTwin, Trace, TraceReport
from evalguard.core.tracing.hyperparameters import compare_hyperparameters
from evalguard.core.tracing.points import ModelInputs, RecordedActivations
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED
from evalguard.models.threads import use_threads
from evalguard.models.tracing.passes import ReportStep
from evalguard.report.progress import ProgressLine
from evalguard.run.loading.task_code import reaching_task_code
from evalguard.run.options import CompareOptions
from evalguard.run.run_environment import read_environment
from evalguard.run.scoring.fairness import lead_to_tokenizer
from evalguard.run.tracing.loaded_sides import LoadedSides, load_sides
from evalguard.run.tracing.request import TraceRequest
from evalguard.run.tracing.worker_sides import check_dump
from evalguard.store.activation_spool import SpooledActivations
from evalguard.store.cache_folder import open_cache_dir

if TYPE_CHECKING:
    import torch

    from evalguard.core.settings import Value

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
            *_task_notes(),
            *_class_notes(loaded.classes),
            *_unaligned_notes(found),
        ),
        exit_code=_exit_code(found, padded),
        version=evalguard.__version__,
    )


def _task_notes() -> tuple[str, ...]:
    """What is to be said where code of the task, which reads the documents here, reaches models."""
    found = reaching_task_code()
    if not found:
        return ()
    return (
        f"code of the task, {found}, ran in the process of the trace, and may have changed what "
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
        check_dump(candidate.recorded, inputs)
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
    from evalguard.models.tracing.model_trace import trace_models

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
    measured = any(one.local or one.accumulated for one in found.layers)
    # Beside a nan of the base's own no error can be told, here and in all that it reaches.
    seen = measured and not found.broken_base
    return EXIT_PASSED if seen and found.to_the_end and not found.missed else EXIT_FAILED
