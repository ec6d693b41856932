"""Edit a loaded torch model so that it carries a plan's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evalguard.conversion.name_patterns import matching
from evalguard.conversion.user_functions import load_function
from evalguard.core.redaction import redact_value
from evalguard.errors import EvalguardError, SettingError, nearest

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import AttributeEdit, ConversionPlan, DtypeEdit, HookCall
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
        actual = getattr(modules[name], edit.attribute)
        effective = _plain(actual, edit.value)
        if effective != _as_held(actual, edit.value):
            raise SettingError(
                f"setting '{edit.setting}' did not take: {name}.{edit.attribute} is "
                f"{effective!r}, asked was {edit.value!r}",
                setting=edit.setting,
            )
    return effective


def list_edited(model: torch.nn.Module, edit: AttributeEdit) -> list[tuple[str, str]]:
    """Return (module, attribute) of all that an edit sets."""
    names = [name for name, _ in model.named_modules()]
    return [(name, edit.attribute) for name in matching(edit.glob, names, setting=edit.setting)]


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
            actual = str(tensor.dtype).removeprefix("torch.")
            if tensor.is_floating_point() and actual != edit.dtype:
                raise SettingError(
                    f"setting '{edit.setting}' did not take: {name}.{tensor_name} is {actual}, "
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
            first = owner.setdefault(name, edit)
            if first.dtype != edit.dtype:
                raise SettingError(
                    f"settings '{first.setting}' and '{edit.setting}' ask for two dtypes of "
                    f"{name}: {first.dtype} and {edit.dtype}",
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
        return next((dtype for part in value if (dtype := _first_floating(part))), None)
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
        known = [attribute for attribute in vars(config) if not attribute.startswith("_")]
        if name not in known:
            raise SettingError(
                f"setting '{setting}': the generation config has no attribute '{name}'"
                f"{nearest(name, known)}",
                hint=f"it has: {', '.join(sorted(known))}",
                setting=setting,
            )
        setattr(config, name, value)


def read_generation(model: torch.nn.Module, setting: str, name: str, asked: Value) -> Value:
    """Read an attribute of the generation config back.

    Raises:
        SettingError: it holds another value than asked.
    """
    actual: Value = getattr(_generation_config(model, setting), name)
    if actual != asked:
        raise SettingError(
            f"setting '{setting}' did not take: generation.{name} is {actual!r}, "
            f"asked was {asked!r}",
            setting=setting,
        )
    return actual


def _generation_config(model: torch.nn.Module, setting: str) -> Any:
    config = getattr(model, "generation_config", None)
    if config is None:
        raise SettingError(
            f"setting '{setting}': {type(model).__name__} has no generation config",
            hint="generation.X settings work with transformers models that generate",
            setting=setting,
        )
    return config


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
            setting=call.setting,
        ) from error
    if answer is not None:
        raise SettingError(
            f"{where} returned a {type(answer).__name__}; a hook edits the model in place "
            "and returns None",
            setting=call.setting,
        )
