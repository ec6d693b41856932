"""Probes: document blocks scored under assignments, each once.

What is finished is found where it is kept; a streak of failures is checked with the candidate
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from evalguard.bisect.oracle import Untestable
from evalguard.core.reports.bisect_report import WrittenTexts
from evalguard.core.scorer import ScoringPolicy
from evalguard.errors import (
    BuildError,
    EvalguardError,
    FallbackError,
    SettingError,
    UsageError,
)
from evalguard.run.bisection.assigned_candidate import AssignedCandidate, ProbeAnswer
from evalguard.run.bisection.block_scoring import DocumentBlock
from evalguard.run.bisection.failure_streak import FailureStreak
from evalguard.run.bisection.probe_records import ProbeRecords, answers_of
from evalguard.run.bisection.questions import BlockScoring
from evalguard.run.bisection.written_texts import count_responses
from evalguard.run.executing.batches import check_batches
from evalguard.run.executing.refusals import refusal_of
from evalguard.run.executing.work import FailedWork, FinishedUnit, Unit, Work, WorkRunner

# These follow from an assignment; whatever else goes wrong may have another reason.
_CAUSED_BY_ASSIGNMENT = (SettingError, BuildError, UsageError, FallbackError)

ProbeRequest = tuple[AssignedCandidate, Sequence[DocumentBlock]]


@dataclass(slots=True, kw_only=True)
class Probes:
    """Answers what is not answered yet.

    Attributes:
        asking: what assignments are asked, and what their answers are worth.
        policy: how all of them are scored.
        seconds: spent on loading, on block_scorer, and the numbers of loads and documents.
        written: texts that were generated; None: none was.
    """

    asking: BlockScoring
    runner: WorkRunner
    records: ProbeRecords
    policy: ScoringPolicy
    suspicion: FailureStreak
    loading_seconds: float = 0.0
    loads: int = 0
    scoring_seconds: float = 0.0
    documents: int = 0
    written: WrittenTexts | None = None
    _spent: dict[tuple[int, str], float] = field(default_factory=dict)

    def answer(self, wanted: Sequence[ProbeRequest]) -> None:
        """Answer these document blocks; a refusal stands with its assignment.

        Raises:
            EvalguardError: what no other assignment would survive either: a full disk, files that
                changed, an environment in which nothing runs any more.
            KeyboardInterrupt: what is finished by then is kept.
        """
        works: list[Work] = []
        places: dict[int, ProbeRequest] = {}
        for assigned, blocks in wanted:
            missing = self._missing(assigned, blocks)
            asked = [one for block in missing for one in self._unanswered(assigned, block)]
            if asked and assigned.refusal is None:
                works.append(Work(source=assigned.source, units=tuple(asked)))
                places[id(works[-1])] = (assigned, missing)
        if not works:
            return
        with closing(self.runner.run(works)) as events:
            for event in events:
                of, wants = places[id(event.work)]
                if isinstance(event, FailedWork):
                    self._failed(of, event)
                elif of.refusal is None:
                    self._done(of, wants, event)
        self.suspicion.check(self.runner)

    def _missing(
        self, assigned: AssignedCandidate, blocks: Iterable[DocumentBlock]
    ) -> list[DocumentBlock]:
        if assigned.description is None and self.records.may_know(assigned):
            self._describe(assigned)
        if assigned.refusal is None:
            assigned.refusal = self.records.refusal(assigned)
        if assigned.refusal is not None:
            return []
        return [block for block in blocks if block.digest not in assigned.values]

    def _describe(self, assigned: AssignedCandidate) -> None:
        """Load a model only to see which one it is: it may have been asked before."""
        try:
            found = self.runner.ask(assigned.source, lambda scorer: scorer.describe())
        except EvalguardError as error:
            self._refuse(assigned, refusal_of(error, loaded=False), 0.0)
        else:
            assigned.describe_as(found)

    def _unanswered(self, assigned: AssignedCandidate, block: DocumentBlock) -> list[Unit]:
        """What the model has to be asked for a document block; () where all of it is kept."""
        try:
            asked = self.asking.units(assigned, block, self.runner)
        except EvalguardError as error:
            self._refuse(assigned, refusal_of(error, loaded=False), 0.0)
            return []
        try:
            for one in asked:
                kept = self.records.answers(assigned, one)
                if kept is not None:
                    assigned.answers[one.block.digest] = kept
        except Untestable as refusal:
            self._refuse(assigned, refusal, 0.0)
            return []
        left = [one for one in asked if one.block.digest not in assigned.answers]
        if not left:
            self._conclude(assigned, block)
        return left

    def _done(
        self, assigned: AssignedCandidate, blocks: Sequence[DocumentBlock], done: FinishedUnit
    ) -> None:
        answer, asked = done.answer, done.answer.unit.block
        self.loading_seconds += done.loading
        self.loads += done.loading > 0.0
        self.scoring_seconds += done.seconds
        self.documents += len(asked.doc_ids)
        if asked.kind == "generate_until":
            new = count_responses(answer.responses)
            self.written = new if self.written is None else self.written + new
        assigned.describe_as(done.description)
        self.records.keep(assigned, done)
        try:
            check_batches(self.policy, done.description)
            assigned.answers[asked.digest] = answers_of(answer.responses, answer.compared)
        except Untestable as refusal:
            self._refuse(assigned, refusal, done.seconds)
            return
        self.suspicion.succeeded()
        for block in blocks:
            if asked in self.asking.blocks(assigned, block, self.runner):
                spent = self._spent.get((id(assigned), block.digest), 0.0)
                self._spent[id(assigned), block.digest] = spent + done.seconds
                self._conclude(assigned, block)

    def _failed(self, assigned: AssignedCandidate, failed: FailedWork) -> None:
        refusal = refusal_of(failed.error, loaded=failed.loaded)
        if assigned.refusal is not None:
            return
        if isinstance(failed.error, _CAUSED_BY_ASSIGNMENT):
            self._refuse(assigned, refusal, failed.seconds)
            return
        assigned.refusal = refusal
        self.suspicion.failed(
            refusal, lambda: self.records.refused(assigned, refusal, failed.seconds)
        )

    def _refuse(self, assigned: AssignedCandidate, refusal: Untestable, seconds: float) -> None:
        if assigned.refusal is None:
            self.records.refused(assigned, refusal, seconds)

    def _conclude(self, assigned: AssignedCandidate, block: DocumentBlock) -> None:
        """Turn the answers to a document block into values, once all of them are there."""
        asked = self.asking.blocks(assigned, block, self.runner)
        if block.digest in assigned.values or not all(b.digest in assigned.answers for b in asked):
            return
        told: dict[tuple[int, int], ProbeAnswer] = {}
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
        assigned.values[block.digest] = values
