"""Quantise a checkpoint with torchao, save it, and prove that loading gives the same model.

    build:
      call: evalguard.recipes.torchao:quantise
      inputs: {source: orig, config: Int8WeightOnlyConfig, skip: [lm_head]}

Needs ``torchao`` and ``transformers``; the model that is made is loaded by model: hf in an
environment that has both.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from evalguard.errors import BuildError, UsageError, nearest
from evalguard.recipes.checkpoints import find_checkpoint

_PROBE = "The quick brown fox jumps over the lazy dog."


def quantise(
    output: Path | str,
    source: str,
    config: str = "Int8WeightOnlyConfig",
    arguments: Mapping[str, Any] | None = None,
    skip: Sequence[str] | None = None,
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32",
) -> None:
    """Write a quantised checkpoint with its tokenizer.

    Args:
        source: checkpoint folder.
        config: name of a configuration class of ``torchao.quantization``, or "none": the weights
            as they are in ``dtype``.
        arguments: of that class, plain values; ``weight_dtype: int4`` names a torch dtype,
            ``granularity: {PerGroup: 32}`` a class of the library with its size.
        skip: modules that stay as they are; None: those that transformers leaves, which is the
            output embedding; []: none. One that is tied to the input embedding always stays.
        dtype: that the checkpoint is loaded in.

    Raises:
        UsageError: no such configuration or argument, or a module to skip that the model does not
            have.
        BuildError: nothing was quantised, or what was loaded again is not bit for bit what was
            saved.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TorchAoConfig

    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "use_safetensors": True}
    if config != "none":
        made = _configuration(config, arguments or {})
        options["quantization_config"] = TorchAoConfig(
            quant_type=made, modules_to_not_convert=None if skip is None else list(skip)
        )
    folder = str(find_checkpoint(source))
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    _check_names(skip or (), [name for name, _ in model.named_modules()])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.save_pretrained(str(output))
    tokenizer.save_pretrained(str(output))
    again = AutoModelForCausalLM.from_pretrained(str(output), dtype=getattr(torch, dtype)).eval()
    if config != "none" and all(
        type(parameter.data) is torch.Tensor for parameter in again.parameters()
    ):
        raise BuildError(
            f"{config} quantised nothing: every weight is a plain tensor",
            hint="its arguments do not fit the shapes of the weights, or skip names all of them",
        )
    ids = torch.tensor([tokenizer.encode(_PROBE)])
    with torch.inference_mode():
        before, after = model(ids).logits, again(ids).logits
    if not torch.equal(before, after):
        worst = float((before - after).abs().max())
        raise BuildError(
            f"saving and loading is not exact: of {before.numel():,} logits "
            f"{int((before != after).sum()):,} differ, by {worst:.3g} at most"
        )


def _check_names(skip: Sequence[str], modules: Sequence[str]) -> None:
    """transformers takes a name for a prefix, a suffix or a part between dots, or a regex."""
    for name in skip:
        if not any(name in module or re.match(name, module) for module in modules):
            raise UsageError(f"skip: the model has no module '{name}'{nearest(name, modules)}")


def _configuration(name: str, arguments: Mapping[str, Any]) -> Any:
    module = importlib.import_module("torchao.quantization")
    known = [attribute for attribute in dir(module) if attribute.endswith("Config")]
    if name not in known:
        raise UsageError(
            f"torchao has no configuration '{name}'{nearest(name, known)}",
            hint=f"one of: {', '.join(known)}",
        )
    kind = getattr(module, name)
    parameters = inspect.signature(kind).parameters
    fields = [parameter for parameter in parameters if parameter != "self"]
    for key, value in arguments.items():
        if key not in fields:
            raise UsageError(
                f"arguments: {name} has no '{key}'{nearest(key, fields)}",
                hint=f"it has: {', '.join(fields) or 'none'}",
            )
        # torchao takes any text for true.
        if isinstance(parameters[key].default, bool) and not isinstance(value, bool):
            raise UsageError(f"arguments: {key}: {value!r} is neither true nor false")
        if type(parameters[key].default) is int and type(value) is not int:
            raise UsageError(f"arguments: {key}: {value!r} is no whole number")
    given = {key: _argument(module, key, value) for key, value in arguments.items()}
    try:
        return kind(**given)
    except (AssertionError, TypeError, ValueError) as error:
        raise UsageError(f"arguments: {name} refuses {dict(arguments)}: {error}") from error


def _argument(module: Any, key: str, value: Any) -> Any:
    """A torch dtype by its name; ``{PerGroup: 32}`` as the granularity it is."""
    import torch

    if key.endswith("dtype") and isinstance(value, str):
        torch_dtype = getattr(torch, value, None)
        if not isinstance(torch_dtype, torch.dtype):
            raise UsageError(f"arguments: {key}: torch has no dtype '{value}'")
        return torch_dtype
    if not (isinstance(value, Mapping) and len(value) == 1):
        return value
    ((name, size),) = value.items()
    known = [attribute for attribute in dir(module) if attribute.startswith("Per")]
    if name not in known:
        raise UsageError(
            f"arguments: {key}: torchao has no '{name}'{nearest(str(name), known)}",
            hint=f"one of: {', '.join(known)}",
        )
    count = type(size) is int and size >= (name == "PerGroup")
    if not (size is None or count or isinstance(size, list)):
        raise UsageError(
            f"arguments: {key}: {name} takes a whole number, not {size!r}",
            hint=f"{key}: {{PerGroup: 32}}",
        )
    return getattr(module, name)() if size is None else getattr(module, name)(size)
