"""``attr:GLOB.X``: plain attributes, parameters and buffers of a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evalguard.conversion.code import load_function
from evalguard.conversion.dtypes import set_dtypes
from evalguard.conversion.planning import matching
from evalguard.core.redaction import redact_value
from evalguard.errors import EvalguardError, SettingError, nearest

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import AttributeEdit, ConversionPlan, HookCall
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
                f"{effective!r}, asked was {edit.value!r}"
            )
    return effective


def _set(module: torch.nn.Module, name: str, edit: AttributeEdit) -> None:
    held, where = edit.attribute, f"setting '{edit.setting}': {name}.{edit.attribute}"
    if held in module._modules:
        raise SettingError(
            f"{where} is a submodule and cannot be set to {edit.value!r}",
            hint="replace modules in a call: hook, or name an attribute inside it",
        )
    if held in module._parameters or held in module._buffers:
        _fill(module, held, edit.value, where)
        return
    if not hasattr(module, held):
        raise SettingError(
            f"{where} does not exist ({name} is a {type(module).__name__})"
            f"{nearest(held, _settable(module))}",
            hint=f"it has: {', '.join(sorted(_settable(module))) or 'no plain attributes'}",
        )
    value = _checked(getattr(module, held), edit.value, where)
    try:
        setattr(module, held, value)
    except AttributeError as error:
        raise SettingError(f"{where} cannot be set: {error}") from error


def _settable(module: torch.nn.Module) -> set[str]:
    plain = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (value is None or isinstance(value, _PLAIN))
    }
    tensors = (*module._parameters.items(), *module._buffers.items())
    return plain | {name for name, tensor in tensors if tensor is not None}


def _fill(module: torch.nn.Module, held: str, value: Value, where: str) -> None:
    import torch

    current = getattr(module, held)
    if current is None:
        raise SettingError(f"{where} is absent in this model and cannot be filled")
    try:
        filled = torch.as_tensor(value, dtype=current.dtype, device=current.device)
        filled = filled.expand_as(current).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(
            f"{where} holds a tensor of shape {tuple(current.shape)} and cannot take {value!r}",
            hint="give a number, or a list that broadcasts to that shape",
        ) from error
    if held in module._parameters:
        module._parameters[held] = torch.nn.Parameter(filled, requires_grad=current.requires_grad)
    else:
        module._buffers[held] = filled


def _checked(current: object, value: Value, where: str) -> Value:
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


# Edit a loaded torch model so that it carries a plan's settings.


def apply(
    model: torch.nn.Module, plan: ConversionPlan, *, code_folder: str, allow_code: bool
) -> None:
    """Apply generation, attribute, call and dtype edits, in this order, each as declared.

    Attributes come first, so that a hook sees them. Hooks come before dtypes, because a hook may
    replace modules or weights (a quantiser), and a dtype must reach what the model ends up with.
    A hook leaves the model in evaluation mode: modules that it made are born in training mode.

    Raises:
        UsageError: a hook is asked for where code is not allowed.
        SettingError: an edit names nothing, or a hook fails.
    """
    import torch

    set_generation(model, plan.generation)
    with torch.no_grad():
        for edit in plan.attributes:
            set_attribute(model, edit)
        for call in plan.calls:
            _call_hook(model, call, code_folder=code_folder, allow_code=allow_code)
        if plan.calls:
            model.eval()
        if plan.dtypes:
            set_dtypes(model, plan.dtypes)


def _call_hook(
    model: torch.nn.Module, call: HookCall, *, code_folder: str, allow_code: bool
) -> None:
    function = load_function(call.function, folder=code_folder, allowed=allow_code)
    where = f"setting '{call.setting}': call:{call.function}"
    try:
        answer = function(model, call.value)
    except EvalguardError:
        raise
    except (Exception, SystemExit) as error:  # a hook must not end the run with its own exit code
        raise SettingError(
            f"{where} failed with {type(error).__name__}: {error}",
            hint=f"it was called as function(model, {redact_value(call.value, call.setting)!r})",
        ) from error
    if answer is not None:
        raise SettingError(
            f"{where} returned a {type(answer).__name__}; a hook edits the model in place "
            "and returns None"
        )


# AsLoaded: what a model was when it was loaded, before any edit; and is again, when asked.


_Containers = (dict, list, set)


class AsLoaded:
    """The very objects that a model was made of, so that edits of it can be taken back.

    Every attribute of every module is noted, parameters, buffers and hooks included, with those of
    its configs and of the object that owns the model. Edits, and what a forward pass leaves behind,
    put other objects in their places; what changes a tensor itself is noticed, and cannot be taken
    back.

    Args:
        owner: holds the model, and attributes that follow from it.
        model: freshly loaded.
    """

    def __init__(self, owner: object, model: torch.nn.Module) -> None:
        self._model = model
        configs = (getattr(model, name, None) for name in ("config", "generation_config"))
        own = (one for one in configs if hasattr(one, "__dict__"))
        self._noted = [_Noted(one) for one in (owner, *own, *model.modules())]
        self._tensors = {id(one): one for one in (*model.parameters(), *model.buffers())}
        self._away: dict[int, torch.device] = {}
        self._kept = all(_is_plain(one) for one in self._tensors.values())
        self._versions = {id(one): one._version for one in self._tensors.values() if self._kept}

    def set_aside(self, fits: Callable[[int], bool]) -> None:
        """Let tensors that edits have replaced wait in this machine's memory.

        Args:
            fits: whether so many bytes may be taken for that; else they are let go of, and the
                model cannot be restored.
        """
        if not self._kept:
            return
        used = {id(one) for one in self._held_now()}
        replaced = [one for key, one in self._tensors.items() if key not in used]
        if replaced and not fits(sum(one.nbytes for one in replaced)):
            self._kept = False
            self._noted.clear()
            self._tensors.clear()
            return
        for tensor in replaced:
            if tensor.device.type != "cpu":
                self._away.setdefault(id(tensor), tensor.device)
                tensor.data = tensor.data.cpu()  # the object stays: others may be tied to it

    def restore(self) -> bool:
        """Take all edits back; whether the model is what it was when it was loaded.

        After False it is of no use.
        """
        if not self._kept:
            return False
        for noted in self._noted:
            noted.put_back()
        for key, device in self._away.items():
            self._tensors[key].data = self._tensors[key].data.to(device)
        self._away.clear()
        return all(one._version == self._versions[key] for key, one in self._tensors.items())

    def _held_now(self) -> Iterator[object]:
        for module in self._model.modules():
            for value in vars(module).values():
                yield value
                if isinstance(value, _Containers):
                    yield from value.values() if isinstance(value, dict) else value


class _Noted:
    """The attributes of one object, and what its own containers hold."""

    def __init__(self, one: object) -> None:
        self._one = one
        self._values: dict[str, Any] = dict(vars(one))
        held = (value for value in self._values.values() if isinstance(value, _Containers))
        self._contents = [(value, value.copy()) for value in held]

    def put_back(self) -> None:
        attributes = vars(self._one)
        attributes.clear()
        attributes.update(self._values)
        for container, content in self._contents:
            container.clear()
            if isinstance(container, list):
                container.extend(content)
            else:
                container.update(content)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but its numbers: not quantised, not elsewhere."""
    import torch

    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and not tensor.is_meta and not tensor.is_inference()


# ``generation.X``: attributes of a model's generation config, which generating tasks read.


def set_generation(model: torch.nn.Module, values: Mapping[str, tuple[str, Value]]) -> None:
    """Set attributes of the generation config of a loaded model.

    Args:
        values: setting name -> (attribute, value).

    Raises:
        SettingError: the model does not generate, or its generation config has no such attribute
            (nearest names given).
    """
    for setting, (name, value) in values.items():
        config = _generation_config(model, setting)
        known = [one for one in vars(config) if not one.startswith("_")]
        if name not in known:
            raise SettingError(
                f"setting '{setting}': the generation config has no attribute '{name}'"
                f"{nearest(name, known)}",
                hint=f"it has: {', '.join(sorted(known))}",
            )
        setattr(config, name, value)


def read_generation(model: torch.nn.Module, setting: str, name: str, asked: Value) -> Value:
    """Read an attribute of the generation config back.

    Raises:
        SettingError: it holds another value than asked.
    """
    found: Value = getattr(_generation_config(model, setting), name)
    if found != asked:
        raise SettingError(
            f"setting '{setting}' did not take: generation.{name} is {found!r}, asked was {asked!r}"
        )
    return found


def _generation_config(model: torch.nn.Module, setting: str) -> Any:
    config = getattr(model, "generation_config", None)
    if config is None:
        raise SettingError(
            f"setting '{setting}': {type(model).__name__} has no generation config",
            hint="generation.X settings work with transformers models that generate",
        )
    return config
