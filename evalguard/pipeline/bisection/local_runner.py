"""LocalRunner: probes in worker processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from queue import Empty, SimpleQueue

from evalguard.bisect_report import Loads
from evalguard.execution import kill_workers_of, stuck_workers_of
from evalguard.pipeline.bisection.lane import Event, Lane, Reusable
from evalguard.pipeline.bisection.runner import Done, Failed, Found, Work
from evalguard.pipeline.bisection.schedule import Schedule
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Scorer

_LOOK = 0.5  # seconds between two looks at who is late
_GRACE = 10.0  # seconds that a lane whose worker was ended may take to notice
# A probe may take this many times as long as anything before it, and never less than the seconds.
_TIMES, _LEAST = 20.0, 600.0
_UNKNOWN = 3600.0  # seconds: where nothing before it says how long one takes


class LocalRunner:
    """Some lanes, each with a worker process that stays between probes.

    Args:
        opened: makes the model of a lane.
        jobs: number of lanes.
        watch: whether to end probes that take far longer than those before them; not where the
            user gave a limit, which the workers keep by themselves.
    """

    def __init__(
        self, opened: Callable[[], Reusable], *, jobs: int = 1, watch: bool = True
    ) -> None:
        self.jobs = jobs
        self._lanes = [Lane(number + 1, opened) for number in range(jobs)]
        self._watch = watch
        self._longest_load = self._longest_document = 0.0
        self._loading = self._scoring = 0.0

    @property
    def loads(self) -> Loads:
        """How the models of all lanes came about; see ``Runner``."""
        return sum((lane.loads for lane in self._lanes), Loads())

    def run(
        self, works: Sequence[Work], *, alone: bool = False
    ) -> Generator[Done | Failed, None, None]:
        """Answer all blocks of all works; see ``Runner``.

        Args:
            alone: by the first lane only.
        """
        out: SimpleQueue[Event] = SimpleQueue()
        schedule = Schedule(works, loading=self._loading, scoring=self._scoring)
        most = 1 if alone else len(self._lanes)
        lanes = self._lanes[: max(1, min(most, sum(len(w.blocks) for w in works)))]
        for lane in lanes:
            lane.drain(schedule, out)
        busy = len(lanes)
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

    def ask(self, source: ModelSource, question: Callable[[Scorer], Found]) -> Found:
        """Load a model and ask it something; see ``Runner``."""
        answers: list[Found] = []
        out: SimpleQueue[Event] = SimpleQueue()
        self._lanes[0].ask(source, lambda scorer: answers.append(question(scorer)), out)
        busy = 1
        try:
            event = self._next(out)
            busy = 0
        finally:
            if busy:
                self._end(out, busy)
        if isinstance(event, BaseException):
            raise event
        self._longest_load = max(self._longest_load, self._lanes[0].loading)
        return answers[0]

    def release(self) -> None:
        """Let go of the models of all lanes, and wait until they are gone; used between runs."""
        out: SimpleQueue[Event] = SimpleQueue()
        for lane in self._lanes:
            lane.release(out)
        for _ in self._lanes:
            self._next(out)

    def close(self) -> None:
        """End all processes; see ``Runner``."""
        for lane in self._lanes:
            lane.stop()
        for lane in self._lanes:
            lane.thread.join(_GRACE)
        self._kill(self._lanes)

    def _next(self, out: SimpleQueue[Event]) -> Event:
        """Wait for what comes next; meanwhile end probes that are far too late."""
        while True:
            try:
                return out.get(timeout=_LOOK)
            except Empty:
                for lane in self._lanes:
                    if why := self._late(lane):
                        lane.overdue = why
                        place = stuck_workers_of([lane.thread])
                        lane.overdue += f", in {place}" if place else ""
                        self._kill([lane])

    def _late(self, lane: Lane) -> str:
        """Why a lane has taken too long; "" where it has not."""
        since, documents = lane.since, lane.documents
        if not (self._watch and since):
            return ""
        known = self._longest_document * documents if documents else self._longest_load
        patience = max(_LEAST, _TIMES * known) if known else _UNKNOWN
        if time.monotonic() - since <= patience:
            return ""
        if known:
            return "far longer than any probe before it"
        return "and none before it says how long one takes"

    def _learn(self, done: Done | Failed) -> None:
        if isinstance(done, Failed):
            return
        self._scoring = done.seconds
        self._loading = done.loading or self._loading
        self._longest_load = max(self._longest_load, done.loading)
        per_document = done.seconds / len(done.block.doc_ids)
        self._longest_document = max(self._longest_document, per_document)

    def _end(self, out: SimpleQueue[Event], busy: int) -> None:
        """End what is under way, and wait until the lanes have noticed."""
        until = time.monotonic() + _GRACE
        while busy and time.monotonic() < until:
            self._kill(self._lanes)
            try:
                busy -= out.get(timeout=0.1) is None
            except Empty:
                continue

    @staticmethod
    def _kill(lanes: Sequence[Lane]) -> None:
        kill_workers_of([lane.thread for lane in lanes])
