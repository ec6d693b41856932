"""RoomyRunner: what memory ran out for is asked once more, with nothing beside it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from evalguard.bisect import Untestable
from evalguard.bisect_report import Loads
from evalguard.errors import EvalguardError
from evalguard.harness import Block
from evalguard.pipeline.bisection.batches import check_batches
from evalguard.pipeline.bisection.local_runner import LocalRunner
from evalguard.pipeline.bisection.refusals import ran_out_of_memory, was_killed
from evalguard.pipeline.bisection.runner import Done, Failed, Found, Work
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Scorer


@dataclass(slots=True, kw_only=True)
class RoomyRunner:
    """Lanes, of which one goes on alone where memory does not hold several models.

    Models side by side share a machine's memory, and who gets none of it, or is killed for it, is
    whoever asked last: that says nothing about its settings, and nor does a worker that is killed
    from outside. What fails once more, alone, does so for reasons of its own.
    """

    lanes: LocalRunner
    say: Callable[[str], None]
    _crowded: bool = field(default=False)  # memory was seen to hold fewer models than there are

    @property
    def jobs(self) -> int:
        """How many units run at the same time."""
        return 1 if self._crowded else self.lanes.jobs

    @property
    def loads(self) -> Loads:
        """How the models came about so far."""
        return self.lanes.loads

    def run(self, works: Sequence[Work]) -> Generator[Done | Failed, None, None]:
        """Answer all blocks of all works; see ``Runner``."""
        short: list[Work] = []  # of memory
        done: dict[int, list[Block]] = {}
        with closing(self.lanes.run(works, alone=self._crowded)) as events:
            for event in events:
                if self._may_do_alone(event):
                    short += [event.work] * (event.work not in short)
                    continue
                if isinstance(event, Done):
                    done.setdefault(id(event.work), []).append(event.block)
                yield event
        for work in short:
            yield from self._again(work, done.get(id(work), ()))

    def ask(self, source: ModelSource, question: Callable[[Scorer], Found]) -> Found:
        """Load a model and ask it something; see ``Runner``."""
        try:
            return self.lanes.ask(source, question)
        except EvalguardError as error:
            if not self._had_company(error):
                raise
        self.lanes.release()
        found = self.lanes.ask(source, question)
        self._learn(source)
        return found

    def close(self) -> None:
        """End all processes; see ``Runner``."""
        self.lanes.close()

    def _again(self, work: Work, done: Sequence[Block]) -> Generator[Done | Failed, None, None]:
        left = replace(work, blocks=tuple(one for one in work.blocks if one not in done))
        failed = False
        self.lanes.release()
        with closing(self.lanes.run([left], alone=True)) as events:
            for event in events:
                failed |= isinstance(event, Failed) or _in_smaller_batches(event)
                yield replace(event, work=work)
        if not failed:
            self._learn(work.source)

    def _may_do_alone(self, event: Done | Failed) -> bool:
        if isinstance(event, Failed):
            return self._had_company(event.error)
        return self.jobs > 1 and _in_smaller_batches(event)

    def _had_company(self, error: EvalguardError) -> bool:
        """Whether memory ran out for a reason that may be gone when nothing runs beside it."""
        return was_killed(error) or (self.jobs > 1 and ran_out_of_memory(error))

    def _learn(self, source: ModelSource) -> None:
        """It runs alone: so do all others from now on."""
        if self.jobs > 1:
            self._crowded = True
            self.say(
                "memory ran out, or a worker was killed, while several models were asked, and "
                f"{source.name} runs alone: from now on one model is asked at a time"
            )


def _in_smaller_batches(done: Done) -> bool:
    """Whether a model took to smaller batches than all are scored in, for want of memory."""
    policy = done.work.source.policy
    if policy is None:
        return False
    try:
        check_batches(policy, done.description)
    except Untestable as refusal:
        return refusal.kind == "out_of_memory"
    return False
