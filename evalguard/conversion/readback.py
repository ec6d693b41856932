"""Prove that every setting took: what was asked against what the loaded model holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evalguard.conversion.edits import read_attribute, read_dtype, read_generation
from evalguard.conversion.user_functions import load_function
from evalguard.errors import SettingError

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import ConversionPlan, HookCall
    from evalguard.core.settings import Value

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
        own = (config for config in configs if hasattr(config, "__dict__"))
        self._noted = [_Noted(holder) for holder in (owner, *own, *model.modules())]
        self._tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._away: dict[int, torch.device] = {}
        self._kept = all(_is_plain(tensor) for tensor in self._tensors.values())
        self._versions = {
            id(tensor): tensor._version for tensor in self._tensors.values() if self._kept
        }

    def set_aside(self, fits: Callable[[int], bool]) -> None:
        """Let tensors that edits have replaced wait in this machine's memory.

        Args:
            fits: whether so many bytes may be taken for that; else they are let go of, and the
                model cannot be restored.
        """
        if not self._kept:
            return
        used = {id(held) for held in self._held_now()}
        replaced = [weight for key, weight in self._tensors.items() if key not in used]
        if replaced and not fits(sum(weight.nbytes for weight in replaced)):
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
        return all(tensor._version == self._versions[key] for key, tensor in self._tensors.items())

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


_PROBE = "The quick brown fox"


def check_environment(env: Mapping[str, str | None]) -> None:
    """Refuse a process that was not started with the environment that the settings ask for.

    Raises:
        SettingError: a variable differs; libraries read theirs at import, so it cannot be set now.
    """
    for name, asked in env.items():
        actual = os.environ.get(name)
        if actual != asked:
            raise SettingError(
                f"env.{name}: this process has {_shown(actual)}, the setting asks for "
                f"{_shown(asked)}",
                hint="env settings need a worker process that is started with them",
                target=f"env.{name}",
            )


def read_arguments(
    lm: Any, plan: ConversionPlan, model_args: Mapping[str, Value]
) -> dict[str, Value]:
    """Read ``model_args`` and ``config`` settings back from a freshly loaded lm-eval model.

    To be called before the model is edited, while its dtype is the one it was loaded in.
    ``model_args`` are those that it was loaded with (the built path in its place).

    Returns:
        Setting name -> effective value. An argument that the model does not show is returned as
        it was passed.

    Raises:
        SettingError: the model holds another value than asked.
    """
    effective: dict[str, Value] = {}
    for name, (target, value) in plan.targets.items():
        if target.kind == "model_args":
            effective[name] = _read_argument(lm, name, target.path, model_args[target.path])
        elif target.kind == "config":
            effective[name] = _read_config(lm.model.config, name, target.path, value)
    if model_args.get("add_bos_token") is not None:
        _read_bos(lm, "add_bos_token", model_args["add_bos_token"])
    return effective


def read_edits(
    model: torch.nn.Module | None, plan: ConversionPlan, *, code_folder: str, allow_code: bool
) -> dict[str, Value]:
    """Read ``weights``, ``generation``, ``attr``, ... settings: all but arguments and configs.

    A hook that has a ``read_back(model)`` attribute is asked for its value; any other is recorded
    as ``{"called": value}``. A build input is recorded as it was given to the recipe, which
    proves what it took (evalguard's own do), a server's flag or variable as the server was started
    with it. Weights were
    compared with the checkpoint's when they were put in, before later edits could touch them.

    Raises:
        SettingError: the model holds another value than asked.
    """
    effective: dict[str, Value] = {}
    for name, (target, value) in plan.targets.items():
        if target.kind == "env":
            effective[name] = os.environ.get(target.path)
        elif target.kind in ("build", "serve", "package"):
            effective[name] = value
    if model is None:
        return effective
    effective |= {taken.setting: taken.checkpoint for taken in plan.weights}
    for setting, (name, value) in plan.generation.items():
        effective[setting] = read_generation(model, setting, name, value)
    for edit in plan.attributes:
        effective[edit.setting] = read_attribute(model, edit)
    for dtype in plan.dtypes:
        effective[dtype.setting] = read_dtype(model, dtype, plan.dtypes)
    for call in plan.calls:
        effective[call.setting] = _read_hook(model, call, code_folder, allow_code)
    return effective


def _read_hook(model: torch.nn.Module, call: HookCall, code_folder: str, allow_code: bool) -> Value:
    function = load_function(call.function, folder=code_folder, allowed=allow_code)
    read_back = getattr(function, "read_back", None)
    if read_back is None:
        return {"called": call.value}
    actual: Value = read_back(model)
    if actual != call.value:
        _did_not_take(call.setting, f"call:{call.function}", actual, call.value)
    return actual


def _read_argument(lm: Any, setting: str, name: str, asked: Value) -> Value:
    if name == "add_bos_token":
        return _read_bos(lm, setting, asked)
    if name == "dtype":
        return _read_dtype(lm, setting, asked)
    config = getattr(getattr(lm, "model", None), "config", None)
    places = ((lm, name), (config, name), (config, f"_{name}"))  # the last: attn_implementation
    actual = next(
        (getattr(o, attribute) for o, attribute in places if hasattr(o, attribute)), asked
    )
    if type(actual).__module__ == "torch":
        actual = str(actual).removeprefix("torch.")
    if not isinstance(actual, (bool, int, float, str)):
        return asked  # an object made from the argument (a tokenizer, a device map)
    same = str(actual) == asked if isinstance(asked, str) else actual == asked
    if not same and asked not in (None, "auto", "default"):
        _did_not_take(setting, f"model_args.{name}", actual, asked)
    return actual


def _read_config(config: Any, setting: str, path: str, asked: Value) -> Value:
    actual: Any = config
    for part in path.split("."):
        actual = actual[part] if isinstance(actual, dict) else getattr(actual, part)
    if isinstance(actual, tuple):
        actual = list(actual)
    elif type(actual).__module__ == "torch":
        actual = str(actual).removeprefix("torch.")
    if actual != asked:
        _did_not_take(setting, f"config.{path}", actual, asked)
    return actual  # type: ignore[no-any-return]


def _read_bos(lm: Any, setting: str, asked: Value) -> Value:
    """Encode a probe text: its ids must begin with one BOS exactly when that was asked."""
    encode = getattr(lm, "tok_encode", None)
    if encode is None:  # before asking for a tokenizer, which such a model may not have at hand
        return asked
    bos = getattr(getattr(lm, "tokenizer", None), "bos_token_id", None)
    ids = list(encode(_PROBE))
    count = 0
    while bos is not None and count < len(ids) and ids[count] == bos:
        count += 1
    if asked is not None and count != int(bool(asked)):
        description = f"{count} BOS tokens (id {bos}) before the text"
        _did_not_take(setting, "model_args.add_bos_token", description, asked)
    return count > 0


def _read_dtype(lm: Any, setting: str, asked: Value) -> Value:
    """The dtype of most of the weights: transformers keeps some modules in float32 on purpose."""
    import torch

    model = getattr(lm, "model", None)
    if not isinstance(model, torch.nn.Module):
        return asked
    sizes: dict[str, int] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            name = str(parameter.dtype).removeprefix("torch.")
            sizes[name] = sizes.get(name, 0) + parameter.numel()
    if not sizes:
        return asked
    dtype = max(sizes, key=lambda name: sizes[name])
    if asked not in (None, "auto") and getattr(torch, str(asked)) is not getattr(torch, dtype):
        _did_not_take(setting, "model_args.dtype", dtype, asked)
    return dtype


def _did_not_take(setting: str, where: str, found: object, asked: object) -> None:
    raise SettingError(
        f"setting '{setting}' did not take: {where} is {found!r} after loading, "
        f"asked was {asked!r}",
        hint="the model or its library overrides this value; nothing was scored",
        setting=setting,
    )


def _shown(value: str | None) -> str:
    return "no such variable" if value is None else repr(value)
