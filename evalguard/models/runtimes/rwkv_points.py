"""Points of rwkv-pip's RWKV-7, which has no modules: known by the weight that a function reads.

They have the names of flash-linear-attention's model. rwkv-pip folds the first layer norm into the
table of embeddings, so that what is looked up is that norm's output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

from evalguard.models.runtimes.runtime import Visit
from evalguard.models.runtimes.torch_runtime import replace_values, to_numpy

_LAYER = {
    "ln1": "attn_norm",
    "att.receptance": "attn.r_proj",
    "att.key": "attn.k_proj",
    "att.value": "attn.v_proj",
    "att.ln_x": "attn.g_norm",
    "att.output": "attn.o_proj",
    "ln2": "ffn_norm",
    "ffn.key": "ffn.key",
    "ffn.value": "ffn.value",
}
_WHOLE = {"emb": "model.layers.0.pre_norm", "ln_out": "model.norm", "head": "lm_head"}
_WEIGHT = re.compile(r"(?:blocks\.(?P<layer>\d+)\.)?(?P<name>[\w.]+)\.weight")


def name_module(weight: str) -> str | None:
    """Return flash-linear-attention's module of a weight of a checkpoint; None: it is no point."""
    match = _WEIGHT.fullmatch(weight)
    if match is None:
        return None
    if match["layer"] is None:
        return _WHOLE.get(match["name"])
    inside = _LAYER.get(match["name"])
    return None if inside is None else f"model.layers.{match['layer']}.{inside}"


class WeightVisitor(TorchFunctionMode):
    """Shows what torch functions that read a weight are given, and what they make of it.

    Args:
        weights: of the model, by name.

    Attributes:
        epsilons: of the norms among them, by module: they stand in rwkv-pip's code alone.
    """

    def __init__(self, weights: Mapping[str, Any], visit: Visit) -> None:
        super().__init__()
        named = ((id(weight), name_module(name)) for name, weight in weights.items())
        self._modules = {key: module for key, module in named if module is not None}
        self._visit = visit
        self.epsilons: dict[str, float] = {}

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function; see the point where it reads a weight that is one."""
        given = dict(kwargs or {})
        if func.__name__ == "__getitem__":
            module = self._modules.get(id(args[0]))
            weights = func(*args, **given)
            return weights if module is None else self._show(f"{module}:out", weights)
        weight = given.get("weight", args[1] if len(args) > 1 else None)
        module = self._modules.get(id(weight))
        if module is None:
            return func(*args, **given)
        if "eps" in given:
            self.epsilons[module] = float(given["eps"])
        first = self._show(f"{module}:in", args[0])
        return self._show(f"{module}:out", func(first, *args[1:], **given))

    def _show(self, point: str, value: Any) -> Any:
        given = self._visit(point, lambda: to_numpy(value))
        return value if given is None else replace_values(given, value, point)
