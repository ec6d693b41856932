"""Random models, and candidates made of them: a copy, rounded weights, weights with noise."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed.vocabulary import save_tokenizer

SEED = 20261120
# Weights wide enough that every context has a continuation of its own.
_COMMON = {
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 512,
    "initializer_range": 0.1, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
_GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64}
_HYBRID = {
    "num_hidden_layers": 2, "head_dim": 32, "linear_num_key_heads": 3,
    "linear_num_value_heads": 6, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
# name -> (transformers' model type, config, what it is)
SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "32k": ("llama", {"vocab_size": 32_000}, "Llama, 14M parameters, 32k vocabulary"),
    "128k": ("llama", {"vocab_size": 128_256}, "Llama, 51M parameters, 128k vocabulary"),
    "gemma2": ("gemma2", {"vocab_size": 32_000, **_GEMMA}, "Gemma 2 shaped, soft-caps"),
    "hybrid": ("qwen3_5_text", {"vocab_size": 32_000, **_HYBRID}, "gated delta rule + attention"),
}


def save_random(folder: Path, shape: str) -> Path:
    """Save a model of SHAPES in float32, with a tokenizer of its vocabulary."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    kind, values, _ = SHAPES[shape]
    save_tokenizer(folder, values["vocab_size"])
    torch.manual_seed(SEED)
    config = CONFIG_MAPPING[kind](**{**_COMMON, "tie_word_embeddings": False, **values})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def lossless(model: Path, folder: Path) -> Path:
    """The same weights in a file of other bytes: no cache takes it for the base."""
    return _edited(model, folder, lambda weight, _: weight, made="lossless")


def rounded(model: Path, folder: Path) -> Path:
    """All weights rounded to bfloat16, stored as float32."""
    return _edited(model, folder, lambda weight, _: weight.bfloat16().float())


def noisy(model: Path, folder: Path, *, share: float) -> Path:
    """Weights of all linear layers times 1 + ``share`` z, z normal, seeded."""
    import torch

    def edit(weight: torch.Tensor, name: str) -> torch.Tensor:
        if not name.endswith("_proj.weight"):
            return weight
        return weight * (1.0 + share * torch.randn(weight.shape, generator=draws))

    draws = torch.Generator().manual_seed(SEED)
    return _edited(model, folder, edit)


def _edited(
    model: Path, folder: Path, edit: Callable[[Any, str], Any], *, made: str = "edited"
) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    path = folder / "model.safetensors"
    weights = {name: edit(weight, name).contiguous() for name, weight in load_file(path).items()}
    path.unlink()
    save_file(weights, path, metadata={"format": "pt", "made": made})
    return folder
