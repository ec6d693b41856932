"""Copies of tiny models with other weights, config values or tokenizers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.engine.loading.load_scorer import load_scorer

POLICY = ScoringPolicy(batch_size=4, device="cpu", threads=1)
REQUESTS = tuple(
    Request(task="t", doc_id=i, index=0, kind="loglikelihood", arguments=(context, word))
    for i, (context, word) in enumerate(
        [("Mara carried the", " lantern"), ("Nobody at the pier had seen", " the boat before")]
    )
)


def model(folder: Path, name: str = "", **model_args: Value) -> Variant:
    arguments = {"pretrained": str(folder), **model_args}
    return Variant(name=name or folder.name, model="hf", model_args=arguments)


def scores(variant: Variant, cache_dir: Path) -> list[float | None]:
    """What a model gives the requests, every setting read back."""
    scorer = load_scorer(variant, POLICY, cache_dir=cache_dir)
    found = [response.loglikelihood for response in scorer.score(REQUESTS)]
    told = scorer.describe().effective
    for one in variant.settings:
        asked = variant.assignment[one.name]
        assert asked is None or told[one.name] == asked, one.name
    return found


def generated(variant: Variant, cache_dir: Path) -> str | None:
    """What a model writes after a few words."""
    options: dict[str, Value] = {"until": ["@@"], "max_gen_toks": 12}
    request = Request(
        task="t", doc_id=0, index=0, kind="generate_until", arguments=("Mara carried", options)
    )
    return load_scorer(variant, POLICY, cache_dir=cache_dir).score([request])[0].text


def at_reference(variant: Variant) -> Variant:
    return variant.assigned({one.name: one.reference for one in variant.settings})


def changed(
    folder: Path, to: Path, *, config: Mapping[str, Any] | None = None, only: str = ""
) -> Path:
    """A copy with noise on the tensors whose name holds ``only``, and other config values."""
    shutil.copytree(folder, to)
    generator = torch.Generator().manual_seed(3)
    for file in to.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if only in name:
                noise = torch.randn(tensor.shape, generator=generator)
                tensors[name] = (tensor + 0.05 * noise).to(tensor.dtype)
        save_file(tensors, file, metadata={"format": "pt"})
    stored = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**stored, **(config or {})}))
    return to


def edit_json(file: Path, **values: Any) -> None:
    """Write other values into a JSON file; None takes a key out."""
    told = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in told.items() if value is not None}))
