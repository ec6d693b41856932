"""torch modules: hooks on the submodules whose values are points."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import EvaluationError

if TYPE_CHECKING:
    import torch
from evalguard.models.runtimes.points.activations import Array, Visit


@contextlib.contextmanager
def hook_modules(root: Any, names: Mapping[str, str], visit: Visit) -> Iterator[None]:
    """Show the inputs and outputs of submodules while the block runs.

    A submodule's input is its first argument that holds floating-point numbers.

    Args:
        root: the torch module.
        names: what a submodule is called in the names of its points, by its path.
    """
    calls: dict[str, int] = {}
    handles = []

    def show(name: str, side: str, part: str, value: torch.Tensor) -> torch.Tensor | None:
        number = "" if calls[name] == 1 else f"#{calls[name]}"
        point = f"{name}{number}:{side}{part}"
        given = visit(point, lambda: to_numpy(value))
        return None if given is None else replace_values(given, value, point)

    def before(name: str) -> Callable[..., Any]:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return _replace_argument(args, kwargs, lambda value: show(name, "in", "", value))

        return hook

    def after(name: str) -> Callable[..., Any]:
        def hook(_module: Any, _args: Any, output: Any) -> Any:
            return _replace_outputs(output, lambda part, value: show(name, "out", part, value))

        return hook

    modules = dict(root.named_modules())
    try:
        for path, name in names.items():
            module = modules[path]
            # First, so that casts by hooks of the module's own are its own doing.
            handles.append(
                module.register_forward_pre_hook(before(name), prepend=True, with_kwargs=True)
            )
            handles.append(module.register_forward_hook(after(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def to_numpy(value: torch.Tensor) -> NDArray[np.float32]:
    """Return a tensor's values in float32."""
    found: NDArray[np.float32] = value.detach().float().cpu().numpy()
    return found


def replace_values(given: Array, value: torch.Tensor, point: str) -> torch.Tensor:
    """Return what is forced at a point as a tensor like the model's own.

    Raises:
        EvaluationError: it has another number of elements.
    """
    import torch

    if given.size != value.numel():
        raise EvaluationError(
            f"the value to be forced at {point} has shape {given.shape}, the model's own "
            f"{tuple(value.shape)}"
        )
    tensor = torch.from_numpy(np.ascontiguousarray(given)).reshape(value.shape)
    return tensor.to(device=value.device, dtype=value.dtype)


def _is_values(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _replace_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], show: Callable[[Any], Any]
) -> Any:
    """Show the first argument that holds floating-point numbers; None where it stays."""
    for place, value in enumerate(args):
        if _is_values(value):
            given = show(value)
            return None if given is None else ((*args[:place], given, *args[place + 1 :]), kwargs)
    for name, value in kwargs.items():
        if _is_values(value):
            given = show(value)
            return None if given is None else (args, {**kwargs, name: given})
    return None


def _replace_outputs(output: Any, show: Callable[[str, Any], Any]) -> Any:
    """Show the outputs that hold floating-point numbers; None where they stay."""
    if _is_values(output):
        return show("", output)
    if not isinstance(output, tuple | list):
        return None
    found, tensors = list(output), 0
    for place, value in enumerate(output):
        if _is_values(value):
            given = show(f".{tensors}" if tensors else "", value)
            tensors += 1
            found[place] = value if given is None else given
    changed = any(one is not other for one, other in zip(found, output, strict=True))
    return type(output)(found) if changed else None
