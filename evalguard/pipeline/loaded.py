"""Loaded: both models in memory, or taking turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from evalguard.models.memory import checkpoint_bytes, fits, weight_bytes
from evalguard.pipeline.lazy_scorer import is_loaded
from evalguard.pipeline.sessions import Session, Sessions
from evalguard.pipeline.sources import ModelSource

Beside = TypeVar("Beside")


@dataclass(slots=True)
class Loaded:
    """The models of a run that asks them several times.

    Attributes:
        open: those that stay in memory; empty where the models take turns.
    """

    sessions: Sessions
    models: Sequence[ModelSource]
    open: list[Session]
    _released: int = 0

    @property
    def taking_turns(self) -> bool:
        """Whether only one model is in memory at a time."""
        return not self.open

    @property
    def loads(self) -> int:
        """How often a model was loaded so far; one whose answers are all kept is not."""
        return self._released + sum(is_loaded(session.scorer) for session in self.open)

    def each(self, beside: Sequence[Beside]) -> Iterator[tuple[Beside, Session]]:
        """Every model while it is loaded, with what belongs to it."""
        if self.open:
            yield from zip(beside, self.open, strict=True)
            return
        for model, own in zip(self.models, beside, strict=True):
            with self.sessions.opened(model) as session:
                yield own, session
                self._released += is_loaded(session.scorer)

    def take_turns(self) -> None:
        """Let no model stay in memory; those that are open have been released."""
        self._released = self.loads
        self.open.clear()


@contextmanager
def loaded_together(sessions: Sessions, models: Sequence[ModelSource]) -> Iterator[Loaded]:
    """Load one or two models; where the second is not to be beside the first, none stays."""
    with ExitStack() as stack:
        first = stack.enter_context(sessions.opened(models[0]))
        loaded = Loaded(sessions, models, [first])
        if len(models) > 1 and beside(sessions, first, models[1]):
            loaded.open.append(stack.enter_context(sessions.opened(models[1])))
        elif len(models) > 1:
            stack.close()
            loaded.take_turns()
        yield loaded


def beside(sessions: Sessions, first: Session, other: ModelSource) -> bool:
    """Whether another model is to be loaded beside a first one."""
    memory = sessions.choices.memory
    return memory == "lockstep" or (memory == "auto" and room_beside(first, other))


def room_beside(first: Session, other: ModelSource) -> bool:
    """Whether another model fits beside a first one, be that loaded or to be loaded."""
    told = first.scorer.describe()
    own = weight_bytes(told.parameters, told.dtype)
    needed = max(own, checkpoint_bytes(other.variant.model_args.get("pretrained")))
    return fits(needed + (0 if is_loaded(first.scorer) else own), told.device)
