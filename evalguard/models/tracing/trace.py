"""Where a candidate introduces error: two models, or a model and recorded activations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from evalguard.core.reports.trace import Trace
    from evalguard.core.tracing.points import ModelInputs, RecordedActivations

DEFAULT_MEMORY = 2 * 2**30  # bytes of recorded activations; above it they go to a temporary file

# What is being done, how many steps are done, and how many there are.
ReportStep = Callable[[str, int, int], None]


def trace_models(
    base: torch.nn.Module,
    candidate: torch.nn.Module | RecordedActivations,
    sequences: Sequence[ModelInputs],
    *,
    memory: int = DEFAULT_MEMORY,
    detail: Collection[str] = (),
    report_step: ReportStep | None = None,
) -> Trace:
    """Measure at every aligned point the candidate's error, local and accumulated, over its floor.

    Both models stay as they are: hooks are removed, modes and settings restored, twins are copies.

    Args:
        candidate: another model, or activations of one that ran elsewhere; then the base is forced
            to the recorded values, and sequences are numbered as here.
        memory: bytes of recorded activations to hold; above it they go to a temporary file, which
            is removed whatever happens.
        detail: points (globs) whose error is also wanted by token and by head.
        report_step: called before each pass.

    Raises:
        EvaluationError: no common points, or a model fails; nothing is known then.
    """
    raise NotImplementedError
