"""Models and tasks of the table about a GPU: random, made here, nothing is downloaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed import documents
from benchmarks.speed.vocabulary import save_tokenizer

LAST_WORDS, CHOICES = "gpu_lastword", "gpu_choice"
_LARGE = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 128_256,
}  # fmt: skip
# Heads of 64: engines compute with none smaller.
_SMALL = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32_000,
}  # fmt: skip
_COMMON = {
    "max_position_embeddings": 2048, "initializer_range": 0.05, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
_MOVED = 1.02  # by which the weights of the moved model are larger


def compared_shape(options: argparse.Namespace) -> Mapping[str, int | float | bool]:
    """The shape of the models that are timed."""
    return {**_COMMON, **(_SMALL if options.small else _LARGE)}


def make_inputs(folder: Path, options: argparse.Namespace) -> None:
    """Make ``base``, ``candidate``, ``small``, its ``moved`` copy, and the tasks, in a folder.

    Base and candidate have one shape and other weights.
    """
    for seed, name in enumerate(("base", "candidate")):
        _save_model(folder / name, compared_shape(options), seed, options.device)
    small = _save_model(folder / "small", {**_COMMON, **_SMALL}, 2, options.device)
    import torch

    with torch.no_grad():
        for weight in small.parameters():
            weight.mul_(_MOVED)
    save_tokenizer(folder / "moved", _SMALL["vocab_size"])
    small.save_pretrained(folder / "moved")
    tasks = folder / "tasks"
    chosen = list(documents.choices(max(options.documents // 8, 4)))
    last = [
        {"context": one["context"], "target": one["choices"][0].strip()}
        for one in documents.choices(options.documents)
    ]
    documents.write_choice(tasks, CHOICES, chosen)
    documents.write_lastword(tasks, LAST_WORDS, last)


def working_environment(folder: Path) -> dict[str, str]:
    """Variables for a command of its own: this checkout first, then what the caller's path has."""
    from benchmarks.speed.process import ROOT

    known = os.environ.get("PYTHONPATH", "")
    return {
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *([known] if known else [])]),
    }


def _save_model(folder: Path, shape: Mapping[str, Any], seed: int, device: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    save_tokenizer(folder, shape["vocab_size"])
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**shape), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return model
