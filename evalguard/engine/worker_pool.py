"""Works in worker processes, each with one model at a time.

What memory ran out for is run again alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from queue import Empty, SimpleQueue

from evalguard.core.question import Loads, Untestable
from evalguard.core.scorer import Scorer
from evalguard.engine.batches import check_batches
from evalguard.engine.memory import ran_out_of_memory, was_killed
from evalguard.engine.schedule import WorkSchedule
from evalguard.engine.sources import ModelSource
from evalguard.engine.work import FailedWork, FinishedUnit, Reply, Unit, Work
from evalguard.engine.worker_slot import SlotEvent, SwitchableModel, WorkerSlot
from evalguard.errors import EvalguardError, WorkerError
from evalguard.worker.process import kill_workers_of, stuck_workers_of

POLL_SECONDS = 0.5  # seconds between two looks at who is late
_STOP_SECONDS = 10.0  # seconds that a slot whose worker was ended may take to notice
# A probe may take this many times as long as anything before it, and never less than the seconds.
_TIMES, LEAST = 20.0, 600.0
UNKNOWN_PATIENCE = 3600.0  # seconds: where nothing before it says how long one takes


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
        found = self._ask_somewhere(source, question)
        self._note_crowded(source)
        return found

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
        left = replace(work, units=tuple(one for one in work.units if one not in done))
        failed = False
        self._release()
        with closing(self._run_once([left], slots=1)) as events:
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
