"""What a bisection asks: an oracle over the settings of one model, and how one is opened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from evalguard.answer_scale import AnswerScale
from evalguard.bisect import BlockOracle, ParallelOracle, ValueOracle
from evalguard.bisect_report import Loads
from evalguard.document_scale import DocumentScale
from evalguard.gate_reason import Key
from evalguard.limit_scale import LimitScale
from evalguard.pipeline.bisection.base_references import HeldTo
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.meter import Meter
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.scored import Scored
from evalguard.pipeline.sources import ModelSource


class SettingsOracle(BlockOracle, ParallelOracle, ValueOracle, Protocol):
    """Scores the documents of one metric under any assignment of a model's settings."""

    @property
    def scale(self) -> DocumentScale | LimitScale | AnswerScale:
        """On which the documents' scores are, and what compare makes of them."""

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings whose candidate value is not their reference value."""

    @property
    def reference_is_base(self) -> bool:
        """Whether the model with all settings at reference is the base, by its identity."""

    @property
    def seconds_per_evaluation(self) -> float:
        """Time that one full evaluation takes, with what it takes to get there; all jobs at it."""

    @property
    def inert_by_readback(self) -> tuple[str, ...]:
        """Settings whose two values turned out to be one in the loaded model."""

    @property
    def loads(self) -> Loads | None:
        """How the models that were asked came about so far; None: unknown."""


class OpenOracle(Protocol):
    """Opens an oracle; everything it started is gone when it is left."""

    def __call__(
        self,
        candidate: ModelSource,
        scored: tuple[Scored, Scored],
        key: Key,
        choices: Choices,
        options: CompareOptions,
        *,
        journal: Path | None,
        jobs: int = 1,
        say: Callable[[str], None],
        meter: Meter | None = None,
        held_to: HeldTo | None = None,
    ) -> AbstractContextManager[SettingsOracle]:
        """See ``evalguard.pipeline.bisection.opening.model_oracle``."""
