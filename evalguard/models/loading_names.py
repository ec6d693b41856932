"""Which of a model's tensors each tensor of a checkpoint is loaded into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """The tensors of a model that one of a checkpoint becomes, or becomes a part of.

    ``converted``: whether it is stacked, split or transposed on the way; else it only gets that
    name.
    """

    names: tuple[str, ...]
    converted: bool = False


def map_loading_names(model: PreTrainedModel, stored: Iterable[str]) -> dict[str, LoadTarget]:
    """Map names in a checkpoint to names in the model's state, as transformers does.

    Several stored tensors may become one of the model (experts that are stacked), and one may
    become several. A stored tensor that the model does not read is left out. The model may be on
    the meta device.
    """
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = list_weight_conversions(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    targets = {name: one.target_patterns for one in converters for name in one.source_patterns}
    state: dict[str, Any] = model.state_dict()
    prefix = model.base_model_prefix
    found: dict[str, LoadTarget] = {}
    for key in stored:
        name, pattern = rename_source_key(key, renamings, converters, prefix, state)
        if name not in state and key in state:  # it has its final name, which a renaming changed
            name, pattern = key, None
        if name in state:
            names = _all_targets(name, targets.get(pattern or "", ()), state)
            found[key] = LoadTarget(names=names, converted=pattern is not None)
    return found


def list_weight_conversions(model: PreTrainedModel) -> list[Any]:
    """Return the renamings and conversions with which transformers loads this model."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    return list(get_model_conversion_mapping(model) or ())


def map_tied_names(model: PreTrainedModel) -> dict[str, str]:
    """Map each tensor that this architecture can tie to another one to that one.

    Whether this very model ties them is left open: a checkpoint of one that does holds one of them
    only.
    """
    tied: dict[str, str] = {}
    kinds: Mapping[str, str] | list[str] | None = getattr(model, "_tied_weights_keys", None)
    if isinstance(kinds, Mapping):
        tied.update((name, source) for name, source in kinds.items() if name in model.state_dict())
    tied.update(getattr(model, "all_tied_weights_keys", None) or {})
    return tied


def _all_targets(name: str, patterns: Iterable[str], state: Mapping[str, Any]) -> tuple[str, ...]:
    """All that one conversion makes; transformers calls it by the first of them."""
    first, *others = [*patterns] or [""]
    made = (name.replace(first, other) for other in others)
    return (name, *(other for other in made if other in state))
