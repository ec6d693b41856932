"""``dtype:GLOB``: parameters and computation of parts of a model in another dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from evalguard.conversion.name_patterns import matching
from evalguard.errors import SettingError, nearest

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import DtypeEdit


# (id of the old parameter, new dtype) -> (old parameter, new parameter)
_Memo = dict[tuple[int, "torch.dtype"], tuple["torch.Tensor", "torch.nn.Parameter"]]

COMPUTE_DTYPES = ("float64", "float32", "bfloat16", "float16")


def set_dtypes(model: torch.nn.Module, edits: tuple[DtypeEdit, ...]) -> None:
    """Hold and compute every named module, with all that is inside it, in the dtype asked.

    A module named deeper inside (a norm kept in float32 inside a bfloat16 layer) follows the
    setting that names it, whatever the order of the settings. Floating inputs are cast on the way
    in; outputs go back to the dtype of the first floating input (for a module that reads token
    ids: of its own weights before the edit). A weight shared with a module outside is untied: the
    outside module keeps its own; modules named together stay tied. Buffers that no checkpoint
    holds (rotary frequencies) are cast only where their own module is named, as transformers
    does. Where weights and inputs have the dtype already, nothing changes.

    Raises:
        SettingError: no such module, no such dtype, two dtypes for one module.
    """
    modules = dict(model.named_modules())
    owner = _owners(list(modules), edits)
    before = {name: _first_floating_dtype(modules[name]) for name in owner}
    cast: _Memo = {}
    for name, module in modules.items():
        ruling = _ruling_edit(name, owner)
        if ruling is not None:
            _cast_tensors(module, _compute_dtype(ruling), cast, named=name in owner)
    for name, edit in owner.items():
        _compute_in(modules[name], _compute_dtype(edit), before[name])


def read_dtype(model: torch.nn.Module, edit: DtypeEdit, edits: tuple[DtypeEdit, ...]) -> str:
    """Return the dtype that the weights under one setting really have.

    Modules that another setting names deeper inside are that setting's.

    Raises:
        SettingError: if a parameter or floating buffer has another dtype than asked.
    """
    modules = dict(model.named_modules())
    owner = _owners(list(modules), edits)
    for name, module in modules.items():
        if _ruling_edit(name, owner) is not edit:
            continue
        for tensor_name, tensor in _own_tensors(module, named=name in owner):
            found = str(tensor.dtype).removeprefix("torch.")
            if tensor.is_floating_point() and found != edit.dtype:
                raise SettingError(
                    f"setting '{edit.setting}' did not take: {name}.{tensor_name} is {found}, "
                    f"asked was {edit.dtype}",
                    setting=edit.setting,
                )
    return edit.dtype


def _own_tensors(module: torch.nn.Module, *, named: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
        if named or name not in module._non_persistent_buffers_set:
            yield name, buffer


def _ruling_edit(name: str, owner: dict[str, DtypeEdit]) -> DtypeEdit | None:
    while name:
        if name in owner:
            return owner[name]
        name = name.rpartition(".")[0]
    return None


def _owners(names: list[str], edits: tuple[DtypeEdit, ...]) -> dict[str, DtypeEdit]:
    owner: dict[str, DtypeEdit] = {}
    for edit in edits:
        for name in matching(edit.glob, names, setting=edit.setting):
            other = owner.setdefault(name, edit)
            if other.dtype != edit.dtype:
                raise SettingError(
                    f"settings '{other.setting}' and '{edit.setting}' ask for two dtypes of "
                    f"{name}: {other.dtype} and {edit.dtype}",
                    hint="let their globs name different modules",
                )
    return owner


def _compute_dtype(edit: DtypeEdit) -> torch.dtype:
    import torch

    if edit.dtype not in COMPUTE_DTYPES:
        raise SettingError(
            f"setting '{edit.setting}': '{edit.dtype}' is not a dtype to compute in"
            f"{nearest(edit.dtype, COMPUTE_DTYPES)}",
            hint=f"dtypes: {', '.join(COMPUTE_DTYPES)}",
            setting=edit.setting,
        )
    dtype: torch.dtype = getattr(torch, edit.dtype)
    return dtype


def _first_floating_dtype(module: torch.nn.Module) -> torch.dtype | None:
    tensors = (*module.parameters(), *module.buffers())
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)


def _cast_tensors(module: torch.nn.Module, dtype: torch.dtype, cast: _Memo, *, named: bool) -> None:
    import torch

    for name, tensor in list(_own_tensors(module, named=named)):
        if not tensor.is_floating_point() or tensor.dtype == dtype:
            continue
        if name in module._buffers:
            module._buffers[name] = tensor.to(dtype)
            continue
        # New parameters, never ``.data``: a tied module outside keeps the old one. The memo keeps
        # modules that are named together tied; it holds the old ones, so that no id is reused.
        key = (id(tensor), dtype)
        if key not in cast:
            new = torch.nn.Parameter(tensor.detach().to(dtype), requires_grad=tensor.requires_grad)
            cast[key] = (tensor, new)
        module._parameters[name] = cast[key][1]


def _compute_in(module: torch.nn.Module, dtype: torch.dtype, outside: torch.dtype | None) -> None:
    came_in: list[torch.dtype | None] = []  # a stack: a module may call itself

    def cast_inputs(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        came_in.append(_first_floating((args, kwargs)) or outside)
        inside = {
            name: _cast(value, dtype, clamp=name == "attention_mask")
            for name, value in kwargs.items()
        }
        return _cast(args, dtype), inside

    def cast_outputs(_: Any, __: Any, output: Any) -> Any:
        back = came_in.pop()
        return output if back is None else _cast(output, back)

    module.register_forward_pre_hook(cast_inputs, with_kwargs=True)
    module.register_forward_hook(cast_outputs)


def _first_floating(value: object) -> torch.dtype | None:
    import torch

    if isinstance(value, torch.Tensor):
        return value.dtype if value.is_floating_point() else None
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return next((found for part in value if (found := _first_floating(part))), None)
    return None


def _cast(value: Any, dtype: torch.dtype, *, clamp: bool = False) -> Any:
    """Cast all floating tensors of a nested value; with ``clamp``, finite values stay finite.

    An attention mask holds the lowest float32, which would become -inf in a narrower dtype and
    make a fully masked row NaN.
    """
    import torch

    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() or value.dtype == dtype:
            return value
        limits = torch.finfo(dtype)
        return (value.clamp(limits.min, limits.max) if clamp else value).to(dtype)
    if type(value) is dict:
        return {key: _cast(part, dtype, clamp=clamp) for key, part in value.items()}
    if isinstance(value, dict):  # a transformers ModelOutput, which keeps its class
        for key, part in list(value.items()):
            value[key] = _cast(part, dtype, clamp=clamp)
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cast(part, dtype, clamp=clamp) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(part, dtype, clamp=clamp) for part in value)
    return value
