"""The interface of a search to a model: scores under any assignment of its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evalguard.bisect.bisect_report import WrittenTexts
from evalguard.bisect.scales import AnswerScale, FigureScale, LimitScale
from evalguard.config.options import CompareOptions
from evalguard.core.document_scale import DocumentScale
from evalguard.core.gate_state import Key
from evalguard.core.question import (
    BlockOracle,
    Floats,
    Indices,
    Loads,
    ParallelOracle,
    Question,
    Untestable,
    ValueOracle,
)
from evalguard.core.settings import Value
from evalguard.engine.choices import Choices
from evalguard.engine.meter import Meter
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource, Source
from evalguard.errors import Interrupted


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
        """See ``evalguard.bisect.oracle.oracle_opening.open_model_oracle``."""


_LOG = logging.getLogger(__name__)


class StoppableOracle:
    """Asks another oracle.

    A search takes a KeyboardInterrupt for its end, and returns its best result so far. A full disk
    or a base that fails ends it likewise, and ``failure`` says so; an assignment that cannot run
    is an answer.

    Attributes:
        failure: the error that ended the search; None so far.
        interrupted: whether the user did.
        reference: the scores of all documents with every setting at reference, once they are known.
    """

    def __init__(self, oracle: SettingsOracle) -> None:
        self._oracle = oracle
        self.failure: Exception | None = None
        self.interrupted = False
        self.reference: Floats | None = None

    @property
    def n_documents(self) -> int:
        """How many documents there are."""
        return self._oracle.n_documents

    @property
    def blocks(self) -> Sequence[Indices]:
        """In which documents are scored together."""
        return self._oracle.blocks

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        """See ``Oracle``."""
        answer = self.measure_all([(candidate_settings, documents)])[0]
        if isinstance(answer, Untestable):
            raise answer
        return answer

    def measure_all(self, questions: Sequence[Question]) -> list[Floats | Untestable]:
        """See ``ParallelOracle``."""
        try:
            answers = self._oracle.measure_all(questions)
        except (Exception, KeyboardInterrupt) as error:
            raise self._stopped(error) from error
        for (settings, documents), answer in zip(questions, answers, strict=True):
            if not settings and documents.size == self.n_documents:
                self.reference = None if isinstance(answer, Untestable) else answer
        return answers

    def measure_values(self, values: Mapping[str, Value], documents: Indices) -> Floats:
        """See ``ValueOracle``."""
        try:
            return self._oracle.measure_values(values, documents)
        except Untestable:
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise self._stopped(error) from error

    def _stopped(self, error: Exception | KeyboardInterrupt) -> KeyboardInterrupt:
        """What ends the search; what was found before it stands."""
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            self.interrupted = True
        else:
            _LOG.info("the search failed", exc_info=True)  # shown under --debug
            self.failure = error
        return KeyboardInterrupt()
