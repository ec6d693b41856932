"""An oracle over real models without any cleverness: every assignment is a model loaded anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evalguard.bisect.oracle.settings_oracle import OracleContext, OracleRequest
from evalguard.core.document_scale import DocumentScale
from evalguard.core.question import Floats, Indices, Question, Untestable
from evalguard.core.settings import Value
from evalguard.engine.distribution_choice import DistributionChoice
from evalguard.engine.score_models import score_models
from evalguard.engine.scored_side import ScoredSide, side_of_model
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError


@dataclass(slots=True, kw_only=True)
class DirectOracle:
    """``asked`` keeps every assignment that was scored; ``before`` is called with each of them."""

    candidate: ModelSource
    scored: tuple[ScoredSide, ScoredSide]
    key: tuple[str, str, str]
    choices: Any
    options: Any
    before: Callable[[frozenset[str]], None]
    asked: list[frozenset[str]] = field(default_factory=list)
    known: dict[str, Floats] = field(default_factory=dict)
    reference_is_base: bool = True
    seconds_per_evaluation: float = 0.5
    inert_by_readback: tuple[str, ...] = ()
    loads: None = None
    written: None = None

    @property
    def settings(self) -> tuple[str, ...]:
        variant = self.candidate.variant
        return tuple(s.name for s in variant.settings if variant.assignment[s.name] != s.reference)

    @property
    def scale(self) -> DocumentScale:
        return DocumentScale.of(self._table(self.scored[0]))

    @property
    def n_documents(self) -> int:
        return self._table(self.scored[0]).n

    @property
    def blocks(self) -> Sequence[Indices]:
        return np.array_split(np.arange(self.n_documents), 4)

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        variant = self.candidate.variant
        if candidate_settings == frozenset(self.settings):
            return self._values(self.scored[1])[documents]
        if not candidate_settings and self.reference_is_base:
            return self._values(self.scored[0])[documents]
        self.before(candidate_settings)
        self.asked.append(candidate_settings)
        references = {s.name: s.reference for s in variant.settings}
        values = {n: variant.assignment[n] for n in candidate_settings}
        return self._scored({**references, **values})[documents]

    def measure_all(self, questions: Sequence[Question]) -> list[Floats | Untestable]:
        answers: list[Floats | Untestable] = []
        for settings, documents in questions:
            try:
                answers.append(self.measure(settings, documents))
            except Untestable as refusal:
                answers.append(refusal)
        return answers

    def measure_values(self, values: Mapping[str, Value], documents: Indices) -> Floats:
        return self._scored({**self.candidate.variant.assignment, **values})[documents]

    def _scored(self, assignment: Mapping[str, Value]) -> Floats:
        key = repr(sorted(assignment.items()))
        if key not in self.known:
            source = replace(
                self.candidate, variant=self.candidate.variant.assigned(dict(assignment))
            )
            alone = replace(self.choices, distributions=DistributionChoice(mode="off"))
            try:
                (evaluation,) = score_models([source], alone, self.options)
            except EvalguardError as error:
                raise Untestable(str(error)) from error
            self.known[key] = self._values(side_of_model(source, evaluation))
        return self.known[key]

    def _values(self, side: ScoredSide) -> Floats:
        table, asked = self._table(side), self._table(self.scored[0]).doc_ids
        return self.scale.values(table)[np.isin(table.doc_ids, asked)]

    def _table(self, side: ScoredSide) -> Any:
        return next(table for table in side.tables if table.key == self.key)


@dataclass(slots=True, kw_only=True)
class Opened:
    """Opens direct oracles, and keeps them."""

    before: Callable[[frozenset[str]], None] = lambda settings: None
    changes: dict[str, Any] = field(default_factory=dict)
    oracles: list[DirectOracle] = field(default_factory=list)

    @contextmanager
    def __call__(
        self, inquiry: OracleRequest, surroundings: OracleContext
    ) -> Iterator[DirectOracle]:
        oracle = DirectOracle(
            candidate=inquiry.candidate, scored=inquiry.scored, key=inquiry.key,
            choices=surroundings.choices, options=surroundings.options, before=self.before,
            **self.changes,
        )  # fmt: skip
        self.oracles.append(oracle)
        yield oracle
