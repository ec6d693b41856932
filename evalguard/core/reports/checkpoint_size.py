"""CheckpointSize: how much is stored of a model, as it can be read off its files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSize:
    """What the files hold that a model is loaded from; no second copy of it beside them.

    Attributes:
        bytes: of its tensors as they are stored, with scales and zero points; None where not known.
        weights: of the model that they stand for: packed ones are counted one by one, scales and
            zero points not at all; None where not known.
        kind: form of the files, such as "safetensors" or "gguf"; "" where that is not known.
        loaded_as: what loading makes of the weights, where that is not what is stored, such as
            "bitsandbytes nf4"; "" where they are loaded as they are.
        loaded_bytes: of its weights in memory, of a model that is quantised as it is loaded; None
            of others, and where nothing was loaded: all scores were known.
        reason: why a number is not known; "" where all are.
    """

    bytes: int | None = None
    weights: int | None = None
    kind: str = ""
    loaded_as: str = ""
    loaded_bytes: int | None = None
    reason: str = ""

    @property
    def shown_bytes(self) -> int | None:
        """What it takes quantised: in memory, where no file holds that; else what is stored."""
        return self.bytes if self.loaded_bytes is None else self.loaded_bytes

    @property
    def bits_per_weight(self) -> float | None:
        """Bits for each weight, of what is shown; None where either number is not known."""
        if self.shown_bytes is None or not self.weights:
            return None
        return 8 * self.shown_bytes / self.weights
