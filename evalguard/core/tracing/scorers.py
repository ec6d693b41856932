"""Models that show what flows inside of them, and that can be traced, wherever they run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evalguard.core.reports.trace_report import Trace
from evalguard.core.scorer import Scorer
from evalguard.core.tracing.hyperparameters import HeldValue
from evalguard.core.tracing.points import ModelRounding


class ActivationScorer(Scorer, Protocol):
    """A scorer that shows what flows inside of its model while it reads a text."""

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as its library holds them; () where that shows none."""

    def activations(
        self,
        ids: Sequence[int],
        wanted: Collection[str] = (),
        forced: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Read token ids in one pass; yield points and their values, one at a time.

        Points have the names of a Hugging Face model (core/tracing/points.py).

        Args:
            wanted: points; empty: all that the model shows.
            forced: ``.npy`` files by point. What the model has there is yielded, and then the
                file's values stand in its place, so that the rest starts from them.

        Raises:
            UsageError: the model shows no activations.
            EvaluationError: it fails, or a forced value does not fit.
        """


class TracingScorer(Scorer, Protocol):
    """A scorer of a torch model that can be forced to what was recorded of another model."""

    def trace_recorded(
        self,
        sequences: Sequence[Sequence[int]],
        recorded: Sequence[Mapping[str, str]],
        *,
        rounding: ModelRounding,
        memory: int,
        detail: Collection[str] = (),
    ) -> Trace:
        """Trace another model with this one as the base.

        Args:
            sequences: of token ids.
            recorded: of each, ``.npy`` files by point.
            rounding: of the other model.
            memory: bytes of activations to hold; above it they go to a temporary file.
            detail: points (globs) whose error is also wanted by token and by head.

        Raises:
            UsageError: this model has no torch module whose names are points.
            EvaluationError: no common points, or it fails.
        """
