"""A tiny Llama, candidates made from it, and activations recorded of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from evalguard.core.trace_points import ModelInputs, ModelRounding, token_inputs
from evalguard.tracing.measure.module_hooks import PointEvent, run_pass


def make_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.15,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()


def make_sequences(count: int = 2, length: int = 8, vocabulary: int = 64) -> list[ModelInputs]:
    rng = np.random.default_rng(0)
    return [token_inputs(rng.integers(0, vocabulary, length).tolist()) for _ in range(count)]


def changed(model: Any, change: Callable[[Any], object], dtype: torch.dtype | None = None) -> Any:
    """A copy with a change, its parameters in another dtype."""
    candidate = copy.deepcopy(model)
    if dtype is not None:
        for parameter in candidate.parameters():
            parameter.data = parameter.data.to(dtype)
    with torch.no_grad():
        change(candidate)
    return candidate


UNKNOWN = ModelRounding()


@dataclass
class Recording:
    """Activations of a model under their own names, those that ``keep`` wants."""

    rounding: ModelRounding = UNKNOWN
    values: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        sequences: Sequence[ModelInputs],
        *,
        rounding: ModelRounding = UNKNOWN,
        keep: Callable[[str], bool] = lambda _name: True,
    ) -> Recording:
        recording = cls(rounding)
        for inputs in sequences:
            values: dict[str, NDArray[Any]] = {}

            def visit(event: PointEvent, value: torch.Tensor, to: Any = values) -> None:
                if keep(event.name):
                    to[event.name] = value.detach().float().numpy().copy()

            run_pass(model, inputs, visit)
            recording.values.append(values)
        return recording

    @property
    def inputs_known(self) -> bool:
        return True

    def names(self, sequence: int) -> Sequence[str]:
        return list(self.values[sequence])

    def read(self, sequence: int, point: str) -> NDArray[Any]:
        return self.values[sequence][point]
