"""The oracle over a real model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evalguard.bisect.bisect_report import WrittenTexts
from evalguard.bisect.oracle.assigned_candidate import (
    AssignedCandidate,
    DocumentBlock,
    candidate_value,
)
from evalguard.bisect.oracle.probes import Probes
from evalguard.bisect.oracle.settings_oracle import SearchScale
from evalguard.core.question import Floats, Indices, Loads, Question, Untestable
from evalguard.core.settings import Assignment, Setting, Value, digest_of
from evalguard.engine.refusals import refusal_of
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, EvaluationError, UsageError


@dataclass(slots=True, kw_only=True, eq=False)
class ModelOracle:
    """An oracle with blocks, several questions at once and values beyond two.

    Attributes:
        scale: on which the scores are.
        declared: the settings whose two values differ as they are written.
        assigned_to: makes the candidate under an assignment.
        settings: those that are searched: their two values differ, in the loaded model too.
        inert_by_readback: those whose two values were one in the loaded model. They are never
            probed, and keep their candidate's value.
        reference_is_base: whether identities prove that the model with all settings at reference
            is the base, so that its scores are the base's; else it is measured.
        expected_load, expected_document: seconds that they took in the comparison; 0: unknown.
    """

    candidate: ModelSource
    scale: SearchScale
    declared: tuple[Setting, ...]
    document_blocks: tuple[DocumentBlock, ...]
    probes: Probes
    assigned_to: Callable[[Assignment], AssignedCandidate]
    inert_by_readback: tuple[str, ...] = ()
    reference_is_base: bool = False
    expected_load: float = 0.0
    expected_document: float = 0.0
    _ends: dict[str, Floats] = field(default_factory=dict)
    _assigned: dict[str, AssignedCandidate] = field(default_factory=dict)
    _refused: dict[str, Untestable] = field(default_factory=dict)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings that are searched."""
        names = (setting.name for setting in self.declared)
        return tuple(name for name in names if name not in self.inert_by_readback)

    @property
    def n_documents(self) -> int:
        """Number of documents that have a value of the metric."""
        return sum(block.documents.size for block in self.document_blocks)

    @property
    def blocks(self) -> Sequence[Indices]:
        """Every document once, in the blocks in which they are answered."""
        return [block.documents for block in self.document_blocks]

    @property
    def seconds_per_evaluation(self) -> float:
        """Seconds of loading one assignment and answering all documents; 0 where that is not known.

        As measured by now, else as the comparison took; with as many jobs as there are.
        """
        probes = self.probes
        load = probes.loading_seconds / probes.loads if probes.loads else self.expected_load
        per_document = self.expected_document
        if probes.documents:
            per_document = probes.scoring_seconds / probes.documents
        if not per_document:  # all scores were kept: nobody has seen a model answer
            return 0.0
        shared = min(probes.runner.jobs, len(self.document_blocks))
        return load + per_document * self.n_documents / shared

    @property
    def loads(self) -> Loads:
        """How models came about so far."""
        return self.probes.runner.loads

    @property
    def written(self) -> WrittenTexts | None:
        """What models have generated so far, kept answers not counted; None: nothing."""
        return self.probes.written

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        """Scores of documents, with these settings at their candidate value; see ``Oracle``.

        Raises:
            Untestable: typed; this assignment cannot be built or run.
            EvalguardError: nothing could be, or a disk is full.
        """
        return _raise_refusal(self.measure_all([(candidate_settings, documents)])[0])

    def measure_all(self, questions: Sequence[Question]) -> list[Floats | Untestable]:
        """Answer several questions, side by side as far as there are jobs; see ``measure``."""
        asked = [(self._values(names), documents) for names, documents in questions]
        return self._answer_questions(asked)

    def measure_values(self, values: Mapping[str, Value], documents: Indices) -> Floats:
        """As ``measure``: these settings have these values, all others their candidate's."""
        self._check(values)
        at_candidate = self._values(frozenset(self.settings))
        return _raise_refusal(self._answer_questions([({**at_candidate, **values}, documents)])[0])

    def assigned(self, values: Assignment) -> AssignedCandidate:
        """The candidate under an assignment of the settings that are searched.

        Raises:
            EvalguardError: it cannot be planned or built, or a constraint excludes it.
        """
        digest = digest_of(dict(values))
        if digest in self._refused:
            raise self._refused[digest]
        if digest not in self._assigned:
            at_candidate = self._values(frozenset(self.settings))
            candidate = self.assigned_to(values)
            candidate.settings = tuple(n for n in self.settings if values[n] == at_candidate[n])
            self._assigned[digest] = candidate
        return self._assigned[digest]

    def stands_for(self, candidate_settings: frozenset[str], scores: Floats) -> None:
        """Take scores of all documents for those of an assignment: it was scored before."""
        self._ends[digest_of(dict(self._values(candidate_settings)))] = scores

    def _values(self, candidate_settings: frozenset[str]) -> dict[str, Value]:
        self._check(candidate_settings)
        return {
            setting.name: candidate_value(self.candidate.variant, setting)
            if setting.name in candidate_settings
            else setting.reference
            for setting in self.declared
            if setting.name not in self.inert_by_readback
        }

    def _check(self, names: Mapping[str, Value] | frozenset[str]) -> None:
        unknown = sorted(set(names) - set(self.settings))
        if unknown:
            raise UsageError(
                f"'{self.candidate.name}' is not searched for setting '{unknown[0]}'",
                hint=f"settings that are: {', '.join(self.settings) or 'none'}",
            )

    def _answer_questions(
        self, asked: Sequence[tuple[Assignment, Indices]]
    ) -> list[Floats | Untestable]:
        to_measure: list[tuple[AssignedCandidate, list[DocumentBlock]]] = []
        taken: list[AssignedCandidate | Floats | Untestable] = []
        for values, documents in asked:
            candidate = self._taken(values)
            taken.append(candidate)
            if isinstance(candidate, AssignedCandidate):
                wanted = set(documents.tolist())
                parts = [b for b in self.document_blocks if wanted & set(b.documents.tolist())]
                to_measure.append((candidate, parts))
        self.probes.answer(_merge_questions(to_measure))
        return [
            self._answer(candidate, values, documents)
            for candidate, (values, documents) in zip(taken, asked, strict=True)
        ]

    def _taken(self, values: Assignment) -> AssignedCandidate | Floats | Untestable:
        """What stands for an assignment: scores that are known, or a model to ask."""
        known = self._ends.get(digest_of(dict(values)))
        if known is not None:
            return known
        try:
            return self.assigned(values)
        except Untestable as refusal:
            return refusal
        except EvalguardError as error:  # a constraint, a build recipe that failed
            why = refusal_of(error, loaded=False)
            self._refused[digest_of(dict(values))] = why
            return why

    def _answer(
        self, found: AssignedCandidate | Floats | Untestable, values: Assignment, documents: Indices
    ) -> Floats | Untestable:
        if isinstance(found, np.ndarray):
            return found[documents]
        refusal = found if isinstance(found, Untestable) else found.refusal
        if refusal is not None:
            self._check_end(refusal, values)
            return refusal
        assert isinstance(found, AssignedCandidate)
        scores = np.full(self.n_documents, math.nan)
        for block in self.document_blocks:
            if block.digest in found.values:
                scores[block.documents] = self.scale.scores(found.values[block.digest])
        return scores[documents]

    def _check_end(self, refusal: Untestable, values: Assignment) -> None:
        """The base's end of the search has to run: nothing could be held against anything."""
        if digest_of(dict(values)) == digest_of(dict(self._values(frozenset()))):
            raise EvaluationError(
                f"{self.candidate.name} cannot be run with all settings at reference, so that "
                f"there is nothing to start from: {refusal.reason}",
                hint=refusal.hint,
            )


def _merge_questions(
    wanted: Sequence[tuple[AssignedCandidate, list[DocumentBlock]]],
) -> list[tuple[AssignedCandidate, list[DocumentBlock]]]:
    """Questions about one assignment put together: no block is answered twice."""
    merged: dict[int, tuple[AssignedCandidate, list[DocumentBlock]]] = {}
    for assigned, blocks in wanted:
        _, before = merged.setdefault(id(assigned), (assigned, []))
        before += [block for block in blocks if block not in before]
    return list(merged.values())


def _raise_refusal(answer: Floats | Untestable) -> Floats:
    if isinstance(answer, Untestable):
        raise answer
    return answer
