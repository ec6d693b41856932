"""Merge checkpoints with mergekit, and check what a merge must fulfil.

    build:
      call: evalguard.recipes.mergekit:merge
      inputs:
        base: ./base-model
        models: [{model: ./tuned, weight: 1.0, density: 0.5}]
        method: ties
        dtype: bfloat16

Needs ``mergekit`` from 0.1.5 on, whose methods declare their parameters: it leaves out any other
without a word, so every one that is given is checked and read back. With a single task vector, all
signs agree with the majority's, which is their own: a sign mask that is false anywhere comes from
deltas that are zero, and those come from the dtype (arcee-ai/mergekit #231).
``evalguard-merge.json`` in the output says what mergekit took, and how many there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalguard.errors import BuildError, UsageError, nearest
from evalguard.recipes.checkpoints import find_checkpoint

FACTS = "evalguard-merge.json"
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def merge(
    output: Path | str,
    base: str,
    models: Sequence[Mapping[str, Any]],
    method: str = "task_arithmetic",
    dtype: str = "float32",
    parameters: Mapping[str, Any] | None = None,
    normalize: bool | None = None,
    density: float | None = None,
    require_sign_consensus: bool = False,
) -> None:
    """Write a merged checkpoint, with the base's tokenizer.

    Args:
        base: folder of the base model.
        models: of each its folder (``model``) and its parameters (weight, density).
        method: of mergekit: linear, task_arithmetic, ties, dare_ties, slerp ... Its rule of
            consensus and how it makes a task vector sparse are attributes of it, no parameters.
        dtype: that the arithmetic is done in.
        parameters: of the whole merge; ``normalize`` and ``density`` are two of them.
        require_sign_consensus: whether a sign mask that is not all true fails the build.

    Raises:
        UsageError: a checkpoint that is not there, a method, dtype or parameter that mergekit does
            not know.
        BuildError: a parameter of which mergekit took no value; the sign mask of a single task
            vector is not all true, where that is required.
    """
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    known = _find_method(method)
    _find_dtype(dtype)
    if nameless := [index for index, one in enumerate(models) if "model" not in one]:
        raise UsageError(f"models.{nameless[0]} names no folder", hint="write {model: FOLDER}")
    base, *folders = (
        str(find_checkpoint(name).absolute()) for name in (base, *(one["model"] for one in models))
    )
    own = [{name: value for name, value in one.items() if name != "model"} for one in models]
    named = {"normalize": normalize, "density": density}
    whole = {**(parameters or {}), **{k: v for k, v in named.items() if v is not None}}
    given = {"parameters": whole, **{f"models.{index}": one for index, one in enumerate(own)}}
    for place, values in given.items():
        _check_parameters(known, place, values)
    told = {
        "merge_method": method,
        "base_model": base,
        "models": [
            {"model": folder, "parameters": one} for folder, one in zip(folders, own, strict=True)
        ],
        "dtype": dtype,
        "parameters": whole,
    }
    with _watch_parameters() as taken:
        run_merge(
            MergeConfiguration.model_validate(told),
            out_path=str(output),
            options=MergeOptions(cuda=False, copy_tokenizer=True, lazy_unpickle=False),
        )
    _read_back(known, given, folders, taken)
    facts: dict[str, Any] = {
        "method": method,
        "dtype": dtype,
        "parameters": {name: sorted(values) for name, values in _values_taken(taken).items()},
    }
    if len(models) == 1:
        facts["sign_mask"] = check_sign_mask(base, folders[0], dtype)
        if require_sign_consensus and facts["sign_mask"]["false"]:
            share = facts["sign_mask"]["false_share"]
            raise BuildError(
                f"the sign mask of the one task vector is false for {share:.3%} of its elements: "
                f"their deltas are 0 in {dtype}",
                hint="dtype: float32 keeps small deltas, if the checkpoints have them",
            )
    Path(str(output), FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _find_method(name: str) -> Any:
    from mergekit.merge_methods import registry

    methods = {one.spec.name: one for one in registry.registered_methods()}
    if name not in methods:
        raise UsageError(
            f"mergekit has no method '{name}'{nearest(name, methods)}",
            hint=f"one of: {', '.join(methods)}",
        )
    return methods[name]


def _find_dtype(name: str) -> Any:
    from mergekit.common import dtype_from_name

    try:
        found = dtype_from_name(name)
    except RuntimeError:
        found = None
    if found is None or not found.is_floating_point:
        raise UsageError(
            f"mergekit does not merge in dtype '{name}'{nearest(name, _DTYPES)}",
            hint=f"one of: {', '.join(_DTYPES)}",
        )
    return found


def _check_parameters(method: Any, place: str, values: Mapping[str, Any]) -> None:
    """Refuse what a method does not declare: mergekit would leave it out without a word."""
    declared = {one.name: one for one in method.spec.parameters}
    of_whole = {one.name for one in method.spec.shared_parameters}
    for name, value in values.items():
        if name not in declared:
            raise UsageError(
                f"{place}.{name}: method {method.spec.name} has no such parameter"
                f"{nearest(name, declared)}{_attribute_words(method, name)}",
                hint=f"its parameters: {', '.join(declared)}",
            )
        if name in of_whole and place != "parameters":
            raise UsageError(
                f"{place}.{name}: method {method.spec.name} has one {name} for the whole merge",
                hint=f"write parameters: {{{name}: ...}} beside models",
            )
        for _, one in _conditions(f"{place}.{name}", value):
            _validate(f"{place}.{name}", declared[name], one)


def _validate(place: str, parameter: Any, value: Any) -> None:
    """Ask the parameter about a value, or about each of a gradient's."""
    try:
        found = [parameter.validate(one) for one in (value if isinstance(value, list) else [value])]
    except ValueError as error:  # pydantic's; its text is of several lines
        kind = getattr(parameter.value_type, "__name__", parameter.value_type)
        raise UsageError(f"{place}: mergekit takes {kind} there, not {value!r}") from error
    if not found:
        raise UsageError(f"{place}: an empty list stands for no value")


def _attribute_words(method: Any, name: str) -> str:
    """Say which methods have what as an attribute, where that is no parameter of any."""
    from mergekit.merge_methods import registry

    attribute = next((one for one in vars(method) if one in (name, f"{name}_method")), "")
    if not attribute:
        return ""
    methods: dict[str, list[str]] = {}
    for one in registry.registered_methods():
        if attribute in vars(one):
            value = getattr(one, attribute)
            methods.setdefault(str(getattr(value, "value", value)), []).append(one.spec.name)
    held = "; ".join(f"{value} in {', '.join(names)}" for value, names in methods.items())
    return f"; {attribute} is an attribute that the method's name decides: {held}"


def _conditions(place: str, value: Any) -> list[tuple[str, Any]]:
    """What a parameter's value is for which tensors: filter and value, "*" for all of them."""
    several = isinstance(value, list) and any(isinstance(one, Mapping) for one in value)
    found = []
    for one in value if several else [value]:
        if isinstance(one, Mapping) and ("value" not in one or one.keys() - {"value", "filter"}):
            raise UsageError(f"{place}: {one!r} is no condition", hint="{filter: ..., value: ...}")
        condition = one if isinstance(one, Mapping) else {"value": one}
        found.append((str(condition.get("filter") or "*"), condition["value"]))
    return found


# Of each tensor its name, the parameters of the whole merge, and those of each model by its folder.
_Taken = list[tuple[str, Mapping[str, Any], Mapping[str, Mapping[str, Any]]]]


@contextmanager
def _watch_parameters() -> Iterator[_Taken]:
    """Note what mergekit's planner resolves; it validates no name, and shows no plan."""
    from mergekit import plan

    resolve = plan.resolve_parameters
    taken: _Taken = []

    def resolve_and_note(*args: Any, **named: Any) -> Any:
        whole, own = resolve(*args, **named)
        folders = {str(model.model.path): values for model, values in own.items()}
        taken.append((named["tensor_name"], whole, folders))
        return whole, own

    plan.resolve_parameters = resolve_and_note
    try:
        yield taken
    finally:
        plan.resolve_parameters = resolve


def _values_taken(taken: _Taken) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for _, whole, own in taken:
        for values in (whole, *own.values()):
            for name, value in values.items():
                found.setdefault(name, set()).add(value)
    return found


def _read_back(
    method: Any, given: Mapping[str, Mapping[str, Any]], folders: Sequence[str], taken: _Taken
) -> None:
    """Hold every parameter that was given to what mergekit resolved for the tensors.

    Raises:
        BuildError: a value that no tensor has.
    """
    declared = {one.name: one for one in method.spec.parameters}
    owners = {folder: given[f"models.{index}"] for index, folder in enumerate(folders)}
    for place, values in given.items():
        folder = "" if place == "parameters" else folders[int(place.partition(".")[2])]
        for name, value in values.items():
            found = [
                (tensor, held[name])
                for tensor, whole, own in taken
                for held in (
                    [own.get(folder, {})]
                    if folder
                    else [whole, *(v for k, v in own.items() if name not in owners.get(k, {}))]
                )
                if name in held
            ]
            if not found:
                reason = "the base has none" if folder else "every model has its own"
                raise BuildError(f"{place}.{name} = {value!r} is taken by no model: {reason}")
            for part, one in _conditions(place, value):
                fits = [held for tensor, held in found if part == "*" or part in tensor]
                # Of a gradient tensors have what lies between its values.
                if not (fits if isinstance(one, list) else declared[name].validate(one) in fits):
                    raise BuildError(
                        f"{place}.{name}: no tensor takes {one!r}"
                        + ("" if part == "*" else f", of which the filter is '{part}'"),
                        hint=f"tensors are named like {found[0][0]}; the first condition that fits "
                        "counts",
                    )


def check_sign_mask(base: str, model: str, dtype: str) -> dict[str, Any]:
    """Count where mergekit's sign mask of a single task vector is false.

    Returns:
        elements, false, false_share, and the tensor with the largest share.
    """
    from mergekit.merge_methods.generalized_task_arithmetic import get_mask

    elements = false = 0
    worst, worst_share = "", 0.0
    for name, ours, theirs in _pairs(Path(base), Path(model)):
        kind = _find_dtype(dtype)
        delta = (theirs.to(kind) - ours.to(kind)).unsqueeze(0)
        wrong = int((~get_mask(delta, "sum")).sum())
        elements, false = elements + delta.numel(), false + wrong
        if wrong / delta.numel() > worst_share:
            worst, worst_share = name, wrong / delta.numel()
    return {
        "elements": elements,
        "false": false,
        "false_share": false / elements if elements else 0.0,
        "worst_tensor": worst,
        "worst_share": worst_share,
    }


def _pairs(base: Path, model: Path) -> Iterator[tuple[str, Any, Any]]:
    """Tensors that both checkpoints have."""
    from safetensors import safe_open

    places: dict[str, Path] = {}
    for file in sorted(base.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            places |= dict.fromkeys(opened.keys(), file)
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, framework="pt") as theirs:
            for name in theirs.keys():  # noqa: SIM118  not a mapping
                if name in places:
                    with safe_open(places[name], framework="pt") as ours:
                        yield name, ours.get_tensor(name), theirs.get_tensor(name)
