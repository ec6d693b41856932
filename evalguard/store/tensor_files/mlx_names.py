"""Names of the experts of an MLX checkpoint, which are one stack a matrix and layer in mlx-lm."""

from __future__ import annotations

from collections.abc import Iterable

from evalguard.core.tensors.name_map import Layout, NameMap, NameRule, Take

# The expert's matrices in Hugging Face's checkpoints -> mlx-lm's (its models' sanitize).
_QWEN = {name: name for name in ("gate_proj", "up_proj", "down_proj")}
_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_RULES = tuple(
    NameRule(
        base=f"**.{block}.experts.*.{name}.weight",
        cand=f"**.{block}.switch_mlp.{stacked}.weight",
        layout=Layout(take=Take(index="$2")),
    )
    for block, names in (("mlp", _QWEN), ("block_sparse_moe", _MIXTRAL))
    for name, stacked in names.items()
)


def map_mlx_experts(candidate: Iterable[str]) -> NameMap:
    """Return the rules by which an expert's matrix is a slice of a stack; none without a stack."""
    return NameMap(rules=_RULES if any(".switch_mlp." in name for name in candidate) else ())
