"""Which tensors of a model differ between two checkpoints of its architecture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalguard.models.checkpoint_files import (
    CheckpointFiles,
    open_stored_tensors,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
from evalguard.models.loading_names import map_loading_names, map_tied_names

_FIRST_ELEMENTS = 4096  # elements that are looked at before all of a tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointComparison:
    """Names in a model's state: bit-identical in both checkpoints, differing, or in one only."""

    same: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()


def compare_shapes(base: PreTrainedModel, candidate: PreTrainedModel) -> tuple[str, ...]:
    """Say where the tensors of two models have other names or shapes; () where nowhere."""
    one, other = _shapes(base), _shapes(candidate)
    found = [f"{name}: only in the base" for name in one if name not in other]
    found += [f"{name}: only in the candidate" for name in other if name not in one]
    found += [
        f"{name}: {list(one[name])} in the base, {list(other[name])} in the candidate"
        for name in one
        if name in other and one[name] != other[name]
    ]
    return tuple(found)


def compare_checkpoints(
    model: PreTrainedModel,
    base: CheckpointFiles,
    candidate: CheckpointFiles,
    dtypes: Iterable[str],
) -> CheckpointComparison:
    """Compare what two checkpoints give the tensors of a model (which may be on meta).

    Tensors are read one pair at a time, from mapped files. Two that are stored under other names
    are compared where transformers only renames them; what it converts (stacks, splits) counts as
    differing unless both store the same parts.

    Args:
        dtypes: names of those that the model is loaded in; tensors are the same if they are after
            the cast to each of them.
    """
    with ExitStack() as stack:
        sides = [
            _StoredTensors.of(model, open_stored_tensors(files, stack))
            for files in (base, candidate)
        ]
        same: list[str] = []
        differing: list[str] = []
        unmatched: list[str] = []
        for name in model.state_dict():
            given = [side.parts.get(name, {}) for side in sides]
            if not given[0] and not given[1]:
                continue  # nothing that checkpoints hold
            if not given[0] or not given[1]:
                unmatched.append(name)
                continue
            casts = [*dtypes, *(["float32"] if _kept_in_float32(model, name) else [])]
            equal = _equal_parts(sides, given, casts)
            (same if equal else differing).append(name)
    return CheckpointComparison(
        same=tuple(same), differing=tuple(differing), unmatched=tuple(unmatched)
    )


@dataclass(frozen=True, slots=True)
class _StoredTensors:
    """A checkpoint: its tensors, and for each of the model's the stored ones it is made of."""

    stored: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, bool]]  # name -> {stored name: converted}

    @classmethod
    def of(cls, model: PreTrainedModel, stored: Mapping[str, Any]) -> _StoredTensors:
        parts: dict[str, dict[str, bool]] = {}
        for key, into in map_loading_names(model, stored).items():
            for name in into.names:
                parts.setdefault(name, {})[key] = into.converted
        for name, source in map_tied_names(model).items():
            held = parts.get(source) or parts.get(name)
            if held:
                parts.setdefault(name, held)
                parts.setdefault(source, held)
        return cls(stored, parts)


def _equal_parts(
    sides: list[_StoredTensors], given: list[Mapping[str, bool]], casts: Iterable[str]
) -> bool:
    one, other = (sorted(parts) for parts in given)
    renamed = not any(converted for parts in given for converted in parts.values())
    if one != other and not (renamed and len(one) == len(other) == 1):
        return False
    return all(
        _equal(sides[0].stored[here][...], sides[1].stored[there][...], casts)
        for here, there in zip(one, other, strict=True)
    )


def _equal(one: torch.Tensor, other: torch.Tensor, casts: Iterable[str]) -> bool:
    import torch

    if one.shape != other.shape:
        return False
    if one.dtype == other.dtype and _same_bits(one, other):
        return True
    if not (one.is_floating_point() and other.is_floating_point()):
        return False
    wanted = [getattr(torch, name) for name in casts]
    if all(one.dtype == other.dtype == dtype for dtype in wanted):
        return False
    return all(_same_after_cast(one, other, dtype) for dtype in wanted)


def _same_after_cast(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    first = [tensor.flatten()[:_FIRST_ELEMENTS].to(dtype) for tensor in (one, other)]
    return _same_bits(*first) and _same_bits(one.to(dtype), other.to(dtype))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    # as bytes: NaN is not equal to itself, and -0.0 equals 0.0
    parts = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other)]
    return torch.equal(parts[0][:_FIRST_ELEMENTS], parts[1][:_FIRST_ELEMENTS]) and torch.equal(
        *parts
    )


def _kept_in_float32(model: PreTrainedModel, name: str) -> bool:
    """Whether transformers may keep this tensor in float32, whatever the dtype of the rest."""
    kinds = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
    return any(part in name for kind in kinds for part in getattr(model, kind, None) or ())


def _shapes(model: PreTrainedModel) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}
