"""A torch model in a process of its own, as a side of a trace: code that it brings stays there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.core.scorer import ModelDescription, Request, Response
from evalguard.core.tracing.hyperparameters import HeldValue
from evalguard.core.tracing.other_process import (
    EncodedRequest,
    LinearCall,
    ModelOutline,
    OutlineCall,
    PaddingCall,
    PaddingFound,
    PassCall,
    PassFound,
    TraceSupport,
)
from evalguard.run.sources import ModelSource
from evalguard.run.tracing.sides import TracedSide, open_torch_side
from evalguard.worker.messages import Load

if TYPE_CHECKING:
    from evalguard.models.tracing.outline import PassRunner

# In the process of the model.


def load_traced(load: Load) -> TracedModel:
    """Load a variant in this process, to be traced from another one.

    Raises:
        UsageError, SettingError, BuildError, EvaluationError: as loading it to score it does.
    """
    from evalguard.models.tracing.outline import PassRunner

    source = ModelSource(name=load.variant.name, variant=load.variant)
    side = open_torch_side(source, load.policy, cache_dir=Path(load.cache_dir))
    assert side.module is not None
    return TracedModel(side, PassRunner(side.module))


@dataclass(slots=True)
class TracedModel:
    """A loaded side of a trace, asked from another process (``TracedScorer``)."""

    side: TracedSide
    passes: PassRunner

    def describe(self) -> ModelDescription:
        """Return what was loaded."""
        assert self.side.description is not None
        return self.side.description

    def trace_support(self) -> TraceSupport:
        """What it is, and can be asked for."""
        from evalguard.models.tracing.weights import computing_dtype

        return TraceSupport(
            kind=type(self.passes.model).__name__,
            computes_in=computing_dtype(self.passes.model),
            max_length=self.side.max_length,
            reads_text=self.side.encode is not None,
            renders_chat=self.side.render_chat is not None,
            locates_padding=self.side.locate_padding is not None,
        )

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as it holds them."""
        return self.side.held()

    def encode_traced(self, request: Request) -> EncodedRequest:
        """A request as it reads it."""
        assert self.side.encode is not None
        inputs, was_cut = self.side.encode(request)
        return EncodedRequest(inputs=inputs, was_cut=was_cut)

    def outline(self, call: OutlineCall) -> ModelOutline:
        """Say what it is made of."""
        from evalguard.models.tracing.outline import write_outline

        return write_outline(self.passes.model, call)

    def read_linear(self, call: LinearCall) -> bool:
        """Read a matrix; False where the module is not called as a linear one is."""
        from evalguard.models.tracing.outline import write_linear

        return write_linear(self.passes.model, call)

    def run_traced(self, call: PassCall) -> PassFound | None:
        """Run a sequence; None where the pass goes on."""
        return self.passes.run(call)

    def locate_padding(self, call: PaddingCall) -> PaddingFound:
        """Find where padding enters what it computes."""
        assert self.side.locate_padding is not None
        module, error = self.side.locate_padding(call.ids)
        return PaddingFound(module=module, error=error)

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Nothing: it is asked for its inputs as a side of a trace."""
        return [() for _ in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Never: it is not loaded to be scored."""
        raise NotImplementedError(f"{len(requests)} requests to a model that is traced")

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation."""
        assert self.side.render_chat is not None
        return self.side.render_chat(messages, add_generation_prompt)

    def close(self) -> None:
        """Release the model. May be called twice."""
        self.side.close()
