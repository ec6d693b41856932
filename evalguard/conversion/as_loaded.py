"""AsLoaded: what a model was when it was loaded, before any edit; and is again, when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


_Containers = (dict, list, set)


class AsLoaded:
    """The very objects that a model was made of, so that edits of it can be taken back.

    Every attribute of every module is noted, parameters, buffers and hooks included, with those of
    its configs and of the object that owns the model. Edits, and what a forward pass leaves behind,
    put other objects in their places; what changes a tensor itself is noticed, and cannot be taken
    back.

    Args:
        owner: holds the model, and attributes that follow from it.
        model: freshly loaded.
    """

    def __init__(self, owner: object, model: torch.nn.Module) -> None:
        self._model = model
        configs = (getattr(model, name, None) for name in ("config", "generation_config"))
        own = (one for one in configs if hasattr(one, "__dict__"))
        self._noted = [_Noted(one) for one in (owner, *own, *model.modules())]
        self._tensors = {id(one): one for one in (*model.parameters(), *model.buffers())}
        self._away: dict[int, torch.device] = {}
        self._kept = all(_is_plain(one) for one in self._tensors.values())
        self._versions = {id(one): one._version for one in self._tensors.values() if self._kept}

    def set_aside(self, fits: Callable[[int], bool]) -> None:
        """Let tensors that edits have replaced wait in this machine's memory.

        Args:
            fits: whether so many bytes may be taken for that; else they are let go of, and the
                model cannot be restored.
        """
        if not self._kept:
            return
        used = {id(one) for one in self._held_now()}
        replaced = [one for key, one in self._tensors.items() if key not in used]
        if replaced and not fits(sum(one.nbytes for one in replaced)):
            self._kept = False
            self._noted.clear()
            self._tensors.clear()
            return
        for tensor in replaced:
            if tensor.device.type != "cpu":
                self._away.setdefault(id(tensor), tensor.device)
                tensor.data = tensor.data.cpu()  # the object stays: others may be tied to it

    def restore(self) -> bool:
        """Take all edits back; whether the model is what it was when it was loaded.

        After False it is of no use.
        """
        if not self._kept:
            return False
        for noted in self._noted:
            noted.put_back()
        for key, device in self._away.items():
            self._tensors[key].data = self._tensors[key].data.to(device)
        self._away.clear()
        return all(one._version == self._versions[key] for key, one in self._tensors.items())

    def _held_now(self) -> Iterator[object]:
        for module in self._model.modules():
            for value in vars(module).values():
                yield value
                if isinstance(value, _Containers):
                    yield from value.values() if isinstance(value, dict) else value


class _Noted:
    """The attributes of one object, and what its own containers hold."""

    def __init__(self, one: object) -> None:
        self._one = one
        self._values: dict[str, Any] = dict(vars(one))
        held = (value for value in self._values.values() if isinstance(value, _Containers))
        self._contents = [(value, value.copy()) for value in held]

    def put_back(self) -> None:
        attributes = vars(self._one)
        attributes.clear()
        attributes.update(self._values)
        for container, content in self._contents:
            container.clear()
            if isinstance(container, list):
                container.extend(content)
            else:
                container.update(content)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but its numbers: not quantised, not elsewhere."""
    import torch

    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and not tensor.is_meta and not tensor.is_inference()
