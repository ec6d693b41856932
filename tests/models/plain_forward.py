"""Divergences from plain transformers forward passes: nothing of evalguard, nothing batched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM


def plain_model(folder: Path) -> Any:
    """The model of a folder as transformers loads it, in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def rows_of(model: Any, windows: Sequence[tuple[Sequence[int], int]]) -> torch.Tensor:
    """Log-probabilities of windows (ids, number scored), float64, windows after one another."""
    rows = []
    with torch.no_grad():
        for ids, n_scored in windows:
            logits = model(torch.tensor([list(ids[:-1])])).logits[0]
            rows.append(torch.log_softmax(logits[-n_scored:].double(), dim=-1))
    return torch.cat(rows)


def naive_kl(
    base: Any, candidate: Any, windows: Sequence[tuple[Sequence[int], int]]
) -> NDArray[np.float64]:
    """KL(base || candidate) in nats at every scored position."""
    p, q = rows_of(base, windows), rows_of(candidate, windows)
    return torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1).numpy()
