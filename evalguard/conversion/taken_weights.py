"""``weights:GLOB``: tensors of parts of a model, taken from another checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from evalguard.conversion.name_patterns import matching
from evalguard.errors import SettingError

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import WeightsEdit


# (model, checkpoint, names of tensors) -> the tensors, in the dtypes and on the devices of the
# model's own; whoever knows the model's library reads them.
ReadTensors = Callable[["torch.nn.Module", str, Sequence[str]], "Mapping[str, torch.Tensor]"]


def take_weights(model: torch.nn.Module, edits: Sequence[WeightsEdit], read: ReadTensors) -> None:
    """Put tensors of other checkpoints where the edits ask for them, and prove that they are there.

    An edit names modules, with all that is inside them, or single tensors; what another edit names
    more closely follows that one, a value of null (as loaded) included. Parameters and the buffers
    that checkpoints hold are replaced. A weight shared with a module outside is untied: the outside
    module keeps its own. To be called before anything else in the model is edited.

    Raises:
        SettingError: a glob that names nothing, two checkpoints for one tensor, a checkpoint that
            does not fit, a tensor that did not take.
    """
    if not edits:
        return
    put: dict[int, torch.Tensor] = {}  # tied tensors stay one
    for checkpoint, (edit, names) in _wanted(model, edits).items():
        try:
            read_tensors = read(model, checkpoint, names)
        except SettingError as error:
            message = f"setting '{edit.setting}': {error}"
            raise SettingError(message, hint=error.hint, setting=edit.setting) from error
        for name in names:
            module, inner = _place(model, name)
            tensor = read_tensors[name]
            made = put.setdefault(id(tensor), _as_held(tensor, getattr(module, inner)))
            _put(module, inner, made)
        _prove(model, edit, names, read_tensors)


def _wanted(
    model: torch.nn.Module, edits: Sequence[WeightsEdit]
) -> dict[str, tuple[WeightsEdit, list[str]]]:
    """Checkpoint -> the first edit that asks for it, and the names of the tensors it gives."""
    tensors = [name for name, one in model.state_dict().items() if hasattr(one, "dtype")]
    modules = [name for name, _ in model.named_modules(remove_duplicate=False)]
    owner = _owners(list(dict.fromkeys((*modules, *tensors))), edits)
    wanted: dict[str, tuple[WeightsEdit, list[str]]] = {}
    for name in tensors:
        edit = _ruling(name, owner)
        if edit is not None and edit.checkpoint is not None:
            wanted.setdefault(edit.checkpoint, (edit, []))[1].append(name)
    return wanted


def _owners(names: Sequence[str], edits: Sequence[WeightsEdit]) -> dict[str, WeightsEdit]:
    owner: dict[str, WeightsEdit] = {}
    for edit in edits:
        for name in matching(edit.glob, names, setting=edit.setting):
            other = owner.setdefault(name, edit)
            if other.checkpoint != edit.checkpoint:
                raise SettingError(
                    f"settings '{other.setting}' and '{edit.setting}' take {name} from two places: "
                    f"{other.checkpoint or 'as loaded'} and {edit.checkpoint or 'as loaded'}",
                    hint="let their globs name different modules",
                )
    return owner


def _ruling(name: str, owner: Mapping[str, WeightsEdit]) -> WeightsEdit | None:
    while name:
        if name in owner:
            return owner[name]
        name = name.rpartition(".")[0]
    return None


def _place(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    path, _, inner = name.rpartition(".")
    return model.get_submodule(path), inner


def _as_held(tensor: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    import torch

    if not isinstance(held, torch.nn.Parameter):
        return tensor
    return torch.nn.Parameter(tensor.detach(), requires_grad=held.requires_grad)


def _put(module: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
    held = module._parameters if name in module._parameters else module._buffers
    held[name] = tensor  # type: ignore[assignment]


def _prove(
    model: torch.nn.Module,
    edit: WeightsEdit,
    names: Sequence[str],
    asked: Mapping[str, torch.Tensor],
) -> None:
    """Read every tensor back by its name and compare it with the checkpoint's, bit for bit."""
    found = model.state_dict()
    for name in names:
        if not _same_bits(found[name], asked[name]):
            raise SettingError(
                f"setting '{edit.setting}' did not take: {name} is not that of {edit.checkpoint}",
                hint="the model shares this tensor with another one that a setting replaces",
                setting=edit.setting,
            )


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    # as bytes: NaN is not equal to itself, and -0.0 equals 0.0
    return torch.equal(
        one.detach().contiguous().view(torch.uint8), other.detach().contiguous().view(torch.uint8)
    )
