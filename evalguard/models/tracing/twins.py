"""Benign twins of a base, and its weights compared with a candidate's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from evalguard.core.tracing.points import ROOT
from evalguard.core.tracing.precision import (
    CLASSES,
    EPSILON,
    OTHER,
    SAME,
    WeightClass,
    classify_weight,
    relative_error,
    round_weights,
    vote_class,
)
from evalguard.core.tracing.suspects import WEIGHTS_THRESHOLD, WeightFinding
from evalguard.models.tracing.passes import as_array

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

# Modules that compute with any float weight that is put in place of a quantised one.
_PLAIN_MODULES = ("Linear", "Embedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsCompared:
    """The candidate's weights beside the base's.

    Attributes:
        dtype: of most of the candidate's weights: in which it computes.
        matrices, vectors: class of most of them. votes: of the matrices.
        findings: weights that are not of their class.
        identical: whether all weights are the base's. exact: whether most are, or are a cast.
        uncompared: parameters of the base without a comparable counterpart, and why.
    """

    dtype: str
    matrices: str
    vectors: str
    votes: Mapping[str, int]
    identical: bool
    exact: bool
    findings: tuple[WeightFinding, ...] = ()
    uncompared: tuple[str, ...] = ()


def compare_weights(
    base: torch.nn.Module, candidate: torch.nn.Module, names: Mapping[str, str]
) -> WeightsCompared:
    """Say how the candidate's weights were made from the base's, and which ones were not.

    Args:
        names: the base's name of each module of the candidate.
    """
    found: dict[tuple[str, str], WeightClass] = {}
    axes: dict[tuple[str, str], int] = {}
    uncompared: list[str] = []
    for key, ours, theirs in _pairs(base, candidate, names):
        own, other = plain_weights(ours), _weights_beside(key, ours, theirs)
        if own is None or other is None or own.shape != other.shape:
            uncompared.append(f"{key[0]}.{key[1]}")
            continue
        found[key], axes[key] = classify_weight(own, other), _count_axes(own)
    dtype = computing_dtype(candidate)
    matrices, votes = vote_class(c for key, c in found.items() if axes[key] > 1)
    compared = WeightsCompared(
        dtype=dtype,
        matrices=matrices,
        vectors=_vote_vectors(c for key, c in found.items() if axes[key] < 2),
        votes=votes,
        identical=all(c.name == SAME for c in found.values()) and not uncompared,
        exact=matrices in (SAME, *EPSILON),
        uncompared=tuple(uncompared),
    )
    if matrices == OTHER:  # a model of its own: every weight differs
        return compared
    findings = []
    for key, ours, theirs in _pairs(base, candidate, names):
        own, other = plain_weights(ours), _weights_beside(key, ours, theirs)
        if key not in found or own is None or other is None:
            continue
        rule = matrices if axes[key] > 1 else compared.vectors
        rules = {rule, dtype} & set(CLASSES)  # a weight may be left in the candidate's dtype
        errors = (relative_error(own, round_weights(own, each)) for each in rules)
        allowed = max(0.25 * EPSILON["float32"], *errors)
        ratio = min(found[key].error, 1e6) / allowed
        if ratio > WEIGHTS_THRESHOLD:
            looks = f"{key[1]} {describe_weight(own, other, found[key])}"
            findings.append(WeightFinding(module=key[0], ratio=ratio, looks=looks))
    return replace(compared, findings=tuple(findings))


def _count_axes(weights: NDArray[np.float32]) -> int:
    """Count axes of more than one element: a weight with one such axis is a vector."""
    return sum(size > 1 for size in weights.shape)


def _vote_vectors(found: Iterable[WeightClass]) -> str:
    """Vote over norms and biases; those that any dtype holds exactly (ones, zeros) have no say."""
    return vote_class(c for c in found if c.name != OTHER and c.error > 0.0)[0]


def _weights_beside(
    key: tuple[str, str], ours: torch.Tensor, theirs: torch.Tensor | None
) -> NDArray[np.float32] | None:
    """Give the candidate's values; a bias that it does not have is zero."""
    if theirs is None and key[1] == "bias":
        return np.zeros(tuple(ours.shape), dtype=np.float32)
    return plain_weights(theirs)


def describe_weight(
    base: NDArray[np.float32], candidate: NDArray[np.float32], seen: WeightClass
) -> str:
    """Say what a weight that differs looks like: rounded, transposed, permuted, scaled."""
    if not np.all(np.isfinite(candidate)):
        return "holds nan or infinite values"
    if not np.any(candidate):
        return "is all zeros"
    if seen.name != OTHER:
        return f"is rounded to {seen.name}" if seen.name != SAME else "differs"
    close = max(0.05 * seen.error, 0.01)
    if base.ndim == 2:
        turned = np.ascontiguousarray(base.T).reshape(candidate.shape)
        if relative_error(turned, candidate) < close:
            return "looks transposed"
    scale = float(np.vdot(base, candidate) / max(float(np.vdot(base, base)), 1e-30))
    if abs(scale) > 1e-6 and relative_error(base * np.float32(scale), candidate) < close:
        return f"looks scaled by {scale:.4g}"
    for axis, word in enumerate(("rows", "columns")[: base.ndim]):
        if _is_permuted(base, candidate, axis):
            return f"has its {word} in another order"
    return f"differs by {100 * seen.error:.2g}%"


def _is_permuted(base: NDArray[np.float32], candidate: NDArray[np.float32], axis: int) -> bool:
    """Whether both have the same norms along an axis, in another order."""
    ours, theirs = (
        np.linalg.norm(np.moveaxis(w, axis, 0).reshape(base.shape[axis], -1), axis=1)
        for w in (base, candidate)
    )
    in_order = np.allclose(ours, theirs, rtol=0.01)
    return not in_order and bool(np.allclose(np.sort(ours), np.sort(theirs), rtol=0.01))


def plain_weights(weight: torch.Tensor | None) -> NDArray[np.float32] | None:
    """Give a weight's values in float32, dequantised; None where that cannot be done."""
    if weight is None:
        return None
    if hasattr(weight, "dequantize") and not _is_plain(weight):
        weight = weight.dequantize()
    if not weight.is_floating_point():
        return None
    values: NDArray[np.float32] = as_array(weight).astype(np.float32)
    return values


def computing_dtype(model: torch.nn.Module) -> str:
    """Name the dtype of most of a model's weights, by their number of elements."""
    counts: Counter[str] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else SAME


def why_not_upcast(candidate: torch.nn.Module) -> str:
    """Say why a model cannot be run in float32 with its weights as they are; "" if it can."""
    for slot in _weight_slots(candidate):
        known = _is_plain(slot.parameter) and slot.parameter.is_floating_point()
        if not known and (
            type(slot.module).__name__ not in _PLAIN_MODULES or slot.values() is None
        ):
            kind = type(slot.parameter.data).__name__
            return f"{'.'.join(slot.key)} is held as {kind} of {slot.parameter.dtype}"
    return ""


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

    matched = {key: theirs for key, _, theirs in _pairs(base, candidate, names)}
    with _left_as_it_was(base):
        for slot in _weight_slots(base):
            own, theirs = slot.values(), plain_weights(matched.get(slot.key))
            if own is None:
                continue
            rule = compared.matrices if _count_axes(own) > 1 else compared.vectors
            if theirs is not None and theirs.shape != own.shape:
                theirs = None
            if theirs is not None and (rule == OTHER or np.array_equal(theirs, own)):
                values = theirs
            else:
                values = own if rule == OTHER else round_weights(own, rule)
            slot.fill(values)
        _cast(base, getattr(torch, compared.dtype))
        if buffers:
            _cast_buffers_alike(base, candidate, names)
        yield base


@contextmanager
def rounded_as(base: torch.nn.Module, name: str) -> Iterator[torch.nn.Module]:
    """Round all matrices of the base by a class's rule; where it is a dtype, compute in it."""
    import torch

    with _left_as_it_was(base):
        for slot in _weight_slots(base):
            own = slot.values()
            if own is not None and _count_axes(own) > 1:
                slot.fill(round_weights(own, name))
        if name in EPSILON:
            _cast(base, getattr(torch, name))
        yield base


@contextmanager
def with_weights_of(
    base: torch.nn.Module,
    candidate: torch.nn.Module,
    names: Mapping[str, str],
    *,
    buffers: bool = False,
) -> Iterator[torch.nn.Module]:
    """Give the base the candidate's weights, in float32: what it should compute with them.

    Args:
        buffers: as for ``rounded_as_candidate``.
    """
    import torch

    matched = {key: theirs for key, _, theirs in _pairs(base, candidate, names)}
    with _left_as_it_was(base):
        if buffers:
            _cast_buffers_alike(base, candidate, names)
        _cast_all(base, torch.float32)
        for slot in _weight_slots(base):
            if slot.key not in matched:
                continue
            theirs = _weights_beside(slot.key, slot.parameter, matched[slot.key])
            if theirs is not None and theirs.shape == slot.parameter.shape:
                slot.fill(theirs)
        yield base


@contextmanager
def in_float32(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Compute in float32 with the weights and all buffers as they are."""
    import torch

    with _left_as_it_was(model):
        _cast_all(model, torch.float32)
        yield model


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
            if _is_plain(slot.parameter):
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
        values = None if _is_plain(slot.parameter) else slot.values()
        if values is not None:
            data = torch.from_numpy(values).to(slot.parameter.device)
            slot.module._parameters[slot.key[1]] = torch.nn.Parameter(data, requires_grad=False)
    _cast(model, dtype)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)


def _cast_buffers_alike(
    base: torch.nn.Module, candidate: torch.nn.Module, names: Mapping[str, str]
) -> None:
    modules = {name or ROOT: module for name, module in base.named_modules()}
    for own, module in candidate.named_modules():
        ours = modules.get(names.get(own or ROOT, ""))
        for key, buffer in module._buffers.items() if ours is not None else ():
            held = ours._buffers.get(key) if ours is not None else None
            if ours is not None and held is not None and buffer is not None:
                ours._buffers[key] = held.to(buffer.dtype)


def _is_plain(weight: torch.Tensor) -> bool:
    import torch

    return type(weight.data) is torch.Tensor and not weight.is_quantized


def _pairs(
    base: torch.nn.Module, candidate: torch.nn.Module, names: Mapping[str, str]
) -> Iterator[tuple[tuple[str, str], torch.Tensor, torch.Tensor | None]]:
    """Pair the base's parameters with the candidate's; None where that module lacks it."""
    modules = {name or ROOT: module for name, module in candidate.named_modules()}
    counterparts = {ours: modules[theirs] for theirs, ours in names.items()}
    for name, module in base.named_modules():
        other = counterparts.get(name or ROOT)
        if other is None:
            continue
        for key, parameter in module._parameters.items():
            if parameter is not None:
                theirs = getattr(other, key, None)
                yield (name or ROOT, key), parameter, theirs
