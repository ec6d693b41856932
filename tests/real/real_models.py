"""The real model's conversions: a guard file of settings, and model folders made from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml
from hooks import round_linear_weights
from real_tasks import LAST_WORD

_HOOK = f"call:{Path(__file__).with_name('hooks.py')}:round_linear_weights"
_SCALE = 8**-0.5  # 1 / sqrt(head_dim)

# name -> (reference, candidate, target) of the one setting that the variant `name` has
CONVERSIONS: dict[str, tuple[Any, Any, str]] = {
    "bf16": ("float32", "bfloat16", "model_args.dtype"),
    "int8": (None, 8, _HOOK),
    "int5": (None, 5, _HOOK),
    "scale-up": (_SCALE, _SCALE * 1.0695, "attr:model.layers.*.self_attn.scaling"),
    "scale-down": (_SCALE, _SCALE / 1.0695, "attr:model.layers.*.self_attn.scaling"),
    "rope-base": (10000.0, 50000.0, "config.rope_parameters.rope_theta"),
    "norms-bf16": ("float32", "bfloat16", "dtype:**norm"),
    "gelu": ("silu", "gelu", "config.hidden_act"),
    "no-bos": (True, False, "model_args.add_bos_token"),
    # an environment variable that changes nothing here, but needs a process of its own
    "own-process": (None, "false", "env.TOKENIZERS_PARALLELISM"),
}


def write_guard(folder: Path, model: Path, tasks: Path) -> Path:
    """Write a guard file with the real model as `orig` and one variant per conversion."""
    eos = with_eos_for_bos(model, folder / "eos-for-bos")
    conversions = {
        **CONVERSIONS,
        "eos-for-bos": (str(model), str(eos), "model_args.tokenizer"),
    }
    models: dict[str, Any] = {
        "orig": {"model": "hf", "model_args": {"pretrained": str(model), "dtype": "float32"}},
        # a port that no longer adds BOS, and whose author does not know it
        "lost-bos": {"extends": "orig", "model_args": {"add_bos_token": False}},
        "int5-folder": {
            "extends": "orig",
            "model_args": {"pretrained": str(rounded_copy(model, folder / "int5", bits=5))},
        },
    }
    for name, (reference, candidate, target) in conversions.items():
        setting = {"reference": reference, "candidate": candidate, "target": target}
        models[name] = {"extends": "orig", "settings": {"converted": setting}}
    guard = {"models": models, "tasks": [LAST_WORD], "include_path": str(tasks)}
    path = folder / "guard.yaml"
    path.write_text(yaml.safe_dump(guard, sort_keys=False))
    return path


def with_eos_for_bos(model: Path, folder: Path) -> Path:
    """Write a tokenizer that puts EOS where the model was trained with BOS."""
    folder.mkdir()
    shutil.copy(model / "tokenizer_config.json", folder)
    rules = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    template = rules["post_processor"]
    first = template["single"][0]["SpecialToken"]
    assert first["id"] == "<s>"
    first["id"] = "</s>"
    template["special_tokens"] = {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}
    (folder / "tokenizer.json").write_text(json.dumps(rules), encoding="utf-8")
    return folder


def rounded_copy(model: Path, folder: Path, *, bits: int) -> Path:
    """Save the model with rounded weights: what a converter leaves on disk."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        round_linear_weights(loaded, bits)
    loaded.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, folder)
    return folder
