"""One thread that owns one model at a time, in a worker process of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from evalguard.core.question import Loads
from evalguard.core.scorer import Scorer
from evalguard.engine.error_places import with_location
from evalguard.engine.schedule import WorkSchedule
from evalguard.engine.sources import ModelSource
from evalguard.engine.work import FailedWork, FinishedUnit, Unit, Work, score_unit
from evalguard.errors import EvalguardError, EvaluationError, WorkerError

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
            told = self._as_error(error, took)
            return FailedWork(work=work, error=told, loaded=loaded, seconds=took)
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


def _unexpected_error(error: BaseException) -> EvaluationError:
    return EvaluationError(f"{type(error).__name__}: {error}")
