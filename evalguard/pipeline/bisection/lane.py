"""Lane: one thread that owns one model at a time, in a worker process of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol, cast

from evalguard.bisect_report import Loads
from evalguard.errors import EvalguardError, EvaluationError, WorkerError
from evalguard.harness import Block
from evalguard.pipeline.bisection.runner import Done, Failed, Work
from evalguard.pipeline.bisection.schedule import Schedule
from evalguard.pipeline.places import placed
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Compared, DistributionScorer, Response, Scorer

Event = Done | Failed | BaseException | None


class Reusable(Protocol):
    """A model that becomes another one, as ``ReusedModel``."""

    @property
    def loads(self) -> Loads:
        """How often it became one, in which way."""

    def at(self, source: ModelSource) -> Scorer:
        """Be this model; where that fails, the next one is not affected."""

    def close(self) -> None:
        """Release it; it may be used again."""


class Lane:
    """Loads and scores in a thread of its own, so that lanes wait for their workers side by side.

    Attributes:
        since: when what is under way began (``time.monotonic``); 0 where nothing is.
        documents: of the block that is under way; 0 while a model is loaded.
        loading: seconds that the last model that was asked something took to load.
        overdue: why its worker is ended: it took too long; "" where it is not.
    """

    def __init__(self, number: int, opened: Callable[[], Reusable]) -> None:
        self.since = 0.0
        self.documents = 0
        self.loading = 0.0
        self.overdue = ""
        self._opened = opened
        self._model: Reusable | None = None
        self._loaded: ModelSource | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"probe {number}", daemon=True)
        self.thread.start()

    @property
    def loads(self) -> Loads:
        """How its models came about."""
        return Loads() if self._model is None else self._model.loads

    def drain(self, schedule: Schedule, out: SimpleQueue[Event]) -> None:
        """Begin to take blocks from a schedule; None goes out when nothing is left for this one."""
        self._jobs.put(lambda: self._drain(schedule, out))

    def ask(
        self, source: ModelSource, question: Callable[[Scorer], None], out: SimpleQueue[Event]
    ) -> None:
        """Ask a model something; None goes out when it has answered, or what it raised."""
        self._jobs.put(lambda: self._ask(source, question, out))

    def release(self, out: SimpleQueue[Event]) -> None:
        """Let go of the model, if it has one; None goes out when it is gone."""
        self._jobs.put(lambda: self._release(out))

    def stop(self) -> None:
        """Release the model and end the thread, as soon as what is under way has ended."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        self._drop()

    def _drain(self, schedule: Schedule, out: SimpleQueue[Event]) -> None:
        before: Work | None = None
        while (taken := schedule.take(self._loaded, before)) is not None:
            before, block = taken
            done = self._one(before, block)
            if isinstance(done, Failed):
                schedule.drop(before)
            out.put(done)
        out.put(None)

    def _ask(
        self, source: ModelSource, question: Callable[[Scorer], None], out: SimpleQueue[Event]
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
            out.put(self._told(error, took) if self.overdue else error)
        else:
            out.put(None)
        self.since = 0.0

    def _release(self, out: SimpleQueue[Event]) -> None:
        self._drop()
        out.put(None)

    def _one(self, work: Work, block: Block) -> Done | Failed:
        started, loading, loaded = time.monotonic(), 0.0, False
        try:
            there = self._loaded is work.source
            scorer = self._at(work.source)
            loading = 0.0 if there else time.monotonic() - started
            loaded, self.documents, self.since = True, len(block.doc_ids), time.monotonic()
            responses, compared = _answered(scorer, work, block)
            return Done(
                work=work,
                block=block,
                responses=responses,
                compared=compared,
                description=scorer.describe(),
                seconds=time.monotonic() - self.since,
                loading=loading,
            )
        except BaseException as error:  # noqa: BLE001  a thread that dies would be waited for
            if loaded:
                self._drop()
            took = time.monotonic() - started
            told = self._told(error, took)
            return Failed(work=work, error=told, loaded=loaded, seconds=took)
        finally:
            self.since = 0.0

    def _told(self, error: BaseException, took: float) -> EvalguardError:
        if self.overdue:
            why, self.overdue = self.overdue, ""
            late = f"gave no answer within {took:.0f} s, {why}"
            return WorkerError(late, cause="late", hint="--timeout SECONDS allows it more time")
        return error if isinstance(error, EvalguardError) else _unexpected(error)

    def _at(self, source: ModelSource) -> Scorer:
        self.overdue = ""  # what came before may have ended by itself just in time
        self.documents, self.since = 0, time.monotonic()
        if self._model is None:
            self._model = self._opened()
        self._loaded = None
        with placed(source):
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


def _answered(
    scorer: Scorer, work: Work, block: Block
) -> tuple[Sequence[Response], Compared | None]:
    if work.beside is None:
        return scorer.score(block.requests), None
    # Whoever shows no distributions says so.
    showing = cast(DistributionScorer, scorer)
    return showing.score_against(block.requests, work.beside(block))


def _unexpected(error: BaseException) -> EvaluationError:
    return EvaluationError(f"{type(error).__name__}: {error}")
