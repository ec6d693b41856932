"""Whether two modules compute the same from the same inputs, as far as that can be proven."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def are_alike(
    one: torch.nn.Module, other: torch.nn.Module, without: set[str], at: str = ""
) -> bool:
    """Whether two modules are one in code, attributes, hooks and weights, to the bit.

    What cannot be compared counts as different.

    Args:
        without: names of modules inside that are not looked at.
    """
    if one is other:
        return True
    if type(one) is not type(other) or one._modules.keys() != other._modules.keys():
        return False
    if any(getattr(side, hooks) for side in (one, other) for hooks in _HOOKS):
        return False
    if not _same_attributes(_attributes(one), _attributes(other)):
        return False
    tensors = [{**side._parameters, **side._buffers} for side in (one, other)]
    if tensors[0].keys() != tensors[1].keys():
        return False
    if not all(_same_tensor(tensors[0][name], tensors[1][name]) for name in tensors[0]):
        return False
    for name, inner in one._modules.items():
        place = f"{at}{name}"
        theirs = other._modules[name]
        if place in without:
            continue
        if inner is None or theirs is None:
            if inner is not theirs:
                return False
        elif not are_alike(inner, theirs, without, f"{place}."):
            return False
    return True


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# Bookkeeping of torch, and what is compared by itself.
_OF_TORCH = frozenset(
    {"_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "training"}
)


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if name not in _OF_TORCH and not _is_hook_store(name)
    }


def _is_hook_store(name: str) -> bool:
    return name.startswith("_") and ("hook" in name or name == "_is_full_backward_hook")


def _same_attributes(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)


def _same(one: Any, other: Any) -> bool:
    import torch

    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return _same_attributes(one, other)
    if isinstance(one, (bool, int, float, str, torch.dtype, torch.device, torch.Size)):
        return bool(one == other)
    if hasattr(one, "to_dict"):  # a config: of its file's name nothing depends
        return _same_attributes(dict(_config_items(one)), dict(_config_items(other)))
    return False


_OF_A_FILE = frozenset({"_name_or_path", "transformers_version", "_commit_hash"})


def _config_items(config: Any) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in vars(config).items() if name not in _OF_A_FILE)


def _same_tensor(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    import torch

    if one is None or other is None:
        return one is other
    plain = (torch.Tensor, torch.nn.Parameter)
    if type(one) not in plain or type(other) not in plain:
        return False  # quantised: what it stands for is not in its numbers alone
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    here, there = (tensor.detach().reshape(-1).contiguous() for tensor in (one, other))
    # as bytes: NaN is not equal to itself, and -0.0 equals 0.0
    return torch.equal(here.view(torch.uint8), there.to(here.device).view(torch.uint8))


def parameters_of(module: torch.nn.Module) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(type(module).forward).parameters)
