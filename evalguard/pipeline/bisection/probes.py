"""Probes: documents answered under assignments, each block once, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from evalguard.bisect import Untestable
from evalguard.errors import (
    BuildError,
    EvalguardError,
    EvaluationError,
    FallbackError,
    SettingError,
    UsageError,
)
from evalguard.harness import Block
from evalguard.pipeline.bisection.asking import Asking
from evalguard.pipeline.bisection.assigned import Answer, Assigned
from evalguard.pipeline.bisection.batches import check_batches
from evalguard.pipeline.bisection.document_blocks import DocumentBlock
from evalguard.pipeline.bisection.records import Records
from evalguard.pipeline.bisection.refusals import refusal_of
from evalguard.pipeline.bisection.runner import Done, Failed, Runner, Work
from evalguard.pipeline.bisection.suspicion import Suspicion
from evalguard.scorer import ScoringPolicy

# These follow from an assignment; whatever else goes wrong may have another reason.
_OF_ITS_OWN = (SettingError, BuildError, UsageError, FallbackError)

Wanted = tuple[Assigned, Sequence[DocumentBlock]]


@dataclass(slots=True, kw_only=True)
class Probes:
    """Answers what is not answered yet.

    Attributes:
        asking: what assignments are asked, and what their answers are worth.
        policy: how all of them are scored.
        seconds: spent on loading, on answering, and the numbers of loads and documents.
    """

    asking: Asking
    runner: Runner
    records: Records
    policy: ScoringPolicy
    suspicion: Suspicion
    loading_seconds: float = 0.0
    loads: int = 0
    scoring_seconds: float = 0.0
    documents: int = 0
    _spent: dict[tuple[int, str], float] = field(default_factory=dict)

    def answer(self, wanted: Sequence[Wanted]) -> None:
        """Answer these document blocks; a refusal stands with its assignment.

        Raises:
            EvalguardError: what no other assignment would survive either: a full disk, files that
                changed, an environment in which nothing runs any more.
            KeyboardInterrupt: what is finished by then is kept.
        """
        works: list[Work] = []
        places: dict[int, Wanted] = {}
        for assigned, blocks in wanted:
            missing = self._missing(assigned, blocks)
            asked = [one for block in missing for one in self._unanswered(assigned, block)]
            if asked and assigned.refusal is None:
                beside = self.asking.beside
                works.append(Work(source=assigned.source, blocks=tuple(asked), beside=beside))
                places[id(works[-1])] = (assigned, missing)
        if not works:
            return
        with closing(self.runner.run(works)) as events:
            for event in events:
                of, wants = places[id(event.work)]
                if isinstance(event, Failed):
                    self._failed(of, event)
                elif of.refusal is None:
                    self._done(of, wants, event)
        self.suspicion.check(self.runner)

    def _missing(self, assigned: Assigned, blocks: Iterable[DocumentBlock]) -> list[DocumentBlock]:
        if assigned.description is None and self.records.may_know(assigned):
            self._describe(assigned)
        for block in blocks:
            self.records.recall(assigned, block)
        if assigned.refusal is not None:
            return []
        return [block for block in blocks if block.digest not in assigned.values]

    def _describe(self, assigned: Assigned) -> None:
        """Load a model only to see which one it is: it may have been asked before."""
        try:
            found = self.runner.ask(assigned.source, lambda scorer: scorer.describe())
        except EvalguardError as error:
            self._refuse(assigned, refusal_of(error, loaded=False), 0.0)
        else:
            assigned.describe_as(found)

    def _unanswered(self, assigned: Assigned, block: DocumentBlock) -> list[Block]:
        """What the model has to be asked for a document block; () where all of it is kept."""
        try:
            asked = self.asking.blocks(assigned, block, self.runner)
        except EvalguardError as error:
            self._refuse(assigned, refusal_of(error, loaded=False), 0.0)
            return []
        for one in asked if self.asking.beside is None else ():
            kept = self.records.responses(assigned, one)
            if kept is not None:
                assigned.answers[one.digest] = kept
        left = [one for one in asked if one.digest not in assigned.answers]
        if not left:
            self._conclude(assigned, block)
        return left

    def _done(self, assigned: Assigned, blocks: Sequence[DocumentBlock], done: Done) -> None:
        self.loading_seconds += done.loading
        self.loads += done.loading > 0.0
        self.scoring_seconds += done.seconds
        self.documents += len(done.block.doc_ids)
        assigned.describe_as(done.description)
        if len(done.responses) != len(done.block.requests):
            raise EvaluationError(
                f"{len(done.block.requests)} requests have {len(done.responses)} answers"
            )
        self.records.keep(assigned, done.block, done.responses)
        try:
            check_batches(self.policy, done.description)
            assigned.answers[done.block.digest] = _answers(done)
        except Untestable as refusal:
            self._refuse(assigned, refusal, done.seconds)
            return
        self.suspicion.succeeded()
        for block in blocks:
            if done.block in self.asking.blocks(assigned, block, self.runner):
                spent = self._spent.get((id(assigned), block.digest), 0.0)
                self._spent[id(assigned), block.digest] = spent + done.seconds
                self._conclude(assigned, block)

    def _failed(self, assigned: Assigned, failed: Failed) -> None:
        refusal = refusal_of(failed.error, loaded=failed.loaded)
        if assigned.refusal is not None:
            return
        if isinstance(failed.error, _OF_ITS_OWN):
            self._refuse(assigned, refusal, failed.seconds)
            return
        assigned.refusal = refusal
        self.suspicion.failed(
            refusal, lambda: self.records.refused(assigned, refusal, failed.seconds)
        )

    def _refuse(self, assigned: Assigned, refusal: Untestable, seconds: float) -> None:
        if assigned.refusal is None:
            self.records.refused(assigned, refusal, seconds)

    def _conclude(self, assigned: Assigned, block: DocumentBlock) -> None:
        """Turn the answers to a document block into values, once all of them are there."""
        asked = self.asking.blocks(assigned, block, self.runner)
        if block.digest in assigned.values or not all(b.digest in assigned.answers for b in asked):
            return
        told: dict[tuple[int, int], Answer] = {}
        for one in asked:
            for request, response in zip(
                one.requests, assigned.answers.pop(one.digest), strict=True
            ):
                told[request.doc_id, request.index] = response
        spent = self._spent.pop((id(assigned), block.digest), 0.0)
        try:
            values = self.asking.values(assigned, block, told)
        except Untestable as refusal:
            self._refuse(assigned, refusal, spent)
            return
        self.records.scored(assigned, block, values, spent)


def _answers(done: Done) -> Sequence[Answer]:
    """What was asked for: responses, or how their distributions diverge from the base's.

    Raises:
        Untestable: the distributions cannot be compared.
    """
    if done.compared is None:
        return done.responses
    if done.compared.reason:
        raise Untestable(f"its distributions cannot be compared: {done.compared.reason}")
    return done.compared.divergences
