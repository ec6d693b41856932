"""Merge checkpoints with mergekit, and check what a merge must fulfil.

    build:
      call: evalguard.recipes.mergekit:merge
      inputs:
        base: ./base-model
        models: [{model: ./tuned, weight: 1.0, density: 0.5}]
        method: ties
        dtype: bfloat16

Needs ``mergekit`` from 0.1.5 on, whose methods declare their parameters: it leaves out any other
without a word, so every one that is given is checked and read back. A delta that is 0 has no sign,
and the mask of sign consensus is false there whatever the majority says: those of rows that were
never trained are told apart from those that rounding lost (arcee-ai/mergekit #231).
``evalguard-merge.json`` in the output says what mergekit took, and counts them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalguard.core.untrained_rows import count_untrained
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
        require_sign_consensus: whether deltas that rounding has made 0 fail the build; the error
            names the tensors.

    Raises:
        UsageError: a checkpoint that is not there, a method, dtype or parameter that mergekit does
            not know.
        BuildError: a parameter of which mergekit took no value; a sign mask that is false where
            something was trained, if that is required.
    """
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    known = _find_method(method)
    _find_dtype(dtype)
    if not models:
        raise UsageError("models names none that would be merged into base")
    if nameless := [index for index, entry in enumerate(models) if "model" not in entry]:
        raise UsageError(f"models.{nameless[0]} names no folder", hint="write {model: FOLDER}")
    base, *folders = (
        str(find_checkpoint(name).absolute())
        for name in (base, *(entry["model"] for entry in models))
    )
    real = [Path(folder).resolve() for folder in folders]
    for index, folder in enumerate(real):
        if (first := real.index(folder)) < index:
            raise UsageError(
                f"models.{index} is models.{first} once more ({folders[index]})",
                hint="mergekit takes a folder once: give it the sum of both weights",
            )
    own = [{name: value for name, value in entry.items() if name != "model"} for entry in models]
    named = {"normalize": normalize, "density": density}
    whole = {**(parameters or {}), **{k: v for k, v in named.items() if v is not None}}
    given = {
        "parameters": whole,
        **{f"models.{index}": settings for index, settings in enumerate(own)},
    }
    for key, values in given.items():
        _check_parameters(known, key, values)
    config = {
        "merge_method": method,
        "base_model": base,
        "models": [
            {"model": folder, "parameters": settings}
            for folder, settings in zip(folders, own, strict=True)
        ],
        "dtype": dtype,
        "parameters": whole,
    }
    with _watch_parameters() as taken:
        run_merge(
            MergeConfiguration.model_validate(config),
            out_path=str(output),
            options=MergeOptions(cuda=False, copy_tokenizer=True, lazy_unpickle=False),
        )
    _read_back(known, given, folders, taken)
    merged = "" if _leaves_elements(known, taken) else str(output)
    vectors = [folder for folder in folders if folder != base]
    facts: dict[str, Any] = {
        "method": method,
        "dtype": dtype,
        "parameters": {name: sorted(values) for name, values in _values_taken(taken).items()},
        "unused": sorted(_list_unused(known, {n for values in given.values() for n in values})),
        "deltas": examine_deltas(
            base, vectors, dtype, merged=merged, weights=_weights(vectors, taken)
        ),
    }
    Path(str(output), FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if require_sign_consensus:
        _require_deltas(facts["deltas"], dtype)


def _require_deltas(found: Mapping[str, Any], dtype: str) -> None:
    lost, trained = found["lost_before"] + found["lost_in_merge"], found["trained"]
    if not lost:
        return
    listed = [
        f"{tensor['name']} ({tensor['lost'] / tensor['trained']:.3%})"
        for tensor in found["tensors"]
    ]
    unlisted = found["tensors_with_loss"] - len(listed)
    raise BuildError(
        f"the sign mask is false for {lost:,} of {trained:,} trained elements of the task vectors "
        f"({lost / trained:.3%}): their deltas are 0 in {dtype}; most in {', '.join(listed)}"
        + (f", and in {unlisted} more tensors" if unlisted else ""),
        hint=f"{found['lost_before']:,} are 0 in the checkpoints, which no dtype of a merge mends; "
        f"{found['lost_in_merge']:,} are lost by dtype {dtype}, and float32 keeps them",
    )


# What a method must have for a parameter that it declares to do anything.
_NEEDS = {"density": "sparsification_method", "rescale": "sparsification_method",
          "int8_mask": "consensus_method"}  # fmt: skip


def _list_unused(method: Any, given: set[str]) -> list[str]:
    """Parameters that a method declares and never reads."""
    return [name for name in given if getattr(method, _NEEDS.get(name, ""), "") is None]


def _leaves_elements(method: Any, taken: _Taken) -> bool:
    """Whether a merge leaves the base's elements on purpose, or adds up no task vectors."""
    if not hasattr(method, "sparsification_method"):
        return True
    least = min(_values_taken(taken).get("density", {1.0}))
    return method.sparsification_method is not None and least < 1.0


def _weights(vectors: Sequence[str], taken: _Taken) -> dict[str, list[float]]:
    """Of each tensor the weight of each task vector; 1 where the method has none."""
    return {
        tensor: [float(own.get(folder, {}).get("weight", 1.0)) for folder in vectors]
        for tensor, _, own in taken
    }


def _find_method(name: str) -> Any:
    from mergekit.merge_methods import registry

    methods = {method.spec.name: method for method in registry.registered_methods()}
    if name not in methods:
        raise UsageError(
            f"mergekit has no method '{name}'{nearest(name, methods)}",
            hint=f"one of: {', '.join(methods)}",
        )
    return methods[name]


def _find_dtype(name: str) -> Any:
    from mergekit.common import dtype_from_name

    try:
        torch_dtype = dtype_from_name(name)
    except RuntimeError:
        torch_dtype = None
    if torch_dtype is None or not torch_dtype.is_floating_point:
        raise UsageError(
            f"mergekit does not merge in dtype '{name}'{nearest(name, _DTYPES)}",
            hint=f"one of: {', '.join(_DTYPES)}",
        )
    return torch_dtype


def _check_parameters(method: Any, place: str, values: Mapping[str, Any]) -> None:
    """Refuse what a method does not declare: mergekit would leave it out without a word."""
    declared = {parameter.name: parameter for parameter in method.spec.parameters}
    of_whole = {parameter.name for parameter in method.spec.shared_parameters}
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
        for _, condition_value in _conditions(f"{place}.{name}", value):
            _validate(f"{place}.{name}", declared[name], condition_value)


def _validate(place: str, parameter: Any, value: Any) -> None:
    """Ask the parameter about a value, or about each of a gradient's."""
    try:
        validated = [
            parameter.validate(element)
            for element in (value if isinstance(value, list) else [value])
        ]
    except ValueError as error:  # pydantic's; its text is of several lines
        kind = getattr(parameter.value_type, "__name__", parameter.value_type)
        raise UsageError(f"{place}: mergekit takes {kind} there, not {value!r}") from error
    if not validated:
        raise UsageError(f"{place}: an empty list stands for no value")
    if place.endswith(".density") and not all(0 <= density <= 1 for density in validated):
        # mergekit keeps everything above 1, and counts from the other end below 0
        raise UsageError(f"{place}: a density is a share from 0 to 1, not {value!r}")


def _attribute_words(method: Any, name: str) -> str:
    """Say which methods have what as an attribute, where that is no parameter of any."""
    from mergekit.merge_methods import registry

    attribute = next((field for field in vars(method) if field in (name, f"{name}_method")), "")
    if not attribute:
        return ""
    methods: dict[str, list[str]] = {}
    for registered in registry.registered_methods():
        if attribute in vars(registered):
            value = getattr(registered, attribute)
            methods.setdefault(str(getattr(value, "value", value)), []).append(registered.spec.name)
    held = "; ".join(f"{value} in {', '.join(names)}" for value, names in methods.items())
    return f"; {attribute} is an attribute that the method's name decides: {held}"


def _conditions(place: str, value: Any) -> list[tuple[str, Any]]:
    """What a parameter's value is for which tensors: filter and value, "*" for all of them."""
    several = isinstance(value, list) and any(isinstance(element, Mapping) for element in value)
    conditions = []
    for item in value if several else [value]:
        if isinstance(item, Mapping) and ("value" not in item or item.keys() - {"value", "filter"}):
            raise UsageError(f"{place}: {item!r} is no condition", hint="{filter: ..., value: ...}")
        condition = item if isinstance(item, Mapping) else {"value": item}
        conditions.append((str(condition.get("filter") or "*"), condition["value"]))
    return conditions


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
    values_by_name: dict[str, set[Any]] = {}
    for _, whole, own in taken:
        for values in (whole, *own.values()):
            for name, value in values.items():
                values_by_name.setdefault(name, set()).add(value)
    return values_by_name


def _read_back(
    method: Any, given: Mapping[str, Mapping[str, Any]], folders: Sequence[str], taken: _Taken
) -> None:
    """Hold every parameter that was given to what mergekit resolved for the tensors.

    Raises:
        BuildError: a value that no tensor has.
    """
    declared = {parameter.name: parameter for parameter in method.spec.parameters}
    owners = {folder: given[f"models.{index}"] for index, folder in enumerate(folders)}
    for key, values in given.items():
        folder = "" if key == "parameters" else folders[int(key.partition(".")[2])]
        for name, value in values.items():
            pairs = [
                (tensor, held[name])
                for tensor, whole, own in taken
                for held in (
                    [own.get(folder, {})]
                    if folder
                    else [whole, *(v for k, v in own.items() if name not in owners.get(k, {}))]
                )
                if name in held
            ]
            if not pairs:
                reason = "the base has none" if folder else "every model has its own"
                raise BuildError(f"{key}.{name} = {value!r} is taken by no model: {reason}")
            for part, condition_value in _conditions(key, value):
                fits = [held for tensor, held in pairs if part == "*" or part in tensor]
                # Of a gradient tensors have what lies between its values.
                if not (
                    fits
                    if isinstance(condition_value, list)
                    else declared[name].validate(condition_value) in fits
                ):
                    raise BuildError(
                        f"{key}.{name}: no tensor takes {condition_value!r}"
                        + ("" if part == "*" else f", of which the filter is '{part}'"),
                        hint=f"tensors are named like {pairs[0][0]}; the first condition that fits "
                        "counts",
                    )


def examine_deltas(
    base: str,
    vectors: Sequence[str],
    dtype: str,
    *,
    merged: str = "",
    weights: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Any]:
    """Count the deltas of task vectors that are 0, and mergekit's sign mask of all of them.

    Args:
        base, vectors: folders of the base and of the models that were trained from it.
        dtype: of the merge, in which the deltas are computed.
        merged: folder of what came out, where every delta was to be added to the base; "": where
            elements are left as they were on purpose.
        weights: of each tensor, those of the vectors; 1 where nothing is said.

    Returns:
        elements of all vectors; of these ``mask_false``; ``untrained`` (in rows without a change);
        ``trained``, all others; of these 0 already in the checkpoint (``lost_before``), and 0 by
        the dtype (``lost_in_merge``); ``outvoted``: not 0, of the minority's sign; ``lost_in_sum``:
        elements of the base that a delta is added to without a change. The tensors that lost most.
    """
    import torch
    from mergekit.merge_methods.generalized_task_arithmetic import get_mask

    kind, counts = _find_dtype(dtype), dict.fromkeys(_COUNTED, 0)
    tensors: list[dict[str, Any]] = []
    for name, ours, theirs in _read_together(
        Path(base), [Path(vector) for vector in vectors], merged
    ):
        *trained, made = theirs
        of_base, lost, changed = ours.to(kind), 0, 0
        deltas = torch.stack([weight.to(kind) - of_base for weight in trained])
        for delta, tensor in zip(deltas, trained, strict=True):
            same = tensor.to(torch.promote_types(tensor.dtype, ours.dtype)) == ours
            rows = same.reshape(-1, same.shape[-1] if same.ndim else 1)
            untrained = count_untrained(rows.sum(dim=1).numpy(), rows.shape[1])
            before, within = int(same.sum()) - untrained, int(((delta == 0) & ~same).sum())
            counts["untrained"] += untrained
            counts["trained"] += delta.numel() - untrained
            counts["lost_before"] += before
            counts["lost_in_merge"] += within
            lost, changed = lost + before + within, changed + delta.numel() - untrained
        scale = torch.tensor((weights or {}).get(name, [1.0] * len(trained)), dtype=kind)
        deltas *= scale.reshape(-1, *[1] * (deltas.ndim - 1))
        mask = get_mask(deltas, "sum")
        counts["elements"] += deltas.numel()
        counts["mask_false"] += int((~mask).sum())
        counts["outvoted"] += int((~mask & (deltas != 0)).sum())
        if made is not None:
            # Of one sign: none takes another back.
            one_sided = (deltas >= 0).all(dim=0) | (deltas <= 0).all(dim=0)
            added = one_sided & (deltas != 0).any(dim=0)
            counts["added"] += int(added.sum())
            counts["lost_in_sum"] += int((added & (made.to(kind) == of_base)).sum())
        if lost:
            tensors.append({"name": name, "lost": lost, "trained": changed})
    tensors.sort(key=lambda entry: -entry["lost"] / entry["trained"])
    return {**counts, "tensors_with_loss": len(tensors), "tensors": tensors[:_MOST_TENSORS]}


_COUNTED = ("elements", "mask_false", "untrained", "trained", "lost_before", "lost_in_merge",
            "outvoted", "added", "lost_in_sum")  # fmt: skip
_MOST_TENSORS = 3


def _read_together(
    base: Path, vectors: Sequence[Path], merged: str
) -> Iterator[tuple[str, Any, list[Any]]]:
    """Tensors of floating point that all have in one shape: name, the base's, the others'.

    The last of these is the merged one, or None.
    """
    from safetensors import safe_open

    def find(folder: Path) -> dict[str, Path]:
        files: dict[str, Path] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                files |= dict.fromkeys(opened.keys(), file)
        return files

    def read(place: dict[str, Path], name: str) -> Any:
        with safe_open(place[name], framework="pt") as opened:
            return opened.get_tensor(name)

    places, made = [find(vector) for vector in vectors], find(Path(merged)) if merged else {}
    for name, file in find(base).items():
        if not vectors or any(name not in files for files in places):
            continue
        ours, theirs = read({name: file}, name), [read(files, name) for files in places]
        alike = all(tensor.shape == ours.shape for tensor in theirs)
        if alike and ours.is_floating_point() and ours.numel():
            own = read(made, name) if name in made else None
            fits = own is not None and own.shape == ours.shape
            yield name, ours, [*theirs, own if fits else None]
