"""Both models in memory, or taking turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from evalguard.engine.kept_blocks import LoadedModel
from evalguard.engine.loading.lazy_scorer import is_loaded
from evalguard.engine.memory_policy import MemoryPolicy
from evalguard.engine.run_context import RunContext
from evalguard.engine.sources import ModelSource

PerModel = TypeVar("PerModel")


@dataclass(slots=True)
class LoadedModels:
    """The models of a run that asks them several times.

    Attributes:
        open: those that stay in memory; empty where the models take turns.
    """

    context: RunContext
    models: Sequence[ModelSource]
    open: list[LoadedModel]
    _released: int = 0

    @property
    def taking_turns(self) -> bool:
        """Whether only one model is in memory at a time."""
        return not self.open

    @property
    def loads(self) -> int:
        """How often a model was loaded so far; one whose answers are all kept is not."""
        return self._released + sum(is_loaded(model.scorer) for model in self.open)

    def each(self, beside: Sequence[PerModel]) -> Iterator[tuple[PerModel, LoadedModel]]:
        """Every model while it is loaded, with what belongs to it."""
        if self.open:
            yield from zip(beside, self.open, strict=True)
            return
        for source, own in zip(self.models, beside, strict=True):
            with self.context.open_model(source) as model:
                yield own, model
                self._released += is_loaded(model.scorer)

    def take_turns(self) -> None:
        """Let no model stay in memory; those that are open have been released."""
        self._released = self.loads
        self.open.clear()


@contextmanager
def load_together(context: RunContext, models: Sequence[ModelSource]) -> Iterator[LoadedModels]:
    """Load one or two models; where the second is not to be beside the first, none stays."""
    with ExitStack() as stack:
        first = stack.enter_context(context.open_model(models[0]))
        loaded = LoadedModels(context, models, [first])
        if len(models) > 1 and is_loaded_beside(context, first, models[1]):
            loaded.open.append(stack.enter_context(context.open_model(models[1])))
        elif len(models) > 1:
            stack.close()
            loaded.take_turns()
        yield loaded


def is_loaded_beside(context: RunContext, first: LoadedModel, other: ModelSource) -> bool:
    """Whether another model is to be loaded beside a first one."""
    if context.actors is not None:
        return context.actors.places > 1
    loaded = is_loaded(first.scorer)
    told = first.scorer.describe()
    return MemoryPolicy(context.choices.memory).takes_beside(told, other.variant, loaded=loaded)
