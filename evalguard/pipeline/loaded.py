"""Loaded: both models in memory, or taking turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from evalguard.models.memory import checkpoint_bytes, fits, weight_bytes
from evalguard.pipeline.sessions import Session, Sessions
from evalguard.pipeline.sources import ModelSource

Beside = TypeVar("Beside")


@dataclass(slots=True)
class Loaded:
    """The models of a run that asks them several times.

    Attributes:
        open: those that stay in memory; empty where the models take turns.
        loads: how often a model was loaded so far.
    """

    sessions: Sessions
    models: Sequence[ModelSource]
    open: list[Session]
    loads: int = 0

    @property
    def taking_turns(self) -> bool:
        """Whether only one model is in memory at a time."""
        return not self.open

    def each(self, beside: Sequence[Beside]) -> Iterator[tuple[Beside, Session]]:
        """Every model while it is loaded, with what belongs to it."""
        if self.open:
            yield from zip(beside, self.open, strict=True)
            return
        for model, own in zip(self.models, beside, strict=True):
            with self.sessions.opened(model) as session:
                self.loads += 1
                yield own, session


@contextmanager
def loaded_together(sessions: Sessions, models: Sequence[ModelSource]) -> Iterator[Loaded]:
    """Load one or two models; where there is no room for the second, none stays in memory."""
    with ExitStack() as stack:
        first = stack.enter_context(sessions.opened(models[0]))
        loaded = Loaded(sessions, models, [first], loads=1)
        if len(models) > 1 and room_beside(first, models[1]):
            loaded.open.append(stack.enter_context(sessions.opened(models[1])))
            loaded.loads += 1
        elif len(models) > 1:
            stack.close()
            loaded.open.clear()
        yield loaded


def room_beside(first: Session, other: ModelSource) -> bool:
    """Whether another model fits beside a loaded one."""
    told = first.scorer.describe()
    needed = max(
        weight_bytes(told.parameters, told.dtype),
        checkpoint_bytes(other.variant.model_args.get("pretrained")),
    )
    return fits(needed, told.device)
