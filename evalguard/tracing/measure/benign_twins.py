"""Benign twins of a base: in another precision, with other weights, with other attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.trace_points import ROOT
from evalguard.core.weight_precision import EPSILON, OTHER, SAME, relative_error, round_weights
from evalguard.tracing.measure.weight_rounding import (
    WeightsCompared,
    count_axes,
    is_plain,
    pair_weights,
    plain_weights,
    stored_buffers,
    weights_beside,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

# Modules that compute with any float weight that is put in place of a quantised one.
_PLAIN_MODULES = ("Linear", "Embedding")
CONFIG = "config."  # begins the name of a number that the model's configuration holds


# Twins are made in place and undone: a copy of a module whose forward was replaced on the instance
# (by hooks, by patches) would still run the original's weights.


@contextmanager
def rounded_as_candidate(
    base: torch.nn.Module,
    candidate: torch.nn.Module,
    names: Mapping[str, str],
    compared: WeightsCompared,
    *,
    buffers: bool = False,
) -> Iterator[torch.nn.Module]:
    """Round the base's weights as the candidate's class does, and compute in its dtype.

    A weight that the candidate holds exactly as it is here too; all, where it has no class.

    Args:
        buffers: whether what is computed at construction (rotary frequencies, sines) is cast too
            where the candidate's is. Such a cast may be the very fault, so try without first.
    """
    import torch

    matched = {key: theirs for key, _, theirs in pair_weights(base, candidate, names)}
    with _left_as_it_was(base):
        for slot in _weight_slots(base):
            own, source = slot.values(), matched.get(slot.key)
            if own is None:
                continue
            theirs = None if source is None else source.read(own.shape)
            rule = compared.rule_of(slot.key, count_axes(own))
            if theirs is not None and theirs.shape != own.shape:
                theirs = None
            near = 0.0 if rule != OTHER else compared.own_error
            if theirs is not None and relative_error(own, theirs) <= near:
                values = theirs
            else:
                values = own if rule == OTHER else round_weights(own, rule)
            slot.fill(values)
        _cast(base, getattr(torch, compared.dtype))
        _round_buffers_alike(base, candidate, names, compared.dtype, tables=buffers)
        yield base


@contextmanager
def rounded_as(base: torch.nn.Module, name: str, *, inputs: str = "") -> Iterator[torch.nn.Module]:
    """Round all matrices of the base by a class's rule; where it is a dtype, compute in it.

    Args:
        inputs: the class by whose rule what linear modules read is rounded, too; "": none.
    """
    import torch

    with _left_as_it_was(base), _inputs_rounded(base, inputs):
        for slot in _weight_slots(base):
            own = slot.values()
            if own is not None and count_axes(own) > 1:
                slot.fill(round_weights(own, name))
        if name in EPSILON:
            _cast(base, getattr(torch, name))
        yield base


@contextmanager
def _inputs_rounded(model: torch.nn.Module, name: str) -> Iterator[None]:
    """Behind the hooks of a pass, which put a recorded input in the place of the module's own."""
    import torch

    linear = (
        [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)] if name else []
    )
    for module in linear:
        module.forward = partial(_multiply_rounded, module, name)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in linear:
            del module.forward


def _multiply_rounded(module: torch.nn.Linear, name: str, value: torch.Tensor) -> torch.Tensor:
    import torch

    rows = value.detach().float().cpu().numpy().reshape(-1, value.shape[-1])
    rounded = torch.from_numpy(np.array(round_weights(rows, name))).to(value)
    return type(module).forward(module, rounded.reshape(value.shape))


@contextmanager
def with_weights_of(
    base: torch.nn.Module,
    candidate: torch.nn.Module,
    names: Mapping[str, str],
    *,
    dtype: str,
    buffers: bool = False,
) -> Iterator[torch.nn.Module]:
    """Give the base the candidate's weights, in float32: what it should compute with them.

    Args:
        dtype: of the candidate's computation.
        buffers: as for ``rounded_as_candidate``.
    """
    import torch

    matched = {key: theirs for key, _, theirs in pair_weights(base, candidate, names)}
    with _left_as_it_was(base):
        _round_buffers_alike(base, candidate, names, dtype, tables=buffers)
        _cast_all(base, torch.float32)
        for slot in _weight_slots(base):
            if slot.key not in matched:
                continue
            theirs = weights_beside(slot.parameter, matched[slot.key])
            if theirs is not None and theirs.shape == slot.parameter.shape:
                slot.fill(theirs)
        for name, module in base.named_modules():
            for key, own in stored_buffers(module).items():
                source = matched.get((name or ROOT, key))
                theirs = None if source is None else source.read(own.shape)
                if theirs is not None and theirs.shape == own.shape:
                    module._buffers[key] = torch.from_numpy(np.array(theirs)).to(own.device)
        yield base


@contextmanager
def in_float32(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Compute in float32 with the weights and all buffers as they are."""
    import torch

    with _left_as_it_was(model):
        _cast_all(model, torch.float32)
        yield model


@contextmanager
def laid_out_as(
    base: torch.nn.Module, weights: Mapping[tuple[str, str], NDArray[np.float32]]
) -> Iterator[torch.nn.Module]:
    """Compute in float32 with some of the weights replaced, by the names of module and weight.

    Of no axes are numbers that modules hold beside their weights, or the model's configuration.
    """
    modules = {name or ROOT: module for name, module in base.named_modules()}
    numbers = []
    for (name, key), value in weights.items():
        holder: Any = modules[name].config if key.startswith(CONFIG) else modules[name]
        attribute = key.removeprefix(CONFIG)
        if not value.ndim and attribute not in getattr(holder, "_parameters", ()):
            numbers.append((holder, attribute, float(value)))
    with in_float32(base), _numbers_replaced(numbers):
        for slot in _weight_slots(base):
            if slot.key in weights:
                slot.fill(weights[slot.key])
        yield base


@contextmanager
def without_epsilons(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Compute with no norm's epsilon: then a factor before it is taken away to the last bit."""
    held = [
        (module, key, 0.0)
        for module in model.modules()
        for key, value in vars(module).items()
        if "eps" in key and isinstance(value, float)
    ]
    with _numbers_replaced(held):
        yield model


@contextmanager
def _numbers_replaced(numbers: Sequence[tuple[Any, str, float]]) -> Iterator[None]:
    """Set attributes (of modules, of a configuration) to other numbers, as what they are."""
    import torch

    held = [(holder, attribute, getattr(holder, attribute)) for holder, attribute, _ in numbers]
    try:
        for (holder, attribute, own), (_, _, number) in zip(held, numbers, strict=True):
            value = torch.full_like(own, number) if isinstance(own, torch.Tensor) else number
            # behind __setattr__, by which a configuration checks types
            (vars(holder) if attribute in vars(holder) else holder._buffers)[attribute] = value
        yield
    finally:
        for holder, attribute, own in held:
            (vars(holder) if attribute in vars(holder) else holder._buffers)[attribute] = own


@contextmanager
def with_attention(model: torch.nn.Module, implementation: str) -> Iterator[torch.nn.Module]:
    """Run a transformers model with another implementation of attention."""
    own, switch = attention_of(model), getattr(model, "set_attn_implementation", None)
    assert switch is not None
    switch(implementation)
    try:
        yield model
    finally:
        switch(own)


def attention_of(model: torch.nn.Module) -> str:
    """Name the implementation of attention; "" where there is no choice of it."""
    if not hasattr(model, "set_attn_implementation"):
        return ""
    return str(getattr(getattr(model, "config", None), "_attn_implementation", None) or "")


@dataclass(frozen=True, slots=True)
class _WeightSlot:
    """A parameter as one module holds it; one that several hold is parted where it must be."""

    key: tuple[str, str]
    module: torch.nn.Module
    parameter: torch.nn.Parameter
    first: bool
    before: torch.Tensor

    def values(self) -> NDArray[np.float32] | None:
        return plain_weights(self.before)

    def fill(self, values: NDArray[np.float32]) -> None:
        import torch

        like = self.parameter
        data = torch.from_numpy(np.array(values)).to(like.device, self.before.dtype)
        if self.first:
            like.data = data
        elif not torch.equal(like.data, data):
            self.module._parameters[self.key[1]] = torch.nn.Parameter(data, requires_grad=False)


def _weight_slots(model: torch.nn.Module) -> list[_WeightSlot]:
    """Give every place of every parameter, with what it holds now."""
    seen: set[int] = set()
    slots = []
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                first = id(parameter) not in seen
                seen.add(id(parameter))
                where = (name or ROOT, key)
                slots.append(_WeightSlot(where, module, parameter, first, parameter.data))
    return slots


@contextmanager
def _left_as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Put all parameters and buffers back in the end."""
    slots = _weight_slots(model)
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for slot in slots:
            slot.module._parameters[slot.key[1]] = slot.parameter
            if is_plain(slot.parameter):
                slot.parameter.data = slot.before
        for module, held in buffers:
            module._buffers.update(held)


def _cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters and stored buffers; what is computed at construction stays as it is."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            stored = name not in module._non_persistent_buffers_set
            if buffer is not None and buffer.is_floating_point() and stored:
                module._buffers[name] = buffer.to(dtype)


def _cast_all(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters, dequantised where they are quantised, and all buffers."""
    import torch

    for slot in _weight_slots(model):
        values = None if is_plain(slot.parameter) else slot.values()
        if values is not None:
            data = torch.from_numpy(values).to(slot.parameter.device)
            slot.module._parameters[slot.key[1]] = torch.nn.Parameter(data, requires_grad=False)
    _cast(model, dtype)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)


def _round_buffers_alike(
    base: torch.nn.Module,
    candidate: torch.nn.Module,
    names: Mapping[str, str],
    dtype: str,
    *,
    tables: bool,
) -> None:
    """Round the base's buffers where the candidate's are the same, rounded to its dtype.

    transformers so rounds what a checkpoint stores, and single numbers (an embedding's scale). Of
    tables that are computed at construction (rotary frequencies) such a rounding is a fault.

    Args:
        dtype: of the candidate's computation: another rounding is the candidate's own.
        tables: whether they are cast too.
    """
    import torch

    modules = {name or ROOT: module for name, module in base.named_modules()}
    for own, module in candidate.named_modules():
        ours = modules.get(names.get(own or ROOT, ""))
        for key, buffer in module._buffers.items() if ours is not None else ():
            held = ours._buffers.get(key) if ours is not None else None
            if ours is None or held is None or buffer is None:
                continue
            if tables:
                ours._buffers[key] = held.to(buffer.dtype)
                continue
            stored = held.numel() == 1 or key not in ours._non_persistent_buffers_set
            if stored and held.is_floating_point() and dtype != SAME:
                rounded = held.to(getattr(torch, dtype))
                if torch.equal(buffer.float().cpu(), rounded.float().cpu()):
                    ours._buffers[key] = rounded


def why_not_upcast(candidate: torch.nn.Module) -> str:
    """Say why a model cannot be run in float32 with its weights as they are; "" if it can."""
    for slot in _weight_slots(candidate):
        known = is_plain(slot.parameter) and slot.parameter.is_floating_point()
        if not known and (
            type(slot.module).__name__ not in _PLAIN_MODULES or slot.values() is None
        ):
            kind = type(slot.parameter.data).__name__
            return f"{'.'.join(slot.key)} is held as {kind} of {slot.parameter.dtype}"
    return ""
