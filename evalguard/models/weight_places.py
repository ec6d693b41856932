"""What the tensors of a model are for: embeddings, norms, attention, MLP, mixers, head."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


WeightKind = Literal["embeddings", "norms", "attention", "mlp", "recurrent", "output_head", "other"]
WEIGHT_KINDS: tuple[WeightKind, ...] = get_args(WeightKind)

# The words by which people who write models call the parts of a layer; the first that is found in
# the name of a class, without its model's name, or of an attribute decides.
_KIND_PATTERNS: tuple[tuple[WeightKind, re.Pattern[str]], ...] = (
    ("mlp", re.compile(r"mlp|feed_?forward|ffn|expert|moe|router|channel_?mix|^ff|^fc\d?$")),
    ("attention", re.compile(r"attn|attention")),
    ("recurrent", re.compile(r"mixer|mamba|ssm|recurren|lru|delta|retention|conv|time_?mix")),
)
_NORM_PATTERN = re.compile(r"norm|^ln_?\w{0,4}$")
# What is cut into heads: attention as it is called, or its projections alone; and norms of a head.
_HEADS = re.compile(r"^w?(q|k|v|kv|qkv)(_|$)|^o_proj$|^(query|key|value)|retention|time_?mix")
_HEAD_NORM = re.compile(r"(^|_)[qk]_?(layer)?_?norm")
_MODEL_NAME = re.compile(r"For[A-Z]|LMHead|Model$|PreTrained")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlace:
    """Where a tensor is: its kind, its layer (None outside of the layers), its module's name."""

    kind: WeightKind
    layer: int | None
    module: str


def may_have_heads(name: str) -> bool:
    """Whether a tensor of this name may be cut into heads: one of attention, and none of an MLP."""
    parts = re.split(r"[./]", name.lower())
    kinds = {_kind_from_name(part) for part in parts}
    if "mlp" in kinds or any(
        _NORM_PATTERN.search(part) and not _HEAD_NORM.search(part) for part in parts
    ):
        return False
    return "attention" in kinds or any(map(_HEADS.search, parts))


def locate_weights(model: PreTrainedModel) -> dict[str, WeightPlace]:
    """Say for every tensor in a model's state what it is for.

    Found from the structure: which modules read tokens and give logits, which are embeddings,
    norms or convolutions, what stands in a list of layers; and from the words in the names of
    classes and attributes. A mixer that holds a convolution keeps a state.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    head = model.get_output_embeddings()
    family = _MODEL_NAME.split(type(model).__name__)[0].lower()
    places: dict[str, WeightPlace] = {}
    for tensor in model.state_dict():
        name = tensor.rpartition(".")[0]
        path, layer = _inside_layer(name, modules)
        kind: WeightKind | None = "output_head" if modules[name] is head else None
        kind = (
            kind or _kind_from_module(modules[name], name) or _kind_from_path(path, modules, family)
        )
        places[tensor] = WeightPlace(kind=kind, layer=layer, module=name)
    return places


def _inside_layer(name: str, modules: dict[str, torch.nn.Module]) -> tuple[list[str], int | None]:
    """The modules on the way to a tensor, from the layer inwards, and the layer's number."""
    import torch

    parts = name.split(".") if name else []
    way = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    for depth, part in enumerate(parts):
        above = modules[way[depth - 1]] if depth else None
        if part.isdigit() and isinstance(above, torch.nn.ModuleList):
            return way[depth + 1 :], int(part)
    return way, None


def _kind_from_module(module: torch.nn.Module, name: str) -> WeightKind | None:
    import torch

    if isinstance(module, torch.nn.Embedding):
        return "embeddings"
    leaf = name.rpartition(".")[2].lower()
    if "norm" in type(module).__name__.lower() or _NORM_PATTERN.search(leaf):
        return "norms"
    return None


def _kind_from_path(
    path: list[str], modules: dict[str, torch.nn.Module], family: str
) -> WeightKind:
    import torch

    for name in path:
        module = modules[name]
        own = type(module).__name__.lower().removeprefix(family)
        leaf = name.rpartition(".")[2].lower()
        found = _kind_from_name(own) or _kind_from_name(leaf)
        if found == "mlp":
            return found
        if any(isinstance(inner, torch.nn.Conv1d) for inner in module.modules()):
            return "recurrent"
        if found:
            return found
    return "other"


def _kind_from_name(text: str) -> WeightKind | None:
    return next((kind for kind, words in _KIND_PATTERNS if words.search(text)), None)
