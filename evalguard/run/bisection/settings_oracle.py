"""The interface of a search to a model: scores under any assignment of its settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evalguard.bisect.oracle import (
    BlockOracle,
    ParallelOracle,
    ValueOracle,
)
from evalguard.core.answer_scale import AnswerScale
from evalguard.core.document_scale import DocumentScale
from evalguard.core.figure_scale import FigureScale
from evalguard.core.gate_state import Key
from evalguard.core.limit_scale import LimitScale
from evalguard.core.reports.bisect_report import Loads, WrittenTexts
from evalguard.run.choices import Choices
from evalguard.run.meter import Meter
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.run.sources import ModelSource, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedLimit:
    """A limit that is searched: its scale, and the base, which has to run for distributions."""

    scale: LimitScale | AnswerScale | FigureScale
    base: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleRequest:
    """Whose settings are asked about, and what.

    Attributes:
        candidate: as it was compared; its settings that are not at reference are searched.
        scored: base and candidate, as compared.
        key: (task, filter, metric) whose drift is searched.
        held_to: the limit that ``key`` names, where it is not a metric.
    """

    candidate: ModelSource
    scored: tuple[ScoredSide, ScoredSide]
    key: Key
    held_to: SearchedLimit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleContext:
    """Among what an inquiry is made.

    Attributes:
        choices, options: of the comparison.
        kept: folder of what is finished where no cache is used; None: none.
        say: takes what a person is to know.
        jobs: worker processes at the same time.
        meter: of the comparison, whose times are the first estimate.
    """

    choices: Choices
    options: CompareOptions
    kept: Path | None
    say: Callable[[str], None]
    jobs: int = 1
    meter: Meter | None = None


SearchScale = DocumentScale | LimitScale | AnswerScale | FigureScale


class SettingsOracle(BlockOracle, ParallelOracle, ValueOracle, Protocol):
    """Scores the documents of one metric under any assignment of a model's settings."""

    @property
    def scale(self) -> SearchScale:
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

    @property
    def written(self) -> WrittenTexts | None:
        """What the models that were asked have generated so far; None: nothing, or unknown."""


class OpenOracle(Protocol):
    """Opens an oracle; everything it started is gone when it is left."""

    def __call__(
        self, inquiry: OracleRequest, surroundings: OracleContext
    ) -> AbstractContextManager[SettingsOracle]:
        """See ``evalguard.run.bisection.oracle_opening.open_model_oracle``."""
