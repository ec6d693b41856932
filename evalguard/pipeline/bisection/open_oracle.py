"""What a bisection asks: an oracle over the settings of one model, and how one is opened."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from evalguard.answer_scale import AnswerScale
from evalguard.bisect import BlockOracle, ParallelOracle, ValueOracle
from evalguard.bisect_report import Loads
from evalguard.document_scale import DocumentScale
from evalguard.limit_scale import LimitScale
from evalguard.pipeline.bisection.inquiry import Inquiry, Surroundings

Scale = DocumentScale | LimitScale | AnswerScale


class SettingsOracle(BlockOracle, ParallelOracle, ValueOracle, Protocol):
    """Scores the documents of one metric under any assignment of a model's settings."""

    @property
    def scale(self) -> Scale:
        """On which the documents' scores are, and what compare makes of them."""

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings whose candidate value is not their reference value."""

    @property
    def reference_is_base(self) -> bool:
        """Whether the model with all settings at reference is the base, by its identity."""

    @property
    def seconds_per_evaluation(self) -> float:
        """Time of one full evaluation, loading included, with all jobs at it; 0: unknown."""

    @property
    def inert_by_readback(self) -> tuple[str, ...]:
        """Settings whose two values turned out to be one in the loaded model."""

    @property
    def loads(self) -> Loads | None:
        """How the models that were asked came about so far; None: unknown."""


class OpenOracle(Protocol):
    """Opens an oracle; everything it started is gone when it is left."""

    def __call__(
        self, inquiry: Inquiry, surroundings: Surroundings
    ) -> AbstractContextManager[SettingsOracle]:
        """See ``evalguard.pipeline.bisection.opening.model_oracle``."""
