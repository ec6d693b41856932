"""The limit: the forward pass of a model's body on the tokens that must be read, and nothing else.

No lm_head, no log-softmax, no texts: ``model.model(input_ids)`` under inference_mode, distinct
sequences sorted by length and padded on the right, with as many sequences in a pass as a token
budget allows. The budget is the one of BUDGETS that takes least CPU time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.timing import cpu_seconds

BUDGETS = (512, 1024, 2048, 4096)
Ids = Sequence[int]


def load_body(folder: Path) -> Any:
    """Load a model in float32 for evaluation."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def forward(model: Any, sequences: Sequence[Ids], budget: int) -> None:
    """Run the body over the sequences."""
    import torch

    with torch.inference_mode():
        for batch in batches(sequences, budget):
            model.model(input_ids=padded(batch), use_cache=False)


def best_budget(model: Any, sequences: Sequence[Ids]) -> int:
    """The token budget with which the body is fastest, measured on at most 256 sequences."""
    some = list(sequences)[:256]
    forward(model, some[:16], BUDGETS[0])
    return min(
        BUDGETS, key=lambda budget: min(cpu_seconds(forward, model, some, budget) for _ in (1, 2))
    )


def batches(sequences: Sequence[Ids], budget: int) -> Iterator[list[Ids]]:
    """Distinct sequences, the longest first, cut by padded tokens."""
    batch: list[Ids] = []
    for ids in sorted(set(map(tuple, sequences)), key=lambda ids: (-len(ids), ids)):
        if batch and len(batch[0]) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(ids)
    if batch:
        yield batch


def padded(batch: Sequence[Ids]) -> Any:
    """A batch as a tensor; what stands behind a sequence's end is not seen by its tokens."""
    import torch

    rows = torch.zeros((len(batch), max(map(len, batch))), dtype=torch.long)
    for row, ids in zip(rows, batch, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return rows
