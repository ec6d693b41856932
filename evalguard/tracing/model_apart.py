"""A side of a trace that runs in a process of its own: both ends of the pipe."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.config.options import CompareOptions
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.trace_points import ModelInputs, ModelRounding
from evalguard.engine.loading.own_environment import prepare_worker
from evalguard.engine.run_identities import identify_model
from evalguard.engine.sources import ModelSource
from evalguard.store.atomic_files import safe_name
from evalguard.tracing.measure.activation_spool import SpooledActivations
from evalguard.tracing.measure.passes import ReportStep
from evalguard.tracing.traced_sides import TracedSide, open_torch_side, read_said
from evalguard.worker.client import WorkerScorer
from evalguard.worker.messages import Load
from evalguard.worker.outlines import (
    EncodedRequest,
    LinearCall,
    ModelOutline,
    OutlineCall,
    PaddingCall,
    PaddingFound,
    PassCall,
    PassFound,
    TracedScorer,
    TraceSupport,
)

if TYPE_CHECKING:
    from evalguard.tracing.measure.activation_spool import ActivationSpool
    from evalguard.tracing.measure.model_outline import OutlinedModel, PassRunner, SpoolFiles


# In the process of the model.


def load_traced(load: Load) -> TracedModel:
    """Load a variant in this process, to be traced from another one.

    Raises:
        UsageError, SettingError, BuildError, EvaluationError: as loading it to score it does.
    """
    from evalguard.tracing.measure.model_outline import PassRunner

    source = ModelSource(name=load.variant.name, variant=load.variant)
    side = open_torch_side(source, load.policy, cache_dir=Path(load.cache_dir))
    assert side.module is not None
    return TracedModel(side, PassRunner(side.module))


@dataclass(slots=True)
class TracedModel:
    """A loaded side of a trace, asked from another process (``TracedScorer``)."""

    side: TracedSide
    passes: PassRunner

    def describe(self) -> ModelDescription:
        """Return what was loaded."""
        assert self.side.description is not None
        return self.side.description

    def trace_support(self) -> TraceSupport:
        """What it is, and can be asked for."""
        from evalguard.models.checkpoint_tensors import computing_dtype

        return TraceSupport(
            kind=type(self.passes.model).__name__,
            computes_in=computing_dtype(self.passes.model),
            max_length=self.side.max_length,
            reads_text=self.side.encode is not None,
            renders_chat=self.side.render_chat is not None,
            locates_padding=self.side.locate_padding is not None,
        )

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as it holds them."""
        return self.side.held()

    def encode_traced(self, request: Request) -> EncodedRequest:
        """A request as it reads it."""
        assert self.side.encode is not None
        inputs, was_cut = self.side.encode(request)
        return EncodedRequest(inputs=inputs, was_cut=was_cut)

    def outline(self, call: OutlineCall) -> ModelOutline:
        """Say what it is made of."""
        from evalguard.tracing.measure.model_outline import write_outline

        return write_outline(self.passes.model, call)

    def read_linear(self, call: LinearCall) -> bool:
        """Read a matrix; False where the module is not called as a linear one is."""
        from evalguard.tracing.measure.model_outline import write_linear

        return write_linear(self.passes.model, call)

    def run_traced(self, call: PassCall) -> PassFound | None:
        """Run a sequence; None where the pass goes on."""
        return self.passes.run(call)

    def locate_padding(self, call: PaddingCall) -> PaddingFound:
        """Find where padding enters what it computes."""
        assert self.side.locate_padding is not None
        module, error = self.side.locate_padding(call.ids)
        return PaddingFound(module=module, error=error)

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Nothing: it is asked for its inputs as a side of a trace."""
        return [() for _ in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Never: it is not loaded to be scored."""
        raise NotImplementedError(f"{len(requests)} requests to a model that is traced")

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation."""
        assert self.side.render_chat is not None
        return self.side.render_chat(messages, add_generation_prompt)

    def close(self) -> None:
        """Release the model. May be called twice."""
        self.side.close()


def open_apart(
    source: ModelSource,
    policy: ScoringPolicy,
    options: CompareOptions,
    *,
    cache_dir: Path,
    outlined: bool = True,
) -> TracedSide:
    """Load a torch model in a process of its own, on this machine.

    Args:
        outlined: whether its weights are read too, so that it can be traced beside a base.

    Raises:
        UsageError, SettingError, BuildError, EvaluationError: as loading it to score it does.
    """
    prepared = prepare_worker(source.variant, cache_dir)
    scorer = WorkerScorer(
        prepared.variant,
        policy,
        cache_dir=cache_dir,
        env=prepared.env,
        python=prepared.python,
        call_timeout=options.timeout,
        traced=True,
        log=cache_dir / "logs" / f"trace-{os.getpid()}-{safe_name(source.name)}.log",
    )
    files = _TraceFiles()

    def close() -> None:
        files.close()
        scorer.close()

    try:
        description, can = scorer.describe(), scorer.trace_support()
        return TracedSide(
            identity=identify_model(source, description),
            module=_outline(source, scorer, files, policy.threads) if outlined else None,
            apart=scorer,
            held=lambda: list(scorer.held_values()),
            encode=_encoder(scorer) if can.reads_text else None,
            max_length=can.max_length,
            vocabulary=description.vocabulary_digest,
            render_chat=scorer.render_chat if can.renders_chat else None,
            padding=description.padding,
            locate_padding=_padding_locator(scorer) if can.locates_padding else None,
            description=description,
            said=read_said(source.variant),
            close=close,
        )
    except BaseException:
        close()
        raise


def _outline(
    source: ModelSource, scorer: TracedScorer, files: _TraceFiles, threads: int
) -> OutlinedModel:
    from evalguard.tracing.measure.model_outline import outline_model

    outline = outline_model(scorer, files.folder, read_said(source.variant), files.write)
    assert outline.passes is not None
    outline.passes.threads = threads
    return outline


def _encoder(scorer: TracedScorer) -> Callable[[Request], tuple[ModelInputs, bool]]:
    def encode(request: Request) -> tuple[ModelInputs, bool]:
        encoded = scorer.encode_traced(request)
        return encoded.inputs, encoded.was_cut

    return encode


def _padding_locator(scorer: TracedScorer) -> Callable[[Sequence[int]], tuple[str, float]]:
    def locate(ids: Sequence[int]) -> tuple[str, float]:
        location = scorer.locate_padding(PaddingCall(ids=tuple(ids)))
        return location.module, location.error

    return locate


class _TraceFiles:
    """A temporary folder, removed when it is closed: weights, and activations of one spool."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="evalguard-trace-")
        self.folder = Path(folder)
        self.close = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._spool: ActivationSpool | None = None
        self._written: SpoolFiles = ()

    def write(self, spool: ActivationSpool, sequences: int) -> SpoolFiles:
        """Files of a spool, written once; those of the last one before it are removed."""
        from evalguard.tracing.measure.model_outline import write_reference

        if self._spool is not spool:
            inside = self.folder / "activations"
            shutil.rmtree(inside, ignore_errors=True)
            inside.mkdir()
            self._written = write_reference(spool, sequences, inside)
            self._spool = spool
        return self._written


def record_side_apart(
    scorer: TracedScorer,
    sequences: Sequence[ModelInputs],
    *,
    threads: int,
    step: ReportStep | None,
) -> SpooledActivations:
    """Record a model's own activations; they stay when its process has ended.

    Raises:
        EvaluationError: the model fails, or the temporary folder has no room.
    """
    from evalguard.tracing.measure.model_outline import record_apart

    spool = SpooledActivations(ModelRounding(precision=scorer.trace_support().computes_in))
    try:
        spool.adopt(
            record_apart(scorer, sequences, spool.folder, threads=threads, report_step=step)
        )
    except BaseException:
        spool.close()
        raise
    return spool
