"""Both sides of a trace, loaded: side by side, or one after the other where memory is short."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from evalguard.core.tracing.points import RecordedActivations
from evalguard.models.loading import default_device
from evalguard.models.tracing.passes import ReportStep
from evalguard.run.choices import Choices
from evalguard.run.error_places import with_location
from evalguard.run.loading.foreign_code import has_own_process
from evalguard.run.memory_policy import MemoryPolicy
from evalguard.run.options import CompareOptions
from evalguard.run.sources import ModelSource
from evalguard.run.tracing.moved_documents import MovedDocuments
from evalguard.run.tracing.open_apart import open_apart, record_side_apart
from evalguard.run.tracing.request import TraceRequest, choose_documents
from evalguard.run.tracing.sides import TracedSide, is_torch_here, open_torch_side
from evalguard.run.tracing.traced_inputs import (
    EncodedSequences,
    check_same_inputs,
    encode_sequences,
)
from evalguard.run.tracing.worker_sides import open_dumped_side, open_worker_side


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
        told = f"{documents.chosen}, which compared another base of this name"
        documents = dataclasses.replace(documents, chosen=told, run=None)
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
    from evalguard.models.tracing.model_trace import DEFAULT_MEMORY
    from evalguard.models.tracing.recorded import record_activations

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
        type(one.module).__name__ if one.module is not None else
        one.apart.trace_support().kind if one.apart is not None else ""
        for one in sides
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
