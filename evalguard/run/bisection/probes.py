"""Probes: document blocks scored under assignments, each once.

What is finished is found in the journal and the score cache; a streak of failures is checked
with the candidate itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from evalguard.bisect.oracle import Floats, Untestable
from evalguard.core.redaction import redacted_text
from evalguard.core.scorer import Response, ScoringPolicy
from evalguard.errors import (
    BuildError,
    EvalguardError,
    EvaluationError,
    FallbackError,
    SettingError,
    UsageError,
)
from evalguard.harness.blocks import RequestBlock
from evalguard.run.bisection.block_scoring import (
    AssignedCandidate,
    BlockScoring,
    DocumentBlock,
    ProbeAnswer,
)
from evalguard.run.bisection.runner import (
    FailedWork,
    ProbeRunner,
    ProbeWork,
    ScoredBlock,
    check_batches,
    refusal_of,
)
from evalguard.run.scoring.cached_blocks import SafeBlockCache
from evalguard.run.sources import ModelSource
from evalguard.store.journal import Journal, JournalEntry

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
    """

    asking: BlockScoring
    runner: ProbeRunner
    records: ProbeRecords
    policy: ScoringPolicy
    suspicion: FailureStreak
    loading_seconds: float = 0.0
    loads: int = 0
    scoring_seconds: float = 0.0
    documents: int = 0
    _spent: dict[tuple[int, str], float] = field(default_factory=dict)

    def answer(self, wanted: Sequence[ProbeRequest]) -> None:
        """Answer these document blocks; a refusal stands with its assignment.

        Raises:
            EvalguardError: what no other assignment would survive either: a full disk, files that
                changed, an environment in which nothing runs any more.
            KeyboardInterrupt: what is finished by then is kept.
        """
        works: list[ProbeWork] = []
        places: dict[int, ProbeRequest] = {}
        for assigned, blocks in wanted:
            missing = self._missing(assigned, blocks)
            asked = [one for block in missing for one in self._unanswered(assigned, block)]
            if asked and assigned.refusal is None:
                beside = self.asking.beside
                works.append(ProbeWork(source=assigned.source, blocks=tuple(asked), beside=beside))
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
        for block in blocks:
            self.records.recall(assigned, block)
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

    def _unanswered(self, assigned: AssignedCandidate, block: DocumentBlock) -> list[RequestBlock]:
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

    def _done(
        self, assigned: AssignedCandidate, blocks: Sequence[DocumentBlock], done: ScoredBlock
    ) -> None:
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
            assigned.answers[done.block.digest] = _answers_of(done)
        except Untestable as refusal:
            self._refuse(assigned, refusal, done.seconds)
            return
        self.suspicion.succeeded()
        for block in blocks:
            if done.block in self.asking.blocks(assigned, block, self.runner):
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
        self.records.scored(assigned, block, values, spent)


def _answers_of(done: ScoredBlock) -> Sequence[ProbeAnswer]:
    """What was asked for: responses, or how their distributions diverge from the base's.

    Raises:
        Untestable: the distributions cannot be compared.
    """
    if done.compared is None:
        return done.responses
    if done.compared.reason:
        raise Untestable(f"its distributions cannot be compared: {done.compared.reason}")
    return done.compared.divergences


# Records: what is finished, found in the journal and in the score cache, and kept there.


_WHOLE = ""  # in place of a block: the assignment itself was refused


@dataclass(slots=True, kw_only=True)
class ProbeRecords:
    """Journal and score cache.

    Attributes:
        timeout: seconds that a call may take: more than before is another try.
    """

    kept: SafeBlockCache[Sequence[Response]]
    journal: Journal | None
    timeout: float | None = None

    def may_know(self, assigned: AssignedCandidate) -> bool:
        """Whether the journal may have something of a model that only loading identifies."""
        return self.journal is not None and len(self.journal) > 0 and not assigned.digest

    def recall(self, assigned: AssignedCandidate, block: DocumentBlock) -> None:
        """Take in what the journal has of a document block, and why there will be nothing."""
        if self.journal is None or not assigned.digest or block.digest in assigned.values:
            return
        refused = self.journal.get(assigned.digest, _WHOLE)
        if refused is not None and refused.outcome != "scored" and self._is_believed(refused):
            assigned.refusal = Untestable(refused.reason, kind=refused.outcome)
            return
        found = self.journal.get(assigned.digest, block.digest)
        if found is not None and found.values is not None:
            same = found.values.shape == block.documents.shape
            if same:
                assigned.values[block.digest] = found.values

    def responses(
        self, assigned: AssignedCandidate, asked: RequestBlock
    ) -> Sequence[Response] | None:
        """Return kept answers to a block."""
        found = self.kept.get(assigned.key, asked.digest)
        return found if found is not None and len(found) == len(asked.requests) else None

    def keep(
        self, assigned: AssignedCandidate, asked: RequestBlock, responses: Sequence[Response]
    ) -> None:
        """Keep answers to a block, as compare does."""
        self.kept.put(assigned.key, asked.digest, responses)
        if assigned.description is not None:
            self.kept.describe(
                assigned.key,
                name=assigned.source.name,
                task=asked.requests[0].task,
                model=assigned.description,
            )

    def scored(
        self, assigned: AssignedCandidate, block: DocumentBlock, values: Floats, seconds: float
    ) -> None:
        """Write down the values of a document block.

        Raises:
            StoreError: the disk refuses.
        """
        assigned.values[block.digest] = values
        if self.journal is not None and assigned.digest:
            entry = JournalEntry(
                assignment=assigned.digest,
                block=block.digest,
                outcome="scored",
                values=values,
                seconds=seconds,
                settings=assigned.settings,
            )
            self.journal.add(entry)

    def refused(self, assigned: AssignedCandidate, why: Untestable, seconds: float) -> None:
        """Write down why an assignment cannot be tested.

        Raises:
            StoreError: the disk refuses.
        """
        assigned.refusal = why
        if self.journal is not None and assigned.digest:
            entry = JournalEntry(
                assignment=assigned.digest,
                block=_WHOLE,
                outcome=why.kind,
                reason=redacted_text(why.reason),
                seconds=max(seconds, self.timeout or 0.0),
                settings=assigned.settings,
            )
            self.journal.add(entry)

    def _is_believed(self, refused: JournalEntry) -> bool:
        """Whether a refusal still holds: memory may be free by now, and more time allowed."""
        if refused.outcome == "timed_out":
            return self.timeout is None or self.timeout <= refused.seconds
        return refused.outcome != "out_of_memory"


# Suspicion: whether probes fail because of their settings, or because nothing runs any more.


_FIRST_CONTROL = 2  # failures in a row before the control is run


@dataclass(slots=True, kw_only=True)
class FailureStreak:
    """Counts failures in a row; after two, then four, a control has to run.

    The control is the candidate itself, which the comparison has scored: where it fails too, a
    device, a disk or a library is gone, and no assignment is to blame. Until something runs, a
    failure is not written down: it would be believed for ever.

    Attributes:
        control: the candidate; ``block``: something to ask it.
    """

    control: ModelSource
    block: RequestBlock
    _doubtful: list[Callable[[], None]] = field(default_factory=list)
    _enough: int = _FIRST_CONTROL
    _last: Untestable | None = None

    def succeeded(self) -> None:
        """A block was answered: what failed before did so for reasons of its own."""
        while self._doubtful:
            self._doubtful.pop(0)()

    def failed(self, refusal: Untestable, write_down: Callable[[], None]) -> None:
        """A probe gave no scores; that is written down when something else does."""
        self._doubtful.append(write_down)
        self._last = refusal

    def check(self, runner: ProbeRunner) -> None:
        """Run the control if there is reason to.

        Raises:
            EvaluationError: it fails as well.
        """
        if len(self._doubtful) < self._enough or self._last is None:
            return
        self._enough *= 2
        for event in runner.run([ProbeWork(source=self.control, blocks=(self.block,))]):
            if isinstance(event, FailedWork):
                raise EvaluationError(
                    f"probes fail one after the other ({self._last.reason}), and the candidate, "
                    f"which was scored before, fails now, too: {event.error}",
                    hint=event.error.hint or "what is finished is kept: resume when this is fixed",
                )
        self.succeeded()
