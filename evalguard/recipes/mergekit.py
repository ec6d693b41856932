"""Merge checkpoints with mergekit, and check what a merge must fulfil.

    build:
      call: evalguard.recipes.mergekit:merge
      inputs:
        base: ./base-model
        models: [{model: ./tuned, weight: 1.0, density: 0.5}]
        method: ties
        dtype: bfloat16

Needs ``mergekit``. With a single task vector, all signs agree with the majority's, which is their
own: a sign mask that is false anywhere comes from deltas that are zero, and those come from the
dtype (arcee-ai/mergekit #231). ``evalguard-merge.json`` in the output says how many there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalguard.errors import BuildError
from evalguard.recipes.checkpoints import find_checkpoint

FACTS = "evalguard-merge.json"


def merge(
    output: Path | str,
    base: str,
    models: Sequence[Mapping[str, Any]],
    method: str = "task_arithmetic",
    dtype: str = "float32",
    parameters: Mapping[str, Any] | None = None,
    normalize: bool | None = None,
    density: float | None = None,
    consensus: str | None = None,
    require_sign_consensus: bool = False,
) -> None:
    """Write a merged checkpoint, with the base's tokenizer.

    Args:
        base: folder of the base model.
        models: of each its folder (``model``) and its parameters (weight, density).
        method: of mergekit: linear, task_arithmetic, ties, dare_ties, slerp ...
        dtype: that the arithmetic is done in.
        parameters: of the whole merge; ``normalize``, ``density`` and ``consensus`` (its
            ``consensus_method``) are those that are often settings.
        require_sign_consensus: whether a sign mask that is not all true fails the build.

    Raises:
        UsageError: a checkpoint that is not there.
        BuildError: the sign mask of a single task vector is not all true, where that is required.
    """
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    folders = [str(one["model"]) for one in models]
    base, *folders = (str(find_checkpoint(name).absolute()) for name in (base, *folders))
    whole = dict(parameters or {})
    named = {"normalize": normalize, "density": density, "consensus_method": consensus}
    whole |= {name: value for name, value in named.items() if value is not None}
    told = {
        "merge_method": method,
        "base_model": base,
        "models": [
            {
                "model": folder,
                "parameters": {name: value for name, value in one.items() if name != "model"},
            }
            for folder, one in zip(folders, models, strict=True)
        ],
        "dtype": dtype,
        "parameters": whole,
    }
    run_merge(
        MergeConfiguration.model_validate(told),
        out_path=str(output),
        options=MergeOptions(cuda=False, copy_tokenizer=True, lazy_unpickle=False),
    )
    facts: dict[str, Any] = {"method": method, "dtype": dtype, "parameters": whole}
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


def check_sign_mask(base: str, model: str, dtype: str) -> dict[str, Any]:
    """Count where mergekit's sign mask of a single task vector is false.

    Returns:
        elements, false, false_share, and the tensor with the largest share.
    """
    import torch
    from mergekit.merge_methods.generalized_task_arithmetic import get_mask

    elements = false = 0
    worst, worst_share = "", 0.0
    for name, ours, theirs in _pairs(Path(base), Path(model)):
        kind = getattr(torch, dtype)
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
