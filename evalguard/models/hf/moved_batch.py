"""MovedBatch: a batch on the device that computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evalguard.models.hf.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceBatch:
    """A ``PackedBatch`` and its tensors on a device.

    Attributes:
        batch: where it comes from.
        input_ids: (B, T).
        places: rows and positions of what is read, shape (2, N).
        targets: the tokens that are scored there, shape (N,).
    """

    batch: PackedBatch
    input_ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> DeviceBatch:
        """Move a batch; a GPU is not waited for."""
        return cls(
            batch=batch,
            input_ids=move_tensor(batch.input_ids, device),
            places=move_tensor(torch.from_numpy(np.stack(batch.places)), device),
            targets=move_tensor(torch.from_numpy(batch.targets), device),
        )

    def at_places(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return what stands at the places that are read, shape (N, width).

        Args:
            outputs: of the model, shape (B, T or more, width): prompt tuning puts tokens of its own
                before the text.
        """
        return outputs[self._index(outputs.shape, outputs.device)]

    def put(self, rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return rows at the places that are read, of zeros elsewhere.

        Args:
            rows: shape (N, width).
            shape: (B, T or more, any) of the outputs that ``at_places`` took the rows from.
        """
        outputs = rows.new_zeros((*shape[:2], rows.shape[-1]))
        outputs[self._index(outputs.shape, outputs.device)] = rows
        return outputs

    def _index(
        self, shape: Sequence[int], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, positions = self.places.to(device)
        return rows, positions + (shape[1] - self.input_ids.shape[1])


def move_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device."""
    if device.type != "cuda":
        return tensor.to(device)
    # From pinned memory a copy needs neither the GPU to finish nor this process to wait.
    return tensor.pin_memory().to(device, non_blocking=True)
