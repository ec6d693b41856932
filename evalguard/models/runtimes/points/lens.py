"""Points of a HookedTransformer: which of its hooks hold what a Hugging Face module sees or gives.

Its attention keeps heads apart where a Hugging Face model has them side by side in one axis: values
are given in the latter's shape. Before (..., heads, head size), after (..., heads * head size).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evalguard.core.tracing.points import OUTPUT
from evalguard.errors import UsageError
from evalguard.models.runtimes.points.activations import Array, Visit

# Hook (or module) and side in a block -> module and side in a layer. TransformerLens' norms have
# hook_normalized before their weight is multiplied in: the module's own output is taken.
_BLOCK = {
    "ln1:in": "input_layernorm:in",
    "ln1:out": "input_layernorm:out",
    "attn.hook_q:out": "self_attn.q_proj:out",
    "attn.hook_k:out": "self_attn.k_proj:out",
    "attn.hook_v:out": "self_attn.v_proj:out",
    "attn.hook_z:out": "self_attn.o_proj:in",
    "attn:out": "self_attn.o_proj:out",
    "mlp.hook_pre:out": "mlp.gate_proj:out",
    "mlp.hook_pre_linear:out": "mlp.up_proj:out",
    "mlp.hook_post:out": "mlp.down_proj:in",
    "mlp:out": "mlp.down_proj:out",
    "hook_resid_post:out": ":out",
}
_LLAMA = {
    **_BLOCK,
    "ln2:in": "post_attention_layernorm:in",
    "ln2:out": "post_attention_layernorm:out",
}
_GEMMA2 = {
    **_BLOCK,
    "ln1_post:in": "post_attention_layernorm:in",
    "ln1_post:out": "post_attention_layernorm:out",
    "ln2:in": "pre_feedforward_layernorm:in",
    "ln2:out": "pre_feedforward_layernorm:out",
    "ln2_post:in": "post_feedforward_layernorm:in",
    "ln2_post:out": "post_feedforward_layernorm:out",
}
_WHOLE = {
    "hook_embed:out": "model.embed_tokens:out",
    "ln_final:in": "model.norm:in",
    "ln_final:out": "model.norm:out",
    "unembed:in": "lm_head:in",
    "unembed:out": "lm_head:out",
    OUTPUT: OUTPUT,
}
_TABLES = {"Gemma2ForCausalLM": _GEMMA2, "LlamaForCausalLM": _LLAMA}
_PER_HEAD = ("attn.hook_q:out", "attn.hook_k:out", "attn.hook_v:out", "attn.hook_z:out")


def name_points(architecture: str, layers: int) -> dict[str, str]:
    """Points of the Hugging Face model by hook and side, "blocks.0.attn.hook_z:out".

    Raises:
        UsageError: nobody has said yet which hooks are which points of this architecture.
    """
    if architecture not in _TABLES:
        raise UsageError(
            f"the hooks of a HookedTransformer of {architecture} are not known as points",
            hint=f"known: {', '.join(_TABLES)}; or api: bridge, whose modules are the model's own",
        )
    found = dict(_WHOLE)
    for number in range(layers):
        for hook, point in _TABLES[architecture].items():
            joint = "" if point.startswith(":") else "."
            found[f"blocks.{number}.{hook}"] = f"model.layers.{number}{joint}{point}"
    return found


def lens_visit(config: Any, visit: Visit) -> Visit:
    """Return what sees hooks of a HookedTransformer and passes them on as points.

    Args:
        config: the model's own configuration.
    """
    names = name_points(str(config.original_architecture), int(config.n_layers))

    def pass_on(hook: str, value: Callable[[], Array]) -> Array | None:
        point = names.get(hook)
        if point is None:
            return None
        if hook.endswith(_PER_HEAD):
            return visit(point, lambda: join_heads(value()))
        return visit(point, value)

    return pass_on


def join_heads(value: Array) -> Array:
    """Return (..., heads, size) as (..., heads * size)."""
    return value.reshape(*value.shape[:-2], -1)
