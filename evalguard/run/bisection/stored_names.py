"""Under which names the files of both sides store a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalguard.models.checkpoint_files import CheckpointFiles, open_stored_tensors
from evalguard.models.loading_names import map_loading_names, map_tied_names

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNames:
    """The files of both sides, and under which name each stores a tensor of the model's.

    What loading converts (stacks, splits) is left out.
    """

    base: Mapping[str, str]
    candidate: Mapping[str, str]
    files: tuple[CheckpointFiles, CheckpointFiles]

    @classmethod
    def of(
        cls, model: PreTrainedModel, base: CheckpointFiles, candidate: CheckpointFiles
    ) -> StoredNames:
        sides = []
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
        return cls(base=sides[0], candidate=sides[1], files=(base, candidate))

    def read(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The base's and the candidate's elements of a tensor, one after the other, as float64."""
        sides = zip(self.files, (self.base, self.candidate), strict=True)
        with ExitStack() as stack:
            base, candidate = (
                open_stored_tensors(files, stack)[names[name]][...].double().flatten()
                for files, names in sides
            )
        return base, candidate
