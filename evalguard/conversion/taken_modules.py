"""``module:GLOB``: modules of a loaded model, replaced by those of another model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalguard.conversion.alike_modules import are_alike, parameters_of
from evalguard.conversion.name_patterns import matching
from evalguard.core.settings import Value, Variant
from evalguard.errors import EvalguardError, SettingError, nearest

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import ModuleEdit


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
    found: dict[str, torch.nn.Module] = {}
    for name, edit in asked.items():
        if edit.source is None:
            found[name] = own[name]
            continue
        there = dict(load(edit.source).named_modules(remove_duplicate=False))
        found[name] = _counterpart(edit, name, own[name], there)
        inner = {other for other in asked if other.startswith(f"{name}.")}
        if not are_alike(own[name], found[name], {one[len(name) + 1 :] for one in inner}):
            effective[edit.setting] = edit.value
    if not any(edit.source is not None for edit in asked.values()):
        return effective
    for name in sorted(asked, key=lambda one: one.count(".")):  # what is inside comes later
        _place(model, asked[name], name, found[name])
    _check_that_it_runs(model, asked, own, found)
    return effective


def _asked_for(
    modules: Mapping[str, torch.nn.Module], edits: Sequence[ModuleEdit]
) -> dict[str, ModuleEdit]:
    """The modules that are named, and by which edit."""
    names = [name for name in modules if name]
    asked: dict[str, ModuleEdit] = {}
    for edit in edits:
        for name in matching(edit.glob, names, setting=edit.setting):
            other = asked.setdefault(name, edit)
            if other.value != edit.value:
                raise SettingError(
                    f"settings '{other.setting}' and '{edit.setting}' take {name} from two places: "
                    f"{_source_text(other)} and {_source_text(edit)}",
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
    known = [name for name, one in called.items() if one.kind not in _SEVERAL]
    if len(accepted) == len(called) == len(known) == 2:  # itself, and what is passed by place
        return True
    needed = {
        name
        for name, one in accepted.items()
        if one.kind not in _SEVERAL and one.default is inspect.Parameter.empty
    }
    taken = [name for name, one in accepted.items() if one.kind not in _SEVERAL]
    # What is passed by place is the required ones: they have to come in the same order.
    required = [name for name in known if called[name].default is inspect.Parameter.empty]
    in_order = [name for name in taken if name in required] == required
    return needed <= set(known) <= set(taken) and in_order


def _packs(module: torch.nn.Module) -> bool:
    tensors = (*module.parameters(), *module.buffers())
    return any(one.ndim and not one.is_floating_point() for one in tensors)


def _shapes(module: torch.nn.Module) -> dict[str, list[int]]:
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: list(tensor.shape) for name, tensor in tensors}


def _place(model: torch.nn.Module, edit: ModuleEdit, name: str, module: torch.nn.Module) -> None:
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
        others = [
            f"{name}.{tensor}: {shape} there, {mine} here"
            for name in taken
            for tensor, shape in _shapes(found[name]).items()
            if (mine := _shapes(own[name]).get(tensor)) != shape
        ]
        shown = f" ({'; '.join(others[:3])}{'; ...' if len(others) > 3 else ''})" if others else ""
        more = f" and {len(taken) - 1} more modules" if len(taken) > 1 else ""
        raise SettingError(
            f"setting '{edit.setting}': the model does not run with {taken[0]}{more} of "
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
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    ids = torch.zeros((1, _PROBE_TOKENS), dtype=torch.long, device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    with torch.no_grad():
        model(**inputs)
