"""Probes: document blocks scored under assignments, each once.

What is finished is found where it is kept; a streak of failures is checked with the candidate
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import get_args

from evalguard.answers.document_figures import DocumentAnswers
from evalguard.answers.figure_tables import answers_by_document
from evalguard.bisect.bisect_report import WrittenTexts
from evalguard.bisect.oracle.assigned_candidate import AssignedCandidate, DocumentBlock, ProbeAnswer
from evalguard.bisect.oracle.probe_answers import BlockScoring
from evalguard.bisect.scales import FigureScale
from evalguard.core.question import Refusal, Untestable
from evalguard.core.redaction import redacted_text
from evalguard.core.scorer import ComparedAnswer, Response, ScoringPolicy
from evalguard.core.settings import digest_of
from evalguard.engine.batches import check_batches
from evalguard.engine.block_store import BlockStore, Unit
from evalguard.engine.refusals import refusal_of
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.slots import FailedWork, FinishedUnit, Work, WorkRunner
from evalguard.engine.sources import ModelSource
from evalguard.errors import (
    BuildError,
    EvalguardError,
    EvaluationError,
    FallbackError,
    SettingError,
    UsageError,
)
from evalguard.harness.request_blocks import RequestBlock
from evalguard.store.fact_cache import FactCache


def count_responses(responses: Sequence[Response]) -> WrittenTexts:
    """How much was generated now."""
    tokens = [
        None if response.generated is None else len(response.generated) for response in responses
    ]
    return _counted(tokens, sum(len(response.text or "") for response in responses))


def are_drawn(side: ScoredSide, scale: FigureScale) -> bool:
    """Whether a side's texts are drawn at random, so that another block draws other ones."""
    return any(written.drawn for written in written_by(side, scale).values())


def _counted(tokens: Sequence[int | None], characters: int) -> WrittenTexts:
    known = [count for count in tokens if count is not None]
    return WrittenTexts(
        tokens=sum(known) if len(known) == len(tokens) else None, characters=characters
    )


def written_by(side: ScoredSide, scale: FigureScale) -> Mapping[int, DocumentAnswers]:
    """What a side generated for a figure's documents, by doc_id."""
    task = scale.key[0]
    if task not in side.samples:
        return {}
    answers = answers_by_document(task, side.samples[task].samples)
    return {doc: answers[doc] for doc in scale.doc_ids if doc in answers}


def count_texts(answers: Iterable[DocumentAnswers]) -> WrittenTexts:
    """How much was generated for these documents."""
    answers = [*answers]
    tokens = [
        None if text_tokens is None else len(text_tokens)
        for of in answers
        for text_tokens in of.tokens or (None,)
    ]
    return _counted(tokens, sum(len(text) for of in answers for text in of.texts))


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

    def check(self, runner: WorkRunner) -> None:
        """Run the control if there is reason to.

        Raises:
            EvaluationError: it fails as well.
        """
        if len(self._doubtful) < self._enough or self._last is None:
            return
        self._enough *= 2
        for event in runner.run([Work(source=self.control, units=(Unit(block=self.block),))]):
            if isinstance(event, FailedWork):
                raise EvaluationError(
                    f"probes fail one after the other ({self._last.reason}), and the candidate, "
                    f"which was scored before, fails now, too: {event.error}",
                    hint=event.error.hint or "what is finished is kept: resume when this is fixed",
                )
        self.succeeded()


# Kinds of facts: why an assignment cannot be tested; of which models nothing is known before they
# are loaded, and something may be kept.
_REFUSALS, _PROBED = "refusals", "probed"


@dataclass(slots=True, kw_only=True)
class ProbeRecords:
    """Answers in the caches of scores and divergences, refusals among the facts.

    Attributes:
        store: where compare keeps them, too.
        facts: None: nothing is kept of refusals.
        question: digest of all that assignments are asked here.
        timeout: seconds that a call may take: more than before is another try.
    """

    store: BlockStore
    facts: FactCache | None
    question: str
    timeout: float | None = None
    _noted: set[str] = field(default_factory=set)

    def may_know(self, assigned: AssignedCandidate) -> bool:
        """Whether something may be kept of a model that only loading identifies."""
        if self.facts is None or assigned.known is not None:
            return False
        return self.facts.get(_PROBED, _name_of(assigned.source)) is not None

    def answers(self, assigned: AssignedCandidate, asked: Unit) -> Sequence[ProbeAnswer] | None:
        """Return kept answers to a unit: responses, or how they diverge from the base's.

        Raises:
            Untestable: it is kept that distributions cannot be compared.
        """
        if asked.beside is not None:
            compared = self.store.find_compared(asked, assigned.key)
            return None if compared is None else answers_of((), compared)
        return self.store.responses(asked.block, assigned.key)

    def keep(self, assigned: AssignedCandidate, done: FinishedUnit) -> None:
        """Keep an answer, as compare does.

        Raises:
            EvaluationError: it is not one for every request.
        """
        unit, name, model = done.answer.unit, assigned.source.name, done.description
        task = unit.task
        self.store.keep(done.answer, assigned.key)
        self.store.scores.describe(assigned.key, name=name, task=task, model=model)
        if unit.beside is not None:
            key = unit.beside.pair_key(assigned.key)
            self.store.divergences.describe(key, name=f"base vs {name}", task=task, model=model)
        if self.facts is not None and assigned.known is None and assigned.key is not None:
            probed = _name_of(assigned.source)
            if probed not in self._noted:  # once, and not with every block
                self._noted.add(probed)
                self.facts.put(_PROBED, probed, {})

    def refusal(self, assigned: AssignedCandidate) -> Untestable | None:
        """Return why an assignment cannot be tested, where that is kept and still holds."""
        name = self._refusal_name(assigned)
        stored = None if self.facts is None or name is None else self.facts.get(_REFUSALS, name)
        if stored is None or stored.get("kind") not in get_args(Refusal):
            return None
        # More time than before is another try.
        more_time = self.timeout is not None and self.timeout > float(stored.get("seconds", 0.0))
        if stored["kind"] == "timed_out" and more_time:
            return None
        return Untestable(
            str(stored.get("reason")), kind=stored["kind"], hint=str(stored.get("hint", ""))
        )

    def refused(self, assigned: AssignedCandidate, why: Untestable, seconds: float) -> None:
        """Remember why an assignment cannot be tested; memory may be free the next time."""
        assigned.refusal = why
        name = self._refusal_name(assigned)
        if self.facts is None or name is None or why.kind == "out_of_memory":
            return
        entry = {"kind": why.kind, "reason": redacted_text(why.reason), "hint": why.hint}
        seconds = max(seconds, self.timeout or 0.0)
        self.facts.put(_REFUSALS, name, {**entry, "seconds": round(seconds, 3)})

    def _refusal_name(self, assigned: AssignedCandidate) -> str | None:
        return None if assigned.proof is None else digest_of([assigned.proof, self.question])


def answers_of(
    responses: Sequence[Response], compared: ComparedAnswer | None
) -> Sequence[ProbeAnswer]:
    """What was asked for: responses, or how their distributions diverge from the base's.

    Raises:
        Untestable: the distributions cannot be compared.
    """
    if compared is None:
        return responses
    if compared.reason:
        raise Untestable(f"its distributions cannot be compared: {compared.reason}")
    return compared.divergences


def _name_of(source: ModelSource) -> str:
    """What stands for a model before it is loaded: as it is declared, which proves nothing."""
    return digest_of([source.variant.digest, str(source.policy)])


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
            asked = [unit for block in missing for unit in self._unanswered(assigned, block)]
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
            description = self.runner.ask(assigned.source, lambda scorer: scorer.describe())
        except EvalguardError as error:
            self._refuse(assigned, refusal_of(error, loaded=False), 0.0)
        else:
            assigned.describe_as(description)

    def _unanswered(self, assigned: AssignedCandidate, block: DocumentBlock) -> list[Unit]:
        """What the model has to be asked for a document block; () where all of it is kept."""
        try:
            asked = self.asking.units(assigned, block, self.runner)
        except EvalguardError as error:
            self._refuse(assigned, refusal_of(error, loaded=False), 0.0)
            return []
        try:
            for unit in asked:
                answers = self.records.answers(assigned, unit)
                if answers is not None:
                    assigned.answers[unit.block.digest] = answers
        except Untestable as refusal:
            self._refuse(assigned, refusal, 0.0)
            return []
        unanswered = [unit for unit in asked if unit.block.digest not in assigned.answers]
        if not unanswered:
            self._conclude(assigned, block)
        return unanswered

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
        answers: dict[tuple[int, int], ProbeAnswer] = {}
        for request_block in asked:
            for request, response in zip(
                request_block.requests, assigned.answers.pop(request_block.digest), strict=True
            ):
                answers[request.doc_id, request.index] = response
        spent = self._spent.pop((id(assigned), block.digest), 0.0)
        try:
            values = self.asking.values(assigned, block, answers)
        except Untestable as refusal:
            self._refuse(assigned, refusal, spent)
            return
        assigned.values[block.digest] = values
