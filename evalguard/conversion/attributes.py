"""``attr:GLOB.X``: plain attributes, parameters and buffers of a loaded model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalguard.conversion.name_patterns import matching
from evalguard.errors import SettingError, nearest

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import AttributeEdit
    from evalguard.core.settings import Value


_PLAIN = (bool, int, float, str)


def set_attribute(model: torch.nn.Module, edit: AttributeEdit) -> None:
    """Set an attribute on every module that the glob names.

    A parameter or buffer is filled with the value (a number, or a list that broadcasts to its
    shape) in its own dtype; the module gets its own copy, so that a tied module outside the glob
    keeps its weights. A plain attribute must exist and keep its type (an integer may become a
    float's value, null may switch a value off). Submodules and other objects are refused.

    Raises:
        SettingError: no such module, no such attribute (nearest names given), wrong type.
    """
    modules = dict(model.named_modules())
    for name in matching(edit.glob, list(modules), setting=edit.setting):
        _set(modules[name], name, edit)


def read_attribute(model: torch.nn.Module, edit: AttributeEdit) -> Value:
    """Read the attribute back from every module that the glob names.

    Raises:
        SettingError: if one of them does not hold what was asked.
    """
    modules = dict(model.named_modules())
    effective: Value = edit.value
    for name in matching(edit.glob, list(modules), setting=edit.setting):
        found = getattr(modules[name], edit.attribute)
        effective = _plain(found, edit.value)
        if effective != _as_held(found, edit.value):
            raise SettingError(
                f"setting '{edit.setting}' did not take: {name}.{edit.attribute} is "
                f"{effective!r}, asked was {edit.value!r}",
                setting=edit.setting,
            )
    return effective


def list_edited(model: torch.nn.Module, edit: AttributeEdit) -> list[tuple[str, str]]:
    """Return (module, attribute) of all that an edit sets."""
    names = [name for name, _ in model.named_modules()]
    return [(one, edit.attribute) for one in matching(edit.glob, names, setting=edit.setting)]


def _set(module: torch.nn.Module, name: str, edit: AttributeEdit) -> None:
    held, where = edit.attribute, f"setting '{edit.setting}': {name}.{edit.attribute}"
    if held in module._modules:
        raise SettingError(
            f"{where} is a submodule and cannot be set to {edit.value!r}",
            hint="replace modules in a call: hook, or name an attribute inside it",
            setting=edit.setting,
        )
    if held in module._parameters or held in module._buffers:
        _fill(module, edit, where)
        return
    if not hasattr(module, held):
        raise SettingError(
            f"{where} does not exist ({name} is a {type(module).__name__})"
            f"{nearest(held, _settable(module))}",
            hint=f"it has: {', '.join(sorted(_settable(module))) or 'no plain attributes'}",
            setting=edit.setting,
        )
    value = _checked(getattr(module, held), edit, where)
    try:
        setattr(module, held, value)
    except AttributeError as error:
        raise SettingError(f"{where} cannot be set: {error}", setting=edit.setting) from error


def _settable(module: torch.nn.Module) -> set[str]:
    plain = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (value is None or isinstance(value, _PLAIN))
    }
    tensors = (*module._parameters.items(), *module._buffers.items())
    return plain | {name for name, tensor in tensors if tensor is not None}


def _fill(module: torch.nn.Module, edit: AttributeEdit, where: str) -> None:
    import torch

    held, value = edit.attribute, edit.value
    current = getattr(module, held)
    if current is None:
        raise SettingError(
            f"{where} is absent in this model and cannot be filled", setting=edit.setting
        )
    try:
        filled = torch.as_tensor(value, dtype=current.dtype, device=current.device)
        filled = filled.expand_as(current).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(
            f"{where} holds a tensor of shape {tuple(current.shape)} and cannot take {value!r}",
            hint="give a number, or a list that broadcasts to that shape",
            setting=edit.setting,
        ) from error
    if held in module._parameters:
        module._parameters[held] = torch.nn.Parameter(filled, requires_grad=current.requires_grad)
    else:
        module._buffers[held] = filled


def _checked(current: object, edit: AttributeEdit, where: str) -> Value:
    value = edit.value
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if current is None or (value is None and isinstance(current, _PLAIN)):
        return value
    if isinstance(current, (list, tuple)) and isinstance(value, list):
        return type(current)(value)  # type: ignore[return-value]
    if isinstance(current, _PLAIN) and type(value) is type(current):
        return value
    raise SettingError(
        f"{where} holds {_shown(current)} and cannot take {value!r} ({type(value).__name__})",
        hint="an attribute keeps its type; what is not a plain value can be set in a call: hook",
        setting=edit.setting,
    )


def _shown(current: object) -> str:
    kind = type(current).__name__
    return f"{current!r} ({kind})" if isinstance(current, _PLAIN) else f"a {kind}"


def _plain(found: object, asked: Value) -> Value:
    import torch

    if not isinstance(found, torch.Tensor):
        return list(found) if isinstance(found, tuple) else found  # type: ignore[return-value]
    if isinstance(asked, (int, float)):
        distinct = torch.unique(found)
        return distinct.item() if distinct.numel() == 1 else found.tolist()
    return found.tolist()


def _as_held(found: object, asked: Value) -> Value:
    """Return what was asked, rounded to the dtype of the tensor that holds it."""
    import torch

    if not isinstance(found, torch.Tensor):
        return asked
    rounded = torch.as_tensor(asked, dtype=found.dtype)
    if rounded.ndim:
        rounded = rounded.expand(found.shape)
    return rounded.tolist()
