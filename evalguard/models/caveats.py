"""What about a loaded model may make a comparison unfair, in words for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evalguard.models.identity import model_dtype
from evalguard.models.rope import scales_with_length
from evalguard.scorer import UNSHARED

if TYPE_CHECKING:
    from evalguard.settings import Value

_CONTEXT_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx")


def model_caveats(lm: Any, model_args: Mapping[str, Value]) -> tuple[str, ...]:
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
    unused = sorted(
        str(key) for report in getattr(lm, "loading", ()) for key in report["unexpected_keys"]
    )
    if unused:
        found.append(f"{len(unused)} weights of the checkpoint are not used (first: {unused[0]})")
    if getattr(lm, "unshared", ""):
        found.append(f"{UNSHARED}: {lm.unshared}")
    return (*found, *_dependences(lm))


def _dependences(lm: Any) -> Iterator[str]:
    """What a causal model's scores depend on beside the tokens before them."""
    if not hasattr(lm, "score_pairs") or lm.backend != "causal":
        return
    from evalguard.models.dependence import noticeable, on_later_tokens

    change = on_later_tokens(lm)
    if lm.own_path and lm.rows_reason:
        yield (
            "logits are computed at every position, not only at the scored ones, which is slower: "
            f"of this model, {lm.rows_reason}"
        )
    if noticeable(lm, change):
        yield (
            f"a token's score depends on tokens that follow it (by {change:.2g} nats in a probe): "
            "attention without a causal mask, or activations quantised together"
        )
    if scales_with_length(lm.config, lm.max_length):
        yield (
            "dynamic rotary scaling: beyond the trained length, scores depend on what was read "
            "before; set model_args.max_length to max_position_embeddings"
        )
