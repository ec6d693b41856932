"""A model beside its padded twin: at which module padding enters what it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalguard.core.trace_points import ROOT
from evalguard.models.hf.padding import generation_inputs
from evalguard.tracing.measure.module_hooks import tensors_of

if TYPE_CHECKING:
    import torch

_TEXT, _PADS, _NEW = 8, 8, 2
# Relative L2 that no rounding leaves between a text alone and padded. Measured on healthy tiny
# models: below 1e-5 in float32, 0.03 in bfloat16.
_BEYOND, _BEYOND_NARROW = 1e-3, 0.1


@dataclass(frozen=True, slots=True)
class _Seen:
    """One call of a module: what it was given, and gave, on the text's own positions."""

    module: str
    given: torch.Tensor | None
    made: tuple[torch.Tensor, ...]


def locate_padding(model: torch.nn.Module, ids: Sequence[int], pad: int) -> tuple[str, float]:
    """Return the first module whose output padding changes while its input stays, and how far.

    The text is generated from alone, and behind padding beside a longer one, as in a batch; the
    first two tokens are, since a cache's positions come in with the second. A module that is given
    positions or ids, which are whole numbers, is named where these differ.

    Args:
        ids: tokens of a text. pad: the padding's id.

    Returns:
        ("", 0.0) where no module shows it; the distance is a relative L2.
    """
    longer = (list(ids) * (_TEXT + _PADS))[: _TEXT + _PADS]
    text = longer[:_TEXT]
    alone = _record(model, [text], pad)
    padded = _record(model, [text, longer], pad)
    limit = _limit(model)
    for key, ours in alone.items():
        theirs = padded.get(key)
        if theirs is None or len(ours.made) != len(theirs.made):
            continue
        distances = [_distance(*both) for both in zip(ours.made, theirs.made, strict=True)]
        size = max((distance for distance in distances if distance is not None), default=0.0)
        if size <= limit:
            continue
        if _enters_here(ours.given, theirs.given, limit):
            return ours.module, size
    return "", 0.0


def _limit(model: torch.nn.Module) -> float:
    import torch

    narrow = any(
        parameter.dtype in (torch.bfloat16, torch.float16) for parameter in model.parameters()
    )
    return _BEYOND_NARROW if narrow else _BEYOND


def _enters_here(ours: Any, theirs: Any, limit: float) -> bool:
    """Whether what a module was given is the same, or whole numbers, or not seen."""
    if ours is None or theirs is None or not ours.is_floating_point():
        return True
    apart = _distance(ours, theirs)
    return apart is None or apart <= limit


def _record(model: Any, rows: Sequence[Sequence[int]], pad: int) -> dict[tuple[str, int], _Seen]:
    """Every call of every module, in the order in which they end."""
    import torch

    seen: dict[tuple[str, int], _Seen] = {}
    counts: Counter[str] = Counter()
    given = generation_inputs(rows, pad, next(model.parameters()).device)
    with ExitStack() as hooks, torch.inference_mode():
        for own_name, module in model.named_modules():
            name = own_name or ROOT

            def note(_: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                counts[name] += 1
                tensors = [tensor for _, tensor in tensors_of((args, kwargs))]
                main = next(iter(tensors), None)
                made = tuple(tensor.detach().clone() for _, tensor in tensors_of(output))
                held = None if main is None else main.detach().clone()
                seen[name, counts[name]] = _Seen(name, held, made)

            hooks.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        model.generate(
            **given, max_new_tokens=_NEW, min_new_tokens=_NEW, do_sample=False, pad_token_id=pad
        )
    return seen


def _distance(alone: torch.Tensor, padded: torch.Tensor) -> float | None:
    """Relative L2 between a text's own positions of both; None where these are not told apart."""
    if alone.dim() != padded.dim() or not alone.is_floating_point():
        return None
    own = padded
    for axis in range(alone.dim()):
        before, now = alone.shape[axis], own.shape[axis]
        if now == before:
            continue
        if now == before + _PADS:
            own = own.narrow(axis, _PADS, before)
        elif axis == 0 and now == 2 * before:
            own = own.narrow(axis, 0, before)
        else:
            return None
    difference = (alone.float() - own.float()).norm()
    return float(difference / alone.float().norm().clamp(min=1e-12))
