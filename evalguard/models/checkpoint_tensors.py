"""Tensors of another checkpoint, as loading them into a model's architecture gives them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalguard.errors import SettingError, nearest
from evalguard.models.checkpoint_files import (
    CheckpointFiles,
    find_checkpoint_files,
    open_stored_tensors,
)
from evalguard.models.process_state import silence_libraries

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def computing_dtype(model: torch.nn.Module) -> str:
    """Name the dtype of most of a model's weights, by their number of elements."""
    declared = getattr(model, "computes_in", "")  # of a model in a process of its own
    if declared:
        return str(declared)
    counts: Counter[str] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else "float32"


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
    targets = {
        name: entry.target_patterns for entry in converters for name in entry.source_patterns
    }
    state: dict[str, Any] = model.state_dict()
    prefix = model.base_model_prefix
    load_targets: dict[str, LoadTarget] = {}
    for key in stored:
        name, pattern = rename_source_key(key, renamings, converters, prefix, state)
        if name not in state and key in state:  # it has its final name, which a renaming changed
            name, pattern = key, None
        if name in state:
            names = _all_targets(name, targets.get(pattern or "", ()), state)
            load_targets[key] = LoadTarget(names=names, converted=pattern is not None)
    return load_targets


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
    first, *other_patterns = [*patterns] or [""]
    made = (name.replace(first, pattern) for pattern in other_patterns)
    return (name, *(target for target in made if target in state))


def read_checkpoint_tensors(
    model: torch.nn.Module, name: str, wanted: Sequence[str], *, allow_pickle: bool
) -> dict[str, torch.Tensor]:
    """Read some of a model's tensors from another checkpoint.

    Only what is wanted is read. transformers itself renames, converts and casts it, as it does
    when it loads that checkpoint into this architecture, so that the values are bit for bit those
    of a model loaded from there in the same dtypes. Where a tensor that can be tied to another
    one is not stored, the other one is taken, and both are one tensor.

    Args:
        model: a transformers model as it was loaded, with nothing edited since.
        name: folder, hub id, or ``owner/name@revision``.
        wanted: names in ``model.state_dict()``.

    Returns:
        Name -> tensor of the shape, dtype and device of the model's own.

    Raises:
        EvaluationError: no such checkpoint, or pickled weights that were not allowed.
        SettingError: the model or the checkpoint is quantised, the model is not wholly in memory
            or no transformers model, or tensors are missing or of other shapes.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise SettingError(
            f"weights of a {type(model).__name__} cannot be taken from another checkpoint",
            hint="weights: settings work with transformers models, without peft",
        )
    files = find_checkpoint_files(name, allow_pickle=allow_pickle)
    _refuse_quantised(model, files)
    twin = _empty_copy(model, wanted)
    read = _load_wanted(twin, files, {*wanted})
    own = model.state_dict()
    moved: dict[int, torch.Tensor] = {}  # tied tensors stay one
    return {key: moved.setdefault(id(read[key]), read[key].to(own[key].device)) for key in wanted}


def _refuse_quantised(model: PreTrainedModel, files: CheckpointFiles) -> None:
    if getattr(model, "hf_quantizer", None) is not None and not is_dequantised(model):
        raise SettingError(
            "the weights of a quantised model cannot be taken from another checkpoint one by one",
            hint="let a setting choose the whole checkpoint: target model_args.pretrained",
        )
    if files.quantisation:
        raise SettingError(
            f"{files.name} holds quantised weights ({files.quantisation})",
            hint="name the checkpoint that it was quantised from",
        )


def is_dequantised(model: PreTrainedModel) -> bool:
    """Whether it came from a GGUF file, of which loading made plain weights."""
    method = getattr(model, "quantization_method", None)
    plain = all(weight.is_floating_point() for weight in model.parameters())
    return str(getattr(method, "value", method)) == "gguf" and plain


def _empty_copy(model: PreTrainedModel, wanted: Sequence[str]) -> PreTrainedModel:
    """The same modules, names and dtypes, with tensors that hold nothing."""
    import torch

    state = model.state_dict()
    elsewhere = [name for name in wanted if state[name].device.type == "meta"]
    if elsewhere:
        raise SettingError(
            f"{elsewhere[0]} is not in memory, so it cannot be replaced",
            hint="load the model without offloading",
        )
    empty: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        made = torch.empty_like(tensor, device="meta")
        empty[id(tensor)] = (
            torch.nn.Parameter(made, requires_grad=False)
            if isinstance(tensor, torch.nn.Parameter)
            else made
        )
    return copy.deepcopy(model, empty)


def _load_wanted(
    twin: PreTrainedModel, files: CheckpointFiles, wanted: set[str]
) -> dict[str, torch.Tensor]:
    from transformers.modeling_utils import LoadStateDictConfig

    tied = map_tied_names(twin)
    needed = wanted | {tied[name] for name in wanted & tied.keys()}
    needed |= {name for name, source in tied.items() if source in wanted}
    with ExitStack() as stack, silence_libraries():
        stored = open_stored_tensors(files, stack)
        names = map_loading_names(twin, stored)
        state = {key: stored[key] for key, made in names.items() if needed & {*made.names}}
        answer = twin._load_pretrained_model(
            twin,
            state_dict=state,
            checkpoint_files=None,
            load_config=LoadStateDictConfig(weight_mapping=list_weight_conversions(twin)),
        )
        report = answer[0] if isinstance(answer, tuple) else answer  # as transformers 5.0 gives it
        read = _add_tied(twin, tied)
    _check_complete(files.name, wanted, read, report, names)
    return read


def _add_tied(twin: PreTrainedModel, tied: dict[str, str]) -> dict[str, torch.Tensor]:
    """What was read by name, tied tensors under both of their names."""
    read = {
        name: tensor for name, tensor in twin.state_dict().items() if tensor.device.type != "meta"
    }
    for name, source in tied.items():
        if source in read:
            read.setdefault(name, read[source])
        elif name in read:
            read[source] = read[name]
    return read


def _check_complete(
    checkpoint: str,
    wanted: set[str],
    read: dict[str, torch.Tensor],
    report: Any,
    names: dict[str, LoadTarget],
) -> None:
    wrong = sorted(mismatch for mismatch in report.mismatched_keys if mismatch[0] in wanted)
    if wrong:
        shown = [f"{name}: {list(stored)} there, {list(own)} here" for name, stored, own in wrong]
        raise SettingError(
            f"{checkpoint} has other shapes for {len(wrong)} of the weights ({_first_few(shown)})",
            hint="only models of one shape can exchange weights",
        )
    lacking = sorted(wanted - read.keys())
    if lacking:
        known = sorted({name for made in names.values() for name in made.names})
        close = nearest(lacking[0], known)
        raise SettingError(
            f"{checkpoint} lacks {len(lacking)} of the weights ({_first_few(lacking)}){close}",
            hint="only models with the same modules can exchange weights",
        )


def _first_few(shown: Sequence[str]) -> str:
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")
