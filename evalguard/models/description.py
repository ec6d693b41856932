"""The ModelDescription of a loaded lm-eval model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evalguard.core.reports.findings import Finding
from evalguard.core.scorer import UNSHARED, ModelDescription, ScoringPolicy
from evalguard.models.configuration import read_configuration
from evalguard.models.hf.batch_cuts import OUT_OF_MEMORY
from evalguard.models.hf.scored_tokens import scales_with_length
from evalguard.models.identity import (
    attention_implementation,
    describe_environment,
    identity_of_lm,
    model_dtype,
    torch_model,
)
from evalguard.models.load_failures import read_batching
from evalguard.models.tokenizers import digest_vocabulary

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from evalguard.core.settings import Value
    from evalguard.models.hf.model import PieceScoring


def describe_model(
    lm: LM,
    policy: ScoringPolicy,
    model_type: str,
    model_args: Mapping[str, Value],
    effective: Mapping[str, Value] | None,
    provenance: Mapping[str, Value] | None,
) -> ModelDescription:
    """Read off a loaded model what it is.

    Args:
        effective: setting name -> value read back.
        provenance: digests of weights and code; None where the weights cannot be proven.
    """
    if hasattr(lm, "settle") and lm.own_path:
        lm.settle()
    model = torch_model(lm)
    digest, size = digest_vocabulary(lm)
    identity = None
    if provenance is not None:
        identity = identity_of_lm(lm, model_type, model_args, policy, provenance)
    return ModelDescription(
        model_type=model_type,
        effective=dict(effective or {}),
        identity=identity,
        vocabulary_digest=digest,
        vocabulary_size=size,
        max_length=int(getattr(lm, "max_length", 0) or 0),
        dtype=model_dtype(lm),
        device=str(getattr(lm, "device", None) or ""),
        parameters=0 if model is None else _count_parameters(model),
        gives_rows=shows_distributions(lm),
        environment=describe_environment(lm, model_args),
        computation=read_computation(lm),
        padding=lm.padding if hasattr(lm, "forget_padding") else None,
        configuration=read_configuration(lm),
        caveats=list_model_caveats(lm, model_args),
        findings=tuple(list_model_findings(lm)),
    )


def _count_parameters(model: Any) -> int:
    """Weights of a model, tied ones once: accelerate copies them where it spreads a model."""
    sizes = {name: tensor.numel() for name, tensor in model.named_parameters()}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return sum(size for name, size in sizes.items() if tied.get(name) not in sizes)


def update_batching(description: ModelDescription, lm: PieceScoring) -> ModelDescription:
    """Say how batches are cut now, where memory ran out since the model was described."""
    found = read_batching(lm)
    if not hasattr(lm, "make_room") or all(
        description.computation.get(name) == value for name, value in found.items()
    ):
        return description
    identity = description.identity
    if identity is not None:
        asked = identity["policy"]
        assert isinstance(asked, Mapping)
        identity = {**identity, "policy": {**asked, **found}}
    return replace(
        description,
        computation={**description.computation, **found},
        identity=identity,
        caveats=(
            *(c for c in description.caveats if not c.startswith(OUT_OF_MEMORY)),
            lm.room_note,
        ),
    )


def shows_distributions(lm: LM) -> bool:
    """Whether a model shows the distributions that its scores are read from."""
    return hasattr(lm, "scored_batch") and bool(lm.own_path)


# What about a loaded model may make a comparison unfair, in words for the report.


_CONTEXT_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx")


def list_model_caveats(lm: Any, model_args: Mapping[str, Value]) -> tuple[str, ...]:
    """List what was left to chance or to the checkpoint, and what it turned out to be."""
    found: list[str] = []
    config = getattr(lm, "config", None)
    if config is not None and model_args.get("dtype") in (None, "auto"):
        found.append(f"dtype follows the checkpoint ({model_dtype(lm)}); set model_args.dtype")
    if config is not None and not model_args.get("max_length"):
        text_config = getattr(config, "text_config", None) or config
        if not any(hasattr(text_config, name) for name in _CONTEXT_LENGTHS):
            found.append(
                f"the config names no context length; {lm.max_length} tokens are used; "
                "set model_args.max_length"
            )
    if model_args.get("mixed_precision_dtype"):
        found.append(f"computed under autocast ({model_args['mixed_precision_dtype']})")
    if getattr(lm, "unshared", ""):
        found.append(f"{UNSHARED}: {lm.unshared}")
    if _is_causal(lm):
        if lm.own_path and lm.rows_reason:
            found.append(
                "logits are computed at every position, not only at the scored ones, which is "
                f"slower: of this model, {lm.rows_reason}"
            )
        if lm.padding is not None and lm.padding.before_matters:
            found.append(_padding_caveat(lm))
    return tuple(found)


def list_model_findings(lm: Any) -> Iterator[Finding]:
    """List what of a loaded model every reader of its scores must see."""
    unused = sorted(
        str(key) for report in getattr(lm, "loading", ()) for key in report["unexpected_keys"]
    )
    if unused:
        yield Finding(
            kind="weights_unused",
            text=f"{len(unused)} weights of the checkpoint are not used (first: {unused[0]})",
            values={"weights": len(unused), "first": unused[0]},
        )
    if not _is_causal(lm):
        return
    from evalguard.models.hf.attention_reach import exceeds_rounding, measure_effect_of_later_tokens

    change = measure_effect_of_later_tokens(lm)
    if exceeds_rounding(lm, change):
        yield Finding(
            kind="scores_depend",
            text=f"a token's score depends on tokens that follow it (by {change:.2g} nats in a "
            "probe): attention without a causal mask, or activations quantised together",
            values={"nats": change if math.isfinite(change) else None},
        )
    if scales_with_length(lm.config, lm.max_length):
        yield Finding(
            kind="scores_depend",
            text="dynamic rotary scaling: beyond the trained length, scores depend on what was "
            "read before; set model_args.max_length to max_position_embeddings",
        )


def _is_causal(lm: Any) -> bool:
    return hasattr(lm, "score_pairs") and bool(lm.backend == "causal")


def _padding_caveat(lm: Any) -> str:
    size = f"padding changes its answers, by up to {lm.padding.left:.2g} nats a token in a probe"
    if lm.unpadded:
        return f"{size}: texts are generated one by one"
    if lm.sequences == 1:
        return f"{size}: nothing is padded at batch size 1"
    return (
        f"{size}: texts are generated in padded batches, as --batch-size {lm.sequences} asks; "
        "without it, one by one"
    )


# How a loaded model computes: what should not matter to its scores, read back from it.


def read_computation(lm: Any) -> dict[str, Value]:
    """Return batches, scorer, threads, device kind, attention, softmax dtype of an lm-eval model.

    Of one behind a server also the requests in flight: concurrency.

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
    }


def _concurrency(lm: Any) -> dict[str, Value]:
    """Requests in flight, of a model behind a server that shows it."""
    found = getattr(lm, "num_concurrent", getattr(lm, "_concurrent", None))
    return {"concurrency": found} if isinstance(found, int) else {}


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
