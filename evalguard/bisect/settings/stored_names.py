"""Under which names the files of both sides store a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalguard.models.checkpoint_files import CheckpointFiles, open_stored_tensors
from evalguard.models.checkpoint_tensors import map_loading_names, map_tied_names

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNames:
    """The files of both sides, and under which name each stores a tensor of the model's.

    What loading converts is left out. ``stacked``: names of what it stacks (experts), where both
    sides store the same ones.
    """

    base: Mapping[str, str]
    candidate: Mapping[str, str]
    stacked: Mapping[str, frozenset[str]]
    files: tuple[CheckpointFiles, CheckpointFiles]

    @classmethod
    def of(
        cls, model: PreTrainedModel, base: CheckpointFiles, candidate: CheckpointFiles
    ) -> StoredNames:
        sides, stacks = [], []
        tied = map_tied_names(model)
        for files in (base, candidate):
            with ExitStack() as stack:
                loaded = map_loading_names(model, open_stored_tensors(files, stack))
            names = {
                into.names[0]: key
                for key, into in loaded.items()
                if not into.converted and len(into.names) == 1
            }
            for name, source in tied.items():
                held = names.get(source) or names.get(name)
                if held:
                    names.setdefault(name, held)
                    names.setdefault(source, held)
            sides.append(names)
            stacked: dict[str, set[str]] = {}
            for key, into in loaded.items():
                if into.converted and len(into.names) == 1:
                    stacked.setdefault(into.names[0], set()).add(key)
            stacks.append({name: frozenset(keys) for name, keys in stacked.items()})
        both = dict(stacks[0].items() & stacks[1].items())
        return cls(base=sides[0], candidate=sides[1], stacked=both, files=(base, candidate))

    def read(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The base's and the candidate's elements of a tensor, as float64."""
        sides = zip(self.files, (self.base, self.candidate), strict=True)
        with ExitStack() as stack:
            base, candidate = (
                open_stored_tensors(files, stack)[names[name]][...].double()
                for files, names in sides
            )
        return base, candidate
