"""How a loaded model computes: what should not matter to its scores, read back from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalguard.models.batching import read_batching
from evalguard.models.identity import (
    attention_implementation,
    model_dtype,
    torch_model,
)
from evalguard.models.served.calls import is_served

if TYPE_CHECKING:
    from evalguard.core.settings import Value


def read_computation(lm: Any) -> dict[str, Value]:
    """Return batches, scorer, threads, device kind, attention, softmax dtype of an lm-eval model.

    Of one behind a server also the requests in flight: concurrency; and of an engine that may keep
    prompts from one request to the next, whether it does: prefix_cache.

    Each is read from the model or from torch, not from what was asked for; None where the model
    type does not show it.
    """
    import torch

    return {
        **read_batching(lm),
        "threads": torch.get_num_threads(),
        "device": _device_kind(lm),
        "attention": attention_implementation(lm),
        "softmax_dtype": _softmax_dtype(lm),
        **_concurrency(lm),
        **_prefix_cache(lm),
    }


def _concurrency(lm: Any) -> dict[str, Value]:
    """Requests in flight, of a model behind a server that shows it."""
    found = getattr(lm, "num_concurrent", getattr(lm, "_concurrent", None))
    return {"concurrency": found} if isinstance(found, int) else {}


def _prefix_cache(lm: Any) -> dict[str, Value]:
    """Of a server None, which does not say; an engine in this process has it as an attribute."""
    if is_served(lm):
        return {"prefix_cache": None}
    found = getattr(lm, "prefix_cache", None)
    return {"prefix_cache": found} if isinstance(found, bool) else {}


def _device_kind(lm: Any) -> str | None:
    device = getattr(lm, "device", None)
    return None if device is None else str(device).partition(":")[0]


def _softmax_dtype(lm: Any) -> str | None:
    """Of lm-eval's Hugging Face models, which take None for the dtype of the logits."""
    if torch_model(lm) is None or not hasattr(lm, "softmax_dtype"):
        return None
    if lm.softmax_dtype is None:
        return model_dtype(lm).partition("+")[0]
    return str(lm.softmax_dtype).removeprefix("torch.")
