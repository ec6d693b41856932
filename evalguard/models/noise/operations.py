"""What noise is measured of: an operation by name and sizes, or a model in a folder."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.tensors.precision_vote import round_integer
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.models.quiet_libraries import silence_libraries

if TYPE_CHECKING:
    import torch

_TOKENS = 64  # length of the random text that a model reads
_FORM = "an operation such as linear:64x32x64, or a model folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSubject:
    """A computation: ``make(seed)`` gives a module in float32 and an input of one row."""

    name: str
    make: Callable[[int], tuple[torch.nn.Module, torch.Tensor]]


def find_subject(text: str) -> NoiseSubject:
    """Return the subject of a name: ``linear:64x32x64``, or a folder.

    Raises:
        UsageError: neither.
    """
    name, _, sizes = text.partition(":")
    if name in _OPERATIONS:
        make, default = _OPERATIONS[name]
        numbers = sizes or default
        if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*", numbers):
            raise UsageError(f"'{sizes}' is not sizes such as {default}", hint=f"name {_FORM}")
        parsed = [int(size) for size in numbers.split("x")]
        if len(parsed) < default.count("x") + 1:
            raise UsageError(
                f"{name} needs sizes such as {default}, got {numbers}", hint=f"name {_FORM}"
            )
        return NoiseSubject(name=f"{name}:{numbers}", make=partial(make, parsed))
    if Path(text).is_dir():
        return NoiseSubject(name=text, make=_Model(text).make)
    near = nearest(name, _OPERATIONS)
    raise UsageError(
        f"there is no operation and no model folder '{text}'{near}",
        hint=f"name {_FORM}; operations: {', '.join(_OPERATIONS)}",
    )


def _linear(sizes: list[int], seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """Build a chain of linear layers, as in the toy models of quantisation tests."""
    import torch

    torch.manual_seed(seed)
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    return torch.nn.Sequential(*layers), torch.randn(1, sizes[0])


def _int8_linear(sizes: list[int], seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """Build the same with int8 weights, one scale a row (weight-only quantisation)."""
    module, values = _linear(sizes, seed)
    return round_weights(module, partial(round_integer, bits=8)), values


def _layer_norm(sizes: list[int], seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    import torch

    torch.manual_seed(seed)
    return torch.nn.LayerNorm(sizes[0]), torch.randn(1, sizes[0])


def _softmax(sizes: list[int], seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Softmax(dim=-1), torch.randn(1, sizes[0])


def _gelu(sizes: list[int], seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    import torch

    torch.manual_seed(seed)
    return torch.nn.GELU(), torch.randn(1, sizes[0])


def _conv(sizes: list[int], seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """Build a convolution of channels x width over 16 places more."""
    import torch

    torch.manual_seed(seed)
    channels, width = sizes[0], sizes[1]
    return torch.nn.Conv1d(channels, channels, width), torch.randn(1, channels, width + 16)


def _attention(sizes: list[int], seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """Build self-attention of width x heads over 32 tokens."""
    import torch

    class _SelfAttention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projections = torch.nn.Linear(sizes[0], 3 * sizes[0])
            self.output = torch.nn.Linear(sizes[0], sizes[0])

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            rows = self.projections(values).unflatten(-1, (3, sizes[1], -1))
            query, key, value = (one.transpose(1, 2) for one in rows.unbind(2))
            mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            found: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
            return found

    torch.manual_seed(seed)
    if sizes[0] % sizes[1]:
        raise UsageError(
            f"a width of {sizes[0]} is not {sizes[1]} heads of one size",
            hint="attention:WIDTHxHEADS, such as attention:64x4",
        )
    return _SelfAttention().eval(), torch.randn(1, 32, sizes[0])


_OPERATIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "linear": (_linear, "64x32x64"),
    "int8-linear": (_int8_linear, "64x32x64"),
    "layer-norm": (_layer_norm, "768"),
    "softmax": (_softmax, "512"),
    "gelu": (_gelu, "4096"),
    "conv": (_conv, "64x10"),
    "attention": (_attention, "64x4"),
}


class _Model:
    """A model, loaded once, that reads another random text for each seed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._module: torch.nn.Module | None = None

    def make(self, seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
        """Return the model with its last states or logits as output, and token ids."""
        import torch

        if self._module is None:
            self._module = self._load()
        torch.manual_seed(seed)
        size = int(getattr(self._module, "vocabulary"))  # noqa: B009 - a Module types it as one
        return self._module, torch.randint(size, (1, _TOKENS))

    def _load(self) -> torch.nn.Module:
        import torch
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

        class _Output(torch.nn.Module):
            def __init__(self, model: torch.nn.Module, vocabulary: int) -> None:
                super().__init__()
                self.model = model
                self.vocabulary = vocabulary

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = self.model(input_ids=ids)[0]
                return found

        try:
            with silence_libraries():
                config = AutoConfig.from_pretrained(self._folder)
                named = " ".join(config.architectures or ())
                kind = AutoModelForCausalLM if "CausalLM" in named or "LMHead" in named else None
                loader: Any = kind or AutoModel
                model = loader.from_pretrained(
                    self._folder, dtype=torch.float32, use_safetensors=True
                )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise EvaluationError(
                f"{self._folder} cannot be loaded: {' '.join(str(error).split())[:300]}",
                hint="name a folder with a transformers model in safetensors",
            ) from error
        size = getattr(config.get_text_config(), "vocab_size", None)
        if not size:
            raise EvaluationError(
                f"{self._folder} reads no tokens, so no text can be made up for it",
                hint="measure an operation: evalguard tensors --calibrate attention",
            )
        model.config.use_cache = False
        return _Output(model.eval(), int(size))


def round_weights(module: torch.nn.Module, rounding: Callable[[Any], Any]) -> torch.nn.Module:
    """Return a copy whose matrices are rounded; of embeddings and vectors nothing is."""
    import torch

    rounded = copy.deepcopy(module)
    for layer in rounded.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(layer, torch.nn.Embedding) or weight is None or weight.ndim < 2:
            continue
        matrix = weight.detach().reshape(weight.shape[0], -1)
        values = torch.from_numpy(rounding(matrix.numpy())).reshape(weight.shape)
        weight.data = values.to(weight.dtype)
    return rounded
