"""A side of a trace that runs in a process of its own, as the trace sees it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.tracing.other_process import (
    PaddingCall,
    TracedScorer,
)
from evalguard.core.tracing.points import ModelInputs, ModelRounding
from evalguard.models.tracing.passes import ReportStep
from evalguard.run.loading.own_environment import prepare_worker
from evalguard.run.options import CompareOptions
from evalguard.run.run_identities import identify_model
from evalguard.run.sources import ModelSource
from evalguard.run.tracing.sides import TracedSide, read_said
from evalguard.store.activation_spool import SpooledActivations
from evalguard.store.safe_names import safe_name
from evalguard.worker.client import WorkerScorer

if TYPE_CHECKING:
    from evalguard.models.tracing.outline import OutlinedModel, SpoolFiles
    from evalguard.models.tracing.spool import ActivationSpool


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
    place = prepare_worker(source.variant, cache_dir)
    scorer = WorkerScorer(
        place.variant,
        policy,
        cache_dir=cache_dir,
        env=place.env,
        python=place.python,
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
    from evalguard.models.tracing.outline import outline_model

    found = outline_model(scorer, files.folder, read_said(source.variant), files.write)
    assert found.passes is not None
    found.passes.threads = threads
    return found


def _encoder(scorer: TracedScorer) -> Callable[[Request], tuple[ModelInputs, bool]]:
    def encode(request: Request) -> tuple[ModelInputs, bool]:
        told = scorer.encode_traced(request)
        return told.inputs, told.was_cut

    return encode


def _padding_locator(scorer: TracedScorer) -> Callable[[Sequence[int]], tuple[str, float]]:
    def locate(ids: Sequence[int]) -> tuple[str, float]:
        found = scorer.locate_padding(PaddingCall(ids=tuple(ids)))
        return found.module, found.error

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
        from evalguard.models.tracing.outline import write_reference

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
    from evalguard.models.tracing.outline import record_apart

    spool = SpooledActivations(ModelRounding(precision=scorer.trace_support().computes_in))
    try:
        spool.adopt(
            record_apart(scorer, sequences, spool.folder, threads=threads, report_step=step)
        )
    except BaseException:
        spool.close()
        raise
    return spool
