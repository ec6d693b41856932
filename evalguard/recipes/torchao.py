"""Quantise a checkpoint with torchao, save it, and prove that loading gives the same model.

    build:
      call: evalguard.recipes.torchao:quantise
      inputs: {source: orig, config: Int8WeightOnlyConfig, skip: [lm_head]}

Needs ``torchao`` and ``transformers``; the model that is made is loaded by model: hf in an
environment that has both. ``TorchAoConfig`` covers the output embedding too, where
``torchao.quantize_`` on a module leaves it as it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalguard.errors import BuildError, UsageError, nearest
from evalguard.recipes.checkpoints import find_checkpoint

_PROBE = "The quick brown fox jumps over the lazy dog."


def quantise(
    output: Path | str,
    source: str,
    config: str = "Int8WeightOnlyConfig",
    arguments: Mapping[str, Any] | None = None,
    skip: Sequence[str] = (),
    dtype: str = "float32",
) -> None:
    """Write a quantised checkpoint with its tokenizer.

    Args:
        source: checkpoint folder.
        config: name of a configuration class of ``torchao.quantization``, or "none": the weights
            as they are in ``dtype``.
        arguments: of that class, plain values; ``weight_dtype: int4`` names a torch dtype.
        skip: modules that stay as they are.
        dtype: that the checkpoint is loaded in.

    Raises:
        UsageError: no such configuration.
        BuildError: what was loaded again is not bit for bit what was saved.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TorchAoConfig

    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "use_safetensors": True}
    if config != "none":
        made = _configuration(config, arguments or {})
        options["quantization_config"] = TorchAoConfig(
            quant_type=made, modules_to_not_convert=list(skip) or None
        )
    folder = str(find_checkpoint(source))
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.save_pretrained(str(output))
    tokenizer.save_pretrained(str(output))
    again = AutoModelForCausalLM.from_pretrained(str(output), dtype=getattr(torch, dtype)).eval()
    ids = torch.tensor([tokenizer.encode(_PROBE)])
    with torch.inference_mode():
        before, after = model(ids).logits, again(ids).logits
    if not torch.equal(before, after):
        worst = float((before - after).abs().max())
        raise BuildError(
            f"saving and loading is not exact: of {before.numel():,} logits "
            f"{int((before != after).sum()):,} differ, by {worst:.3g} at most"
        )


def _configuration(name: str, arguments: Mapping[str, Any]) -> Any:
    import torch

    module = importlib.import_module("torchao.quantization")
    known = [one for one in dir(module) if one.endswith("Config")]
    if name not in known:
        raise UsageError(
            f"torchao has no configuration '{name}'{nearest(name, known)}",
            hint=f"one of: {', '.join(known)}",
        )
    given = {
        key: getattr(torch, value) if key.endswith("dtype") and isinstance(value, str) else value
        for key, value in arguments.items()
    }
    return getattr(module, name)(**given)
