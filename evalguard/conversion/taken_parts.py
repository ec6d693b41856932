"""``weights:GLOB``: tensors of parts of a model, taken from another checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalguard.conversion.name_patterns import matching
from evalguard.core.settings import Value, Variant
from evalguard.errors import EvalguardError, SettingError, nearest

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import ModuleEdit, WeightsEdit


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
        path = f"{at}{name}"
        theirs = other._modules[name]
        if path in without:
            continue
        if inner is None or theirs is None:
            if inner is not theirs:
                return False
        elif not are_alike(inner, theirs, without, f"{path}."):
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


# A model as it is declared -> its torch module, loaded so that its modules fit into another one:
# in that one's dtype, on its device. Nobody else edits it meanwhile.
LoadSource = Callable[[Variant], "torch.nn.Module"]
_PROBE_TOKENS = 8  # of the pass that shows whether what was put together runs


def take_modules(
    model: torch.nn.Module, edits: Sequence[ModuleEdit], load: LoadSource
) -> dict[str, Value]:
    """Put modules of other models where the edits ask for them, and prove that they are there.

    A module brings its code, its hyper-parameters, its weights and whatever is inside it; what
    another edit names more closely follows that one: a value of null (as loaded) puts the model's
    own module into the other's. Names at both models are the same. A weight shared with a module
    outside is untied: the outside module keeps its own. To be called after everything else in the
    model was edited and read back: settings of the model are of its own modules, and those of the
    other model are in its modules already.

    Returns:
        Setting -> what it holds now: the value that was asked for, or None (as loaded) where the
        other's modules are the model's own, to the bit of every weight and to every attribute.

    Raises:
        SettingError: a glob that names nothing here or there, two models for one module, a module
            that does not fit: another call signature, other shapes, a pass that fails.
    """
    if not edits:
        return {}
    own = dict(model.named_modules(remove_duplicate=False))
    asked = _asked_for(own, edits)
    effective: dict[str, Value] = {edit.setting: None for edit in edits}
    modules: dict[str, torch.nn.Module] = {}
    for name, edit in asked.items():
        if edit.source is None:
            modules[name] = own[name]
            continue
        there = dict(load(edit.source).named_modules(remove_duplicate=False))
        modules[name] = _counterpart(edit, name, own[name], there)
        inner = {nested for nested in asked if nested.startswith(f"{name}.")}
        if not are_alike(own[name], modules[name], {nested[len(name) + 1 :] for nested in inner}):
            effective[edit.setting] = edit.value
    if not any(edit.source is not None for edit in asked.values()):
        return effective
    for name in sorted(asked, key=lambda path: path.count(".")):  # what is inside comes later
        _module_place(model, asked[name], name, modules[name])
    _check_that_it_runs(model, asked, own, modules)
    return effective


def _asked_for(
    modules: Mapping[str, torch.nn.Module], edits: Sequence[ModuleEdit]
) -> dict[str, ModuleEdit]:
    """The modules that are named, and by which edit."""
    names = [name for name in modules if name]
    asked: dict[str, ModuleEdit] = {}
    for edit in edits:
        for name in matching(edit.glob, names, setting=edit.setting):
            first = asked.setdefault(name, edit)
            if first.value != edit.value:
                raise SettingError(
                    f"settings '{first.setting}' and '{edit.setting}' take {name} from two places: "
                    f"{_source_text(first)} and {_source_text(edit)}",
                    hint="let their globs name different modules",
                )
    return asked


def _source_text(edit: ModuleEdit) -> str:
    return "as loaded" if edit.source is None else edit.source.name


def _counterpart(
    edit: ModuleEdit,
    name: str,
    own: torch.nn.Module,
    there: Mapping[str, torch.nn.Module],
) -> torch.nn.Module:
    """The other model's module of that name.

    Raises:
        SettingError: there is none, or it is called otherwise, or it is a single layer of other
            shapes.
    """
    where = f"setting '{edit.setting}': {name} of {_source_text(edit)}"
    if name not in there:
        raise SettingError(
            f"{where} is not there{nearest(name, there)}",
            hint="only models whose modules have the same names can exchange them",
            setting=edit.setting,
        )
    misfit = explain_misfit(own, there[name])
    if misfit:
        raise SettingError(
            f"{where} {misfit}",
            hint="name a module inside or around it that is called in the same way, and has the "
            "same shapes, in both models",
            setting=edit.setting,
        )
    return there[name]


def explain_misfit(own: torch.nn.Module, other: torch.nn.Module) -> str:
    """Say why a module cannot stand in another one's place, by what is seen without running it.

    Returns:
        "is called otherwise: ...", "has other shapes: ...", or "" where it may fit. Weights may be
        on the meta device.
    """
    accepted, called = parameters_of(other), parameters_of(own)
    if type(other) is not type(own) and not _takes_calls(accepted, called):
        return (
            f"is called otherwise: {type(other).__name__}.forward({', '.join(accepted)}) in place "
            f"of {type(own).__name__}.forward({', '.join(called)})"
        )
    single = not any(True for _ in other.children())
    # A quantiser packs weights in shapes of its own: whether such a layer fits shows when it runs.
    if single and not (_packs(own) or _packs(other)):
        there, here = _shapes(other), _shapes(own)
        both = there.keys() & here.keys() if type(other) is not type(own) else {*there, *here}
        if any(there.get(name) != here.get(name) for name in both):
            return f"has other shapes: {there} in place of {here}"
    return ""


_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _takes_calls(
    accepted: Mapping[str, inspect.Parameter], called: Mapping[str, inspect.Parameter]
) -> bool:
    """Whether a function can be called wherever one with other parameters is, by their names.

    What would only be swallowed by ``**kwargs`` is not taken: a mask or a position that nobody
    reads would change the scores without a word.
    """
    known = [name for name, parameter in called.items() if parameter.kind not in _SEVERAL]
    if len(accepted) == len(called) == len(known) == 2:  # itself, and what is passed by place
        return True
    needed = {
        name
        for name, parameter in accepted.items()
        if parameter.kind not in _SEVERAL and parameter.default is inspect.Parameter.empty
    }
    taken = [name for name, parameter in accepted.items() if parameter.kind not in _SEVERAL]
    # What is passed by place is the required ones: they have to come in the same order.
    required = [name for name in known if called[name].default is inspect.Parameter.empty]
    in_order = [name for name in taken if name in required] == required
    return needed <= set(known) <= set(taken) and in_order


def _packs(module: torch.nn.Module) -> bool:
    tensors = (*module.parameters(), *module.buffers())
    return any(tensor.ndim and not tensor.is_floating_point() for tensor in tensors)


def _shapes(module: torch.nn.Module) -> dict[str, list[int]]:
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: list(tensor.shape) for name, tensor in tensors}


def _module_place(
    model: torch.nn.Module, edit: ModuleEdit, name: str, module: torch.nn.Module
) -> None:
    path, _, inner = name.rpartition(".")
    try:
        parent = model.get_submodule(path)
    except AttributeError as error:
        raise SettingError(
            f"setting '{edit.setting}': {name} has no place in what another setting took from "
            f"another model: {path} is not there",
            hint="let the globs name modules that both models have",
            setting=edit.setting,
        ) from error
    if inner not in parent._modules:
        raise SettingError(
            f"setting '{edit.setting}': {name} has no place in what another setting took from "
            f"another model: {path} is a {type(parent).__name__} without '{inner}'",
            hint="let the globs name modules that both models have",
            setting=edit.setting,
        )
    parent._modules[inner] = module


def _check_that_it_runs(
    model: torch.nn.Module,
    asked: Mapping[str, ModuleEdit],
    own: Mapping[str, torch.nn.Module],
    found: Mapping[str, torch.nn.Module],
) -> None:
    """Prove that every module is in its place, and that the model runs with them.

    Raises:
        SettingError: it does not; with what of the modules has other shapes.
    """
    now = dict(model.named_modules(remove_duplicate=False))
    taken = [name for name, edit in asked.items() if edit.source is not None]
    edit = asked[taken[0]]
    for name in taken:
        if now.get(name) is not found[name]:
            raise SettingError(
                f"setting '{asked[name].setting}' did not take: {name} is not that of "
                f"{_source_text(asked[name])}",
                setting=asked[name].setting,
            )
    try:
        _run_once(model)
    except EvalguardError:
        raise
    except Exception as error:
        mismatches = [
            f"{name}.{tensor}: {shape} there, {mine} here"
            for name in taken
            for tensor, shape in _shapes(found[name]).items()
            if (mine := _shapes(own[name]).get(tensor)) != shape
        ]
        shown = (
            f" ({'; '.join(mismatches[:3])}{'; ...' if len(mismatches) > 3 else ''})"
            if mismatches
            else ""
        )
        further = f" and {len(taken) - 1} more modules" if len(taken) > 1 else ""
        raise SettingError(
            f"setting '{edit.setting}': the model does not run with {taken[0]}{further} of "
            f"{_source_text(edit)}{shown}: {type(error).__name__}: "
            f"{' '.join(str(error).split())}",
            hint="only modules whose inputs and outputs are alike can be exchanged; name larger "
            "ones, or those on both sides of what differs",
            setting=edit.setting,
        ) from error


def _run_once(model: torch.nn.Module) -> None:
    """One pass over a few tokens."""
    import torch

    config: Any = getattr(model, "config", None)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    ids = torch.zeros((1, _PROBE_TOKENS), dtype=torch.long, device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    with torch.no_grad():
        model(**inputs)


# (model, checkpoint, names of tensors) -> the tensors, in the dtypes and on the devices of the
# model's own; whoever knows the model's library reads them.
ReadTensors = Callable[["torch.nn.Module", str, Sequence[str]], "Mapping[str, torch.Tensor]"]


def take_weights(model: torch.nn.Module, edits: Sequence[WeightsEdit], read: ReadTensors) -> None:
    """Put tensors of other checkpoints where the edits ask for them, and prove that they are there.

    An edit names modules, with all that is inside them, or single tensors; what another edit names
    more closely follows that one, a value of null (as loaded) included. Parameters and the buffers
    that checkpoints hold are replaced. A weight shared with a module outside is untied: the outside
    module keeps its own. To be called before anything else in the model is edited.

    Raises:
        SettingError: a glob that names nothing, two checkpoints for one tensor, a checkpoint that
            does not fit, a tensor that did not take.
    """
    if not edits:
        return
    put: dict[int, torch.Tensor] = {}  # tied tensors stay one
    for checkpoint, (edit, names) in _wanted(model, edits).items():
        try:
            read_tensors = read(model, checkpoint, names)
        except SettingError as error:
            message = f"setting '{edit.setting}': {error}"
            raise SettingError(message, hint=error.hint, setting=edit.setting) from error
        for name in names:
            module, inner = _place(model, name)
            tensor = read_tensors[name]
            made = put.setdefault(id(tensor), _as_held(tensor, getattr(module, inner)))
            _put(module, inner, made)
        _prove(model, edit, names, read_tensors)


def _wanted(
    model: torch.nn.Module, edits: Sequence[WeightsEdit]
) -> dict[str, tuple[WeightsEdit, list[str]]]:
    """Checkpoint -> the first edit that asks for it, and the names of the tensors it gives."""
    tensors = [name for name, tensor in model.state_dict().items() if hasattr(tensor, "dtype")]
    modules = [name for name, _ in model.named_modules(remove_duplicate=False)]
    owner = _owners(list(dict.fromkeys((*modules, *tensors))), edits)
    wanted: dict[str, tuple[WeightsEdit, list[str]]] = {}
    for name in tensors:
        edit = _ruling(name, owner)
        if edit is not None and edit.checkpoint is not None:
            wanted.setdefault(edit.checkpoint, (edit, []))[1].append(name)
    return wanted


def _owners(names: Sequence[str], edits: Sequence[WeightsEdit]) -> dict[str, WeightsEdit]:
    owner: dict[str, WeightsEdit] = {}
    for edit in edits:
        for name in matching(edit.glob, names, setting=edit.setting):
            first = owner.setdefault(name, edit)
            if first.checkpoint != edit.checkpoint:
                raise SettingError(
                    f"settings '{first.setting}' and '{edit.setting}' take {name} from two places: "
                    f"{first.checkpoint or 'as loaded'} and {edit.checkpoint or 'as loaded'}",
                    hint="let their globs name different modules",
                )
    return owner


def _ruling(name: str, owner: Mapping[str, WeightsEdit]) -> WeightsEdit | None:
    while name:
        if name in owner:
            return owner[name]
        name = name.rpartition(".")[0]
    return None


def _place(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    path, _, inner = name.rpartition(".")
    return model.get_submodule(path), inner


def _as_held(tensor: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    import torch

    if not isinstance(held, torch.nn.Parameter):
        return tensor
    return torch.nn.Parameter(tensor.detach(), requires_grad=held.requires_grad)


def _put(module: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
    held = module._parameters if name in module._parameters else module._buffers
    held[name] = tensor  # type: ignore[assignment]


def _prove(
    model: torch.nn.Module,
    edit: WeightsEdit,
    names: Sequence[str],
    asked: Mapping[str, torch.Tensor],
) -> None:
    """Read every tensor back by its name and compare it with the checkpoint's, bit for bit."""
    state = model.state_dict()
    for name in names:
        if not _same_bits(state[name], asked[name]):
            raise SettingError(
                f"setting '{edit.setting}' did not take: {name} is not that of {edit.checkpoint}",
                hint="the model shares this tensor with another one that a setting replaces",
                setting=edit.setting,
            )


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    # as bytes: NaN is not equal to itself, and -0.0 equals 0.0
    return torch.equal(
        one.detach().contiguous().view(torch.uint8), other.detach().contiguous().view(torch.uint8)
    )
