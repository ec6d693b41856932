"""What about a loaded model may make a comparison unfair, in words for the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evalguard.core.reports.findings import Finding
from evalguard.models.hf.longrope import scales_with_length
from evalguard.models.identity import (
    model_dtype,
)

if TYPE_CHECKING:
    from evalguard.core.settings import Value


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
        found.append(f"shared prefixes are read again for every continuation: {lm.unshared}")
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
    from evalguard.models.hf.later_tokens import exceeds_rounding, measure_effect_of_later_tokens

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
