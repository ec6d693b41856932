"""Slots: workers and Ray actors that answer units side by side, each with one model at a time.

What memory ran out for is run again alone; what was lost with its machine is asked elsewhere.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Condition
from typing import Protocol, TypeVar

from evalguard.config.options import CompareOptions
from evalguard.core.question import Loads, Untestable
from evalguard.core.ray_plan import RayPlan
from evalguard.core.scorer import ModelDescription, Scorer, ScoringPolicy
from evalguard.core.settings import digest_of
from evalguard.engine.answer import ReferencesGoneError, score_unit
from evalguard.engine.batches import check_batches, policy_for_ends
from evalguard.engine.block_store import BlockStore, LoadedModel, Unit, UnitAnswer
from evalguard.engine.error_places import with_location
from evalguard.engine.loading.lazy_scorer import LazyScorer, is_loaded
from evalguard.engine.memory import ran_out_of_memory, was_killed
from evalguard.engine.reused_model import ReusedModel
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, EvaluationError, WorkerError
from evalguard.worker.process import kill_workers_of, stuck_workers_of
from evalguard.worker.ray_cluster import open_cluster

Reply = TypeVar("Reply")
POLL_SECONDS = 0.5  # seconds between two looks at who is late
_STOP_SECONDS = 10.0  # seconds that a slot whose worker was ended may take to notice
# A probe may take this many times as long as anything before it, and never less than the seconds.
_TIMES, LEAST = 20.0, 600.0
UNKNOWN_PATIENCE = 3600.0  # seconds: where nothing before it says how long one takes
_MOST_LOSSES = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """Units of one model, which is loaded for them from ``source``."""

    source: ModelSource
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinishedUnit:
    """An answer to a unit of a work, what gave it, and what that took.

    Attributes:
        description: of the model as it was when it had answered.
        seconds: that scoring took.
        loading: seconds that loading took; 0 where the model was there already.
    """

    work: Work
    answer: UnitAnswer
    description: ModelDescription
    seconds: float
    loading: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FailedWork:
    """A work that ended: its model could not be loaded, or failed at a unit (``loaded``)."""

    work: Work
    error: EvalguardError
    loaded: bool
    seconds: float


class WorkRunner(Protocol):
    """Runs works, in whatever processes on whatever machines; one call at a time."""

    @property
    def jobs(self) -> int:
        """How many units run at the same time."""

    @property
    def loads(self) -> Loads:
        """How the models came about so far."""

    def run(self, works: Sequence[Work]) -> Generator[FinishedUnit | FailedWork, None, None]:
        """Answer all units of all works, in any order; each is yielded as soon as it is there.

        A failure ends its work and no other. Where the caller stops early, or is interrupted, what
        is under way is ended.
        """

    def ask(self, source: ModelSource, question: Callable[[Scorer], Reply]) -> Reply:
        """Load a model and ask it something.

        Raises:
            EvalguardError: as loading and asking do.
        """

    def close(self) -> None:
        """End all processes. May be called twice."""


@dataclass(slots=True)
class _RemainingUnits:
    work: Work
    units: deque[Unit]
    slots: int = 0


@dataclass(slots=True)
class WorkSchedule:
    """Units that are left, by work; slots on several threads take from it.

    Attributes:
        loading: seconds that loading takes, and ``scoring`` a unit; 0 where nothing is known.
        slots: how many slots take from it, where what one loses is given to another: nobody is
            told that nothing is left while a unit may come back. 0: what is lost has failed.
    """

    works: Sequence[Work]
    loading: float = 0.0
    scoring: float = 0.0
    slots: int = 0
    _left: list[_RemainingUnits] = field(default_factory=list)
    _turn: Condition = field(default_factory=Condition)
    _in_work: int = 0
    _losses: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Begin with everything."""
        self._left = [_RemainingUnits(work, deque(work.units)) for work in self.works]

    def take(self, loaded: ModelSource | None, before: Work | None) -> tuple[Work, Unit] | None:
        """The next unit for a slot, or None where nothing is left that is worth its while.

        Args:
            loaded: the model that the slot has loaded.
            before: the work that its last unit was of.
        """
        with self._turn:
            while (best := self._best(loaded, before)) is None:
                if not (self.slots and self._in_work):
                    return None
                self._turn.wait()
            if best.work is not before:
                best.slots += 1
            self._in_work += 1
            return best.work, best.units.popleft()

    def finish(self) -> None:
        """Note that a unit that was taken is done, or has failed."""
        with self._turn:
            self._in_work -= 1
            self._turn.notify_all()

    def give_back(self, work: Work, unit: Unit, *, lost: bool) -> bool:
        """Let another slot take a unit that could not be answered; whether one may.

        Args:
            lost: what answered it is gone; a unit with which that goes on happening is not
                innocent. False: it was not even begun.
        """
        with self._turn:
            if not self.slots:
                return False
            self._losses[id(work), unit.block.digest] += lost
            if self._losses[id(work), unit.block.digest] > _MOST_LOSSES:
                return False
            for remaining in self._left:
                if remaining.work is work:
                    remaining.units.appendleft(unit)
            return True

    def leave(self) -> bool:
        """Take no more units, unless this is the last slot that does; whether it may leave."""
        with self._turn:
            if self.slots < 2:
                return False
            self.slots -= 1
            return True

    def drop(self, work: Work) -> None:
        """Leave out what is left of a work."""
        with self._turn:
            for remaining in self._left:
                if remaining.work is work:
                    remaining.units.clear()

    def stop(self) -> None:
        """Leave out everything."""
        with self._turn:
            self.slots = 0
            for remaining in self._left:
                remaining.units.clear()
            self._turn.notify_all()

    def _best(self, loaded: ModelSource | None, before: Work | None) -> _RemainingUnits | None:
        """Go on; else what is loaded; else what nobody works on; else help where most is left."""
        open_ = [remaining for remaining in self._left if remaining.units]
        for remaining in open_:
            if remaining.work is before:
                return remaining
        for remaining in open_:
            if loaded is not None and remaining.work.source.variant == loaded.variant:
                return remaining
        for remaining in open_:
            if not remaining.slots:
                return remaining
        most = max(open_, key=lambda remaining: len(remaining.units), default=None)
        return most if most is not None and self._helps(most) else None

    def _helps(self, left: _RemainingUnits) -> bool:
        """Whether one more slot would finish before those that work on it already."""
        alone = len(left.units) * self.scoring / left.slots
        return not self.scoring or alone > self.loading + self.scoring


SlotEvent = FinishedUnit | FailedWork | BaseException | None


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
        documents: of the unit that is under way; 0 while a model is loaded.
        loading: seconds that the last model that was asked something took to load.
        overdue: why its worker is ended: it took too long; "" where it is not.
        has_no_place: whether no machine has room for its worker, while others have theirs.
        lent: a model that is open already, in place of a worker of its own, until it fails.
    """

    def __init__(self, number: int, opened: Callable[[], SwitchableModel]) -> None:
        self.since = 0.0
        self.documents = 0
        self.loading = 0.0
        self.overdue = ""
        self.has_no_place = False
        self.lent: Scorer | None = None
        self._opened = opened
        self._model: SwitchableModel | None = None
        self._loaded: ModelSource | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"worker {number}", daemon=True)
        self.thread.start()

    @property
    def loads(self) -> Loads:
        """How its models came about."""
        return Loads() if self._model is None else self._model.loads

    def drain(self, schedule: WorkSchedule, out: SimpleQueue[SlotEvent]) -> None:
        """Begin to take units from a schedule; None goes out when nothing is left for this one."""
        self._jobs.put(lambda: self._drain(schedule, out))

    def ask(
        self, source: ModelSource, question: Callable[[Scorer], None], out: SimpleQueue[SlotEvent]
    ) -> None:
        """Ask a model something; None goes out when it has answered, or what it raised."""
        self._jobs.put(lambda: self._ask(source, question, out))

    def release(self, out: SimpleQueue[SlotEvent]) -> None:
        """Let go of the model, if it has one; None goes out when it is gone."""
        self._jobs.put(lambda: self._release(out))

    def lend(self, scorer: Scorer | None) -> None:
        """Use a model that is open already, which who opened it closes; None: no more.

        Used between runs. A worker that was started in its place ends: the next model may have to
        be loaded where it was.
        """
        self._drop()
        self.lent = scorer

    def stop(self) -> None:
        """Release the model and end the thread, as soon as what is under way has ended."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        self._drop()

    def _drain(self, schedule: WorkSchedule, out: SimpleQueue[SlotEvent]) -> None:
        before: Work | None = None
        while (taken := schedule.take(self._loaded, before)) is not None:
            before, unit = taken
            done = self._one(before, unit)
            if isinstance(done, FailedWork) and self._gives_back(done, unit, schedule):
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

    def _gives_back(self, failed: FailedWork, unit: Unit, schedule: WorkSchedule) -> bool:
        """Whether another slot, or a new worker of this one, is to answer a unit.

        A slot without a place goes no further, unless it is the last one.
        """
        error = failed.error
        if not isinstance(error, WorkerError) or error.cause not in ("lost", "unplaced"):
            return False
        self.has_no_place = error.cause == "unplaced" and schedule.leave()
        return schedule.give_back(failed.work, unit, lost=not self.has_no_place)

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

    def _one(self, work: Work, unit: Unit) -> FinishedUnit | FailedWork:
        started, loading, loaded = time.monotonic(), 0.0, False
        try:
            there = self._loaded is work.source
            scorer = self._at(work.source)
            loading = 0.0 if there else time.monotonic() - started
            loaded, self.documents, self.since = True, len(unit.block.doc_ids), time.monotonic()
            answer = score_unit(scorer, unit)
            return FinishedUnit(
                work=work,
                answer=answer,
                description=scorer.describe(),
                seconds=time.monotonic() - self.since,
                loading=loading,
            )
        except BaseException as error:  # noqa: BLE001  a thread that dies would be waited for
            if loaded:
                self._drop()
            took = time.monotonic() - started
            failure = self._as_error(error, took)
            return FailedWork(work=work, error=failure, loaded=loaded, seconds=took)
        finally:
            self.since = 0.0

    def _as_error(self, error: BaseException, took: float) -> EvalguardError:
        if self.overdue:
            why, self.overdue = self.overdue, ""
            late = f"gave no answer within {took:.0f} s, {why}"
            return WorkerError(
                late, cause="late", hint="run: {timeout: SECONDS} allows it more time"
            )
        return error if isinstance(error, EvalguardError) else _unexpected_error(error)

    def _at(self, source: ModelSource) -> Scorer:
        self.overdue = ""  # what came before may have ended by itself just in time
        self.documents, self.since = 0, time.monotonic()
        if self.lent is not None:
            self._loaded = source
            return self.lent
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
        self._loaded = self.lent = None
        if self._model is not None:
            with contextlib.suppress(EvalguardError):
                self._model.close()


def _unexpected_error(error: BaseException) -> EvaluationError:
    return EvaluationError(f"{type(error).__name__}: {error}")


class WorkerPool:
    """Slots, each with a worker process that stays from work to work.

    Models side by side share a machine's memory, and who gets none of it, or is killed for it, is
    whoever asked last: that says nothing about its settings, and nor does a worker that is killed
    from outside. Such a probe is run again alone; what fails once more does so for reasons of its
    own.

    Args:
        opened: makes the model of a slot.
        jobs: number of slots.
        watch: whether to end probes that take far longer than those before them; not where the
            user gave a limit, which the workers keep by themselves.
        recovers: whether a unit whose worker is lost with its machine is asked again elsewhere.
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
        """How many units run at the same time; see ``WorkRunner``."""
        return 1 if self._crowded else sum(not slot.has_no_place for slot in self._slots)

    @property
    def loads(self) -> Loads:
        """How the models of all slots came about; see ``WorkRunner``."""
        return sum((slot.loads for slot in self._slots), Loads())

    def run(self, works: Sequence[Work]) -> Generator[FinishedUnit | FailedWork, None, None]:
        """Answer all units of all works; see ``WorkRunner``."""
        short: list[Work] = []  # of memory
        done: dict[int, list[Unit]] = {}
        with closing(self._run_once(works, slots=self.jobs)) as events:
            for event in events:
                if self._may_do_alone(event):
                    short += [event.work] * (event.work not in short)
                    continue
                if isinstance(event, FinishedUnit):
                    done.setdefault(id(event.work), []).append(event.answer.unit)
                yield event
        for work in short:
            yield from self._run_alone(work, done.get(id(work), ()))

    def ask(self, source: ModelSource, question: Callable[[Scorer], Reply]) -> Reply:
        """Load a model and ask it something; see ``WorkRunner``."""
        try:
            return self._ask_somewhere(source, question)
        except EvalguardError as error:
            if not self._had_company(error):
                raise
        self._release()
        reply = self._ask_somewhere(source, question)
        self._note_crowded(source)
        return reply

    def lend(self, scorer: Scorer | None) -> None:
        """Have the first slot use a model that is open already; see ``WorkerSlot``."""
        self._slots[0].lend(scorer)

    def close(self) -> None:
        """End all processes; see ``WorkRunner``."""
        for slot in self._slots:
            slot.stop()
        for slot in self._slots:
            slot.thread.join(_STOP_SECONDS)
        self._kill(self._slots)

    def _run_alone(
        self, work: Work, done: Sequence[Unit]
    ) -> Generator[FinishedUnit | FailedWork, None, None]:
        rest = replace(work, units=tuple(unit for unit in work.units if unit not in done))
        failed = False
        self._release()
        with closing(self._run_once([rest], slots=1)) as events:
            for event in events:
                failed |= isinstance(event, FailedWork) or _shrank_batches(event)
                yield replace(event, work=work)
        if not failed:
            self._note_crowded(work.source)

    def _may_do_alone(self, event: FinishedUnit | FailedWork) -> bool:
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
        self, works: Sequence[Work], *, slots: int
    ) -> Generator[FinishedUnit | FailedWork, None, None]:
        """Answer all units of all works by the first slots, whatever fails."""
        out: SimpleQueue[SlotEvent] = SimpleQueue()
        placed = [slot for slot in self._slots if not slot.has_no_place]
        busy_slots = placed[: max(1, min(slots, sum(len(w.units) for w in works)))]
        schedule = WorkSchedule(
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
        *earlier, last = [slot for slot in self._slots if not slot.has_no_place]
        for slot in earlier:
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
                        where = stuck_workers_of([slot.thread])
                        slot.overdue += f", in {where}" if where else ""
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

    def _learn(self, done: FinishedUnit | FailedWork) -> None:
        if isinstance(done, FailedWork):
            return
        self._scoring = done.seconds
        self._loading = done.loading or self._loading
        self._longest_load = max(self._longest_load, done.loading)
        per_document = done.seconds / len(done.answer.unit.block.doc_ids)
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


def _shrank_batches(done: FinishedUnit) -> bool:
    """Whether a model took to smaller batches than all are scored in, for want of memory."""
    policy = done.work.source.policy
    if policy is None:
        return False
    try:
        check_batches(policy, done.description)
    except Untestable as refusal:
        return refusal.kind == "out_of_memory"
    return False


class SlotAnswers:
    """Answers to units of one model that slots are at, each kept as it comes in.

    Args:
        pool: its slots; the first one uses the open model where that is loaded.
        model: the open model, of which all others have to be bit for bit the same.
        work: its units, in batches that all slots share.
        store: where answers are kept.
    """

    def __init__(self, pool: WorkerPool, model: LoadedModel, work: Work, store: BlockStore) -> None:
        self._pool = pool
        self._model = model
        self._work = work
        self._store = store
        self._key = store.key(model.scorer)
        self._out = {unit.block.digest for unit in work.units}
        self._arrived: dict[str, UnitAnswer] = {}
        pool.lend(model.scorer if is_loaded(model.scorer) else None)
        self._events = pool.run([work])

    def answer(self, unit: Unit) -> UnitAnswer | None:
        """Wait for the answer to a unit; None where no slot is at it.

        Raises:
            EvaluationError: the model cannot be loaded or asked; or an actor's machine gives it
                another identity than the one where it was loaded first.
        """
        while unit.block.digest in self._out:
            self._take_next()
        answer = self._arrived.pop(unit.block.digest, None)
        if answer is not None and isinstance(self._model.scorer, LazyScorer):
            self._model.scorer.from_cache.add(unit.block.digest)
        return answer

    def finish(self) -> None:
        """Wait until no slot is at anything: from then on the open model may be asked here."""
        while self._take_next():
            pass

    def stop(self) -> None:
        """End what is under way."""
        self._events.close()

    def close(self) -> None:
        """Let the slots be free for another model."""
        self.stop()
        self._pool.lend(None)

    def _take_next(self) -> bool:
        """Keep what comes next; False where nothing does."""
        event = next(self._events, None)
        if event is None:
            self._out.clear()
            return False
        if isinstance(event, FailedWork):
            if not isinstance(event.error, ReferencesGoneError):
                raise event.error
            self._events.close()  # what is left is measured here, without the references
            return True
        _check_alike(self._model.name, event.description, self._work.source.policy, self._key)
        self._store.keep(event.answer, self._key)
        digest = event.answer.unit.block.digest
        self._out.discard(digest)
        self._arrived[digest] = event.answer
        return True


class ClusterSlots:
    """Slots of a cluster, opened when there is something to answer.

    Args:
        options: with the cluster that is meant.
        cache_dir: of builds, digests and logs.
        say: takes what a person is to know.
    """

    def __init__(
        self, options: CompareOptions, cache_dir: Path, say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._cache_dir = cache_dir
        self._say = say
        self._pool: WorkerPool | None = None

    @property
    def places(self) -> int:
        """How many actors there are to be; the cluster is connected for that."""
        return open_cluster(RayPlan.parse(self._options.execution)).actors

    def begin(self, model: LoadedModel, units: Sequence[Unit], store: BlockStore) -> SlotAnswers:
        """Begin with units of a model that is open; its batches are all slots'."""
        source = model.source
        assert source is not None
        assert source.policy is not None
        ends = [model.scorer.describe()]
        policy = policy_for_ends(source.policy, ends, source.variant.model)
        work = Work(source=replace(source, policy=policy), units=tuple(units))
        if self._pool is None:
            self._pool = WorkerPool(
                # every work has a policy of its own
                lambda: ReusedModel(ScoringPolicy(), self._options, self._cache_dir),
                jobs=self.places,
                watch=self._options.timeout is None,
                recovers=True,
                say=self._say,
            )
        self._say(f"{model.name}: {len(units):,} blocks on {self._pool.jobs} Ray actors")
        return SlotAnswers(self._pool, model, work, store)

    def close(self) -> None:
        """End the actors. May be called twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _check_alike(
    name: str, found: ModelDescription, policy: ScoringPolicy | None, key: str | None
) -> None:
    """Refuse scores of other batches, another device, library or file than the model has."""
    assert policy is not None
    try:
        check_batches(policy, found)
    except Untestable as refusal:
        raise EvaluationError(f"{name} on an actor: {refusal}", hint=refusal.hint) from refusal
    if found.identity is None or digest_of(dict(found.identity)) != key:
        raise EvaluationError(
            f"an actor's {name} is not the model that was loaded first: the machines of the "
            "cluster differ in hardware, packages, files or threads",
            hint="run on machines of one kind, with the same packages and the same model files",
        )
