"""Probes in worker processes of this machine, each with one model at a time.

What memory ran out for is run again alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Protocol, cast

from evalguard.bisect.oracle import Untestable
from evalguard.core.reference import SAMPLES, Reference
from evalguard.core.reports.bisection import Loads
from evalguard.core.scorer import ComparedAnswer, DistributionScorer, Response, Scorer
from evalguard.errors import EvalguardError, EvaluationError, WorkerError
from evalguard.harness.blocks import RequestBlock
from evalguard.run.bisection.runner import (
    BlockSchedule,
    FailedWork,
    ProbeWork,
    Reply,
    ScoredBlock,
    check_batches,
    ran_out_of_memory,
    was_killed,
)
from evalguard.run.sources import ModelSource, with_location
from evalguard.worker.process import kill_workers_of, stuck_workers_of

POLL_SECONDS = 0.5  # seconds between two looks at who is late
_STOP_SECONDS = 10.0  # seconds that a slot whose worker was ended may take to notice
# A probe may take this many times as long as anything before it, and never less than the seconds.
_TIMES, LEAST = 20.0, 600.0
UNKNOWN_PATIENCE = 3600.0  # seconds: where nothing before it says how long one takes


class LocalRunner:
    """Slots, each with a worker process that stays between probes.

    Models side by side share a machine's memory, and who gets none of it, or is killed for it, is
    whoever asked last: that says nothing about its settings, and nor does a worker that is killed
    from outside. Such a probe is run again alone; what fails once more does so for reasons of its
    own.

    Args:
        opened: makes the model of a slot.
        jobs: number of slots.
        watch: whether to end probes that take far longer than those before them; not where the
            user gave a limit, which the workers keep by themselves.
        recovers: whether a block whose worker is lost with its machine is asked again elsewhere.
        say: takes what a person is to know.
    """

    def __init__(
        self,
        opened: Callable[[], SwitchableModel],
        *,
        jobs: int = 1,
        watch: bool = True,
        recovers: bool = False,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._slots = [WorkerSlot(number + 1, opened) for number in range(jobs)]
        self._watch = watch
        self._recovers = recovers
        self._say = say
        self._crowded = False  # memory was seen to hold fewer models than there are slots
        self._longest_load = self._longest_document = 0.0
        self._loading = self._scoring = 0.0

    @property
    def jobs(self) -> int:
        """How many units run at the same time; see ``ProbeRunner``."""
        return 1 if self._crowded else sum(not slot.has_no_place for slot in self._slots)

    @property
    def loads(self) -> Loads:
        """How the models of all slots came about; see ``ProbeRunner``."""
        return sum((slot.loads for slot in self._slots), Loads())

    def run(self, works: Sequence[ProbeWork]) -> Generator[ScoredBlock | FailedWork, None, None]:
        """Answer all blocks of all works; see ``ProbeRunner``."""
        short: list[ProbeWork] = []  # of memory
        done: dict[int, list[RequestBlock]] = {}
        with closing(self._run_once(works, slots=self.jobs)) as events:
            for event in events:
                if self._may_do_alone(event):
                    short += [event.work] * (event.work not in short)
                    continue
                if isinstance(event, ScoredBlock):
                    done.setdefault(id(event.work), []).append(event.block)
                yield event
        for work in short:
            yield from self._run_alone(work, done.get(id(work), ()))

    def ask(self, source: ModelSource, question: Callable[[Scorer], Reply]) -> Reply:
        """Load a model and ask it something; see ``ProbeRunner``."""
        try:
            return self._ask_somewhere(source, question)
        except EvalguardError as error:
            if not self._had_company(error):
                raise
        self._release()
        found = self._ask_somewhere(source, question)
        self._note_crowded(source)
        return found

    def close(self) -> None:
        """End all processes; see ``ProbeRunner``."""
        for slot in self._slots:
            slot.stop()
        for slot in self._slots:
            slot.thread.join(_STOP_SECONDS)
        self._kill(self._slots)

    def _run_alone(
        self, work: ProbeWork, done: Sequence[RequestBlock]
    ) -> Generator[ScoredBlock | FailedWork, None, None]:
        left = replace(work, blocks=tuple(one for one in work.blocks if one not in done))
        failed = False
        self._release()
        with closing(self._run_once([left], slots=1)) as events:
            for event in events:
                failed |= isinstance(event, FailedWork) or _shrank_batches(event)
                yield replace(event, work=work)
        if not failed:
            self._note_crowded(work.source)

    def _may_do_alone(self, event: ScoredBlock | FailedWork) -> bool:
        if isinstance(event, FailedWork):
            return self._had_company(event.error)
        return self.jobs > 1 and _shrank_batches(event)

    def _had_company(self, error: EvalguardError) -> bool:
        """Whether memory ran out for a reason that may be gone when nothing runs beside it."""
        return was_killed(error) or (self.jobs > 1 and ran_out_of_memory(error))

    def _note_crowded(self, source: ModelSource) -> None:
        """It runs alone: so do all others from now on."""
        if self.jobs > 1:
            self._crowded = True
            self._say(
                "memory ran out, or a worker was killed, while several models were asked, and "
                f"{source.name} runs alone: from now on one model is asked at a time"
            )

    def _run_once(
        self, works: Sequence[ProbeWork], *, slots: int
    ) -> Generator[ScoredBlock | FailedWork, None, None]:
        """Answer all blocks of all works by the first slots, whatever fails."""
        out: SimpleQueue[SlotEvent] = SimpleQueue()
        placed = [slot for slot in self._slots if not slot.has_no_place]
        busy_slots = placed[: max(1, min(slots, sum(len(w.blocks) for w in works)))]
        schedule = BlockSchedule(
            works,
            loading=self._loading,
            scoring=self._scoring,
            slots=len(busy_slots) if self._recovers else 0,
        )
        for slot in busy_slots:
            slot.drain(schedule, out)
        busy = len(busy_slots)
        try:
            while busy:
                event = self._next(out)
                if event is None:
                    busy -= 1
                elif isinstance(event, BaseException):
                    raise event
                else:
                    self._learn(event)
                    yield event
        finally:
            if busy:
                schedule.stop()
                self._end(out, busy)

    def _ask_somewhere(self, source: ModelSource, question: Callable[[Scorer], Reply]) -> Reply:
        """Ask the first slot; where its worker is lost with its machine, the next one."""
        *others, last = [slot for slot in self._slots if not slot.has_no_place]
        for slot in others:
            try:
                return self._ask_once(slot, source, question)
            except WorkerError as error:
                if not self._recovers or error.cause not in ("lost", "unplaced"):
                    raise
        return self._ask_once(last, source, question)

    def _ask_once(
        self, slot: WorkerSlot, source: ModelSource, question: Callable[[Scorer], Reply]
    ) -> Reply:
        answers: list[Reply] = []
        out: SimpleQueue[SlotEvent] = SimpleQueue()
        slot.ask(source, lambda scorer: answers.append(question(scorer)), out)
        busy = 1
        try:
            event = self._next(out)
            busy = 0
        finally:
            if busy:
                self._end(out, busy)
        if isinstance(event, BaseException):
            raise event
        self._longest_load = max(self._longest_load, slot.loading)
        return answers[0]

    def _release(self) -> None:
        """Let go of the models of all slots, and wait until they are gone; used between runs."""
        out: SimpleQueue[SlotEvent] = SimpleQueue()
        for slot in self._slots:
            slot.release(out)
        for _ in self._slots:
            self._next(out)

    def _next(self, out: SimpleQueue[SlotEvent]) -> SlotEvent:
        """Wait for what comes next; meanwhile end probes that are far too late."""
        while True:
            try:
                return out.get(timeout=POLL_SECONDS)
            except Empty:
                for slot in self._slots:
                    if why := self._late(slot):
                        slot.overdue = why
                        place = stuck_workers_of([slot.thread])
                        slot.overdue += f", in {place}" if place else ""
                        self._kill([slot])

    def _late(self, slot: WorkerSlot) -> str:
        """Why a slot has taken too long; "" where it has not."""
        since, documents = slot.since, slot.documents
        if not (self._watch and since):
            return ""
        known = self._longest_document * documents if documents else self._longest_load
        patience = max(LEAST, _TIMES * known) if known else UNKNOWN_PATIENCE
        if time.monotonic() - since <= patience:
            return ""
        if known:
            return "far longer than any probe before it"
        return "and none before it says how long one takes"

    def _learn(self, done: ScoredBlock | FailedWork) -> None:
        if isinstance(done, FailedWork):
            return
        self._scoring = done.seconds
        self._loading = done.loading or self._loading
        self._longest_load = max(self._longest_load, done.loading)
        per_document = done.seconds / len(done.block.doc_ids)
        self._longest_document = max(self._longest_document, per_document)

    def _end(self, out: SimpleQueue[SlotEvent], busy: int) -> None:
        """End what is under way, and wait until the slots have noticed."""
        until = time.monotonic() + _STOP_SECONDS
        while busy and time.monotonic() < until:
            self._kill(self._slots)
            try:
                busy -= out.get(timeout=0.1) is None
            except Empty:
                continue

    @staticmethod
    def _kill(slots: Sequence[WorkerSlot]) -> None:
        kill_workers_of([slot.thread for slot in slots])


def _shrank_batches(done: ScoredBlock) -> bool:
    """Whether a model took to smaller batches than all are scored in, for want of memory."""
    policy = done.work.source.policy
    if policy is None:
        return False
    try:
        check_batches(policy, done.description)
    except Untestable as refusal:
        return refusal.kind == "out_of_memory"
    return False


# WorkerSlot: one thread that owns one model at a time, in a worker process of its own.


SlotEvent = ScoredBlock | FailedWork | BaseException | None


class SwitchableModel(Protocol):
    """A model that becomes another one, as ``ReusedModel``."""

    @property
    def loads(self) -> Loads:
        """How often it became one, in which way."""

    def at(self, source: ModelSource) -> Scorer:
        """Be this model; where that fails, the next one is not affected."""

    def close(self) -> None:
        """Release it; it may be used again."""


class WorkerSlot:
    """Loads and scores in a thread of its own, so that slots wait for their workers side by side.

    Attributes:
        since: when what is under way began (``time.monotonic``); 0 where nothing is.
        documents: of the block that is under way; 0 while a model is loaded.
        loading: seconds that the last model that was asked something took to load.
        overdue: why its worker is ended: it took too long; "" where it is not.
        has_no_place: whether no machine has room for its worker, while others have theirs.
    """

    def __init__(self, number: int, opened: Callable[[], SwitchableModel]) -> None:
        self.since = 0.0
        self.documents = 0
        self.loading = 0.0
        self.overdue = ""
        self.has_no_place = False
        self._opened = opened
        self._model: SwitchableModel | None = None
        self._loaded: ModelSource | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"probe {number}", daemon=True)
        self.thread.start()

    @property
    def loads(self) -> Loads:
        """How its models came about."""
        return Loads() if self._model is None else self._model.loads

    def drain(self, schedule: BlockSchedule, out: SimpleQueue[SlotEvent]) -> None:
        """Begin to take blocks from a schedule; None goes out when nothing is left for this one."""
        self._jobs.put(lambda: self._drain(schedule, out))

    def ask(
        self, source: ModelSource, question: Callable[[Scorer], None], out: SimpleQueue[SlotEvent]
    ) -> None:
        """Ask a model something; None goes out when it has answered, or what it raised."""
        self._jobs.put(lambda: self._ask(source, question, out))

    def release(self, out: SimpleQueue[SlotEvent]) -> None:
        """Let go of the model, if it has one; None goes out when it is gone."""
        self._jobs.put(lambda: self._release(out))

    def stop(self) -> None:
        """Release the model and end the thread, as soon as what is under way has ended."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        self._drop()

    def _drain(self, schedule: BlockSchedule, out: SimpleQueue[SlotEvent]) -> None:
        before: ProbeWork | None = None
        while (taken := schedule.take(self._loaded, before)) is not None:
            before, block = taken
            done = self._one(before, block)
            if isinstance(done, FailedWork) and self._gives_back(done, block, schedule):
                self._drop()
                schedule.finish()
                if self.has_no_place:
                    break
                continue
            if isinstance(done, FailedWork):
                schedule.drop(before)
            out.put(done)
            schedule.finish()
        out.put(None)

    def _gives_back(self, failed: FailedWork, block: RequestBlock, schedule: BlockSchedule) -> bool:
        """Whether another slot, or a new worker of this one, is to answer a block.

        A slot without a place goes no further, unless it is the last one.
        """
        error = failed.error
        if not isinstance(error, WorkerError) or error.cause not in ("lost", "unplaced"):
            return False
        self.has_no_place = error.cause == "unplaced" and schedule.leave()
        return schedule.give_back(failed.work, block, lost=not self.has_no_place)

    def _ask(
        self, source: ModelSource, question: Callable[[Scorer], None], out: SimpleQueue[SlotEvent]
    ) -> None:
        started = time.monotonic()
        try:
            scorer = self._at(source)
            self.loading = time.monotonic() - started
            self.since = 0.0  # nobody knows how long an answer takes
            question(scorer)
        except BaseException as error:  # noqa: BLE001  it belongs to who asked
            self._drop()
            took = time.monotonic() - started
            out.put(self._as_error(error, took) if self.overdue else error)
        else:
            out.put(None)
        self.since = 0.0

    def _release(self, out: SimpleQueue[SlotEvent]) -> None:
        self._drop()
        out.put(None)

    def _one(self, work: ProbeWork, block: RequestBlock) -> ScoredBlock | FailedWork:
        started, loading, loaded = time.monotonic(), 0.0, False
        try:
            there = self._loaded is work.source
            scorer = self._at(work.source)
            loading = 0.0 if there else time.monotonic() - started
            loaded, self.documents, self.since = True, len(block.doc_ids), time.monotonic()
            responses, compared, references = _score_block(scorer, work, block)
            return ScoredBlock(
                work=work,
                block=block,
                responses=responses,
                compared=compared,
                references=references,
                description=scorer.describe(),
                seconds=time.monotonic() - self.since,
                loading=loading,
            )
        except BaseException as error:  # noqa: BLE001  a thread that dies would be waited for
            if loaded:
                self._drop()
            took = time.monotonic() - started
            told = self._as_error(error, took)
            return FailedWork(work=work, error=told, loaded=loaded, seconds=took)
        finally:
            self.since = 0.0

    def _as_error(self, error: BaseException, took: float) -> EvalguardError:
        if self.overdue:
            why, self.overdue = self.overdue, ""
            late = f"gave no answer within {took:.0f} s, {why}"
            return WorkerError(late, cause="late", hint="--timeout SECONDS allows it more time")
        return error if isinstance(error, EvalguardError) else _unexpected_error(error)

    def _at(self, source: ModelSource) -> Scorer:
        self.overdue = ""  # what came before may have ended by itself just in time
        self.documents, self.since = 0, time.monotonic()
        if self._model is None:
            self._model = self._opened()
        self._loaded = None
        with with_location(source):
            scorer = self._model.at(source)
        self._loaded = source
        return scorer

    def _drop(self) -> None:
        """Let go of a model that failed: what it left behind must not be the next one's.

        Where one could not be had at all, the next one is not affected.
        """
        self._loaded = None
        if self._model is not None:
            with contextlib.suppress(EvalguardError):
                self._model.close()


def _score_block(
    scorer: Scorer, work: ProbeWork, block: RequestBlock
) -> tuple[Sequence[Response], ComparedAnswer | None, Sequence[Reference | None]]:
    # Whoever shows no distributions says so.
    showing, asked = cast(DistributionScorer, scorer), block.requests
    if work.top_k:
        responses, left = showing.score_reference(asked, top_k=work.top_k, samples=SAMPLES)
        return responses, None, left
    if work.beside is not None:
        responses, compared = showing.score_against(asked, work.beside(block))
        return responses, compared, ()
    return scorer.score(asked), None, ()


def _unexpected_error(error: BaseException) -> EvaluationError:
    return EvaluationError(f"{type(error).__name__}: {error}")
