"""MemoryPolicy: whether two models are in memory at the same time, as asked or as there is room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.config.options import MemoryUse
from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Variant
from evalguard.errors import EvaluationError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import checkpoint_folder
from evalguard.models.machine import checkpoint_bytes, fits_in_memory, weight_bytes
from evalguard.tensor_files.loaded_weights import read_loaded_weights


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """``use``: both models ("lockstep"), one ("sequential"), or both where they fit ("auto").

    What does not fit after all, side by side in workers, is seen there: see ``WorkerPool``.
    """

    use: MemoryUse

    @property
    def servers(self) -> int:
        """How many servers that evalguard starts may run at the same time."""
        return 1 if self.use == "sequential" else 2

    def takes_beside(self, first: ModelDescription, other: Variant, *, loaded: bool) -> bool:
        """Whether another model is loaded beside a first one.

        Args:
            loaded: whether the first one is in memory by now, where it takes room no more.
        """
        if self.use != "auto":
            return self.use == "lockstep"
        own = weight_bytes(first.parameters, first.dtype)
        needed = max(own, expected_bytes(other))
        return fits_in_memory(needed + (0 if loaded else own), first.device)

    def takes(self, models: Sequence[Variant], device: str) -> bool:
        """Whether models of which none is loaded are in memory together.

        Of one whose files do not tell its size, it is taken to be that of the largest.
        """
        if self.use != "auto":
            return self.use == "lockstep"
        sizes = [expected_bytes(model) for model in models]
        return fits_in_memory(sum(size or max(sizes) for size in sizes), device)


def expected_bytes(variant: Variant) -> int:
    """Bytes of a model's weights once they are loaded; 0 where no files here tell them.

    Files of half the precision that is asked for (``model_args.dtype``) take twice their size.
    """
    told = variant.model_args
    subfolder = str(told.get("subfolder") or "")
    source, revision = str(told.get("pretrained") or ""), str(told.get("revision") or "main")
    folder = checkpoint_folder(source, revision, subfolder) if source else None
    if folder is None:
        return 0
    gguf_file = str(told.get("gguf_file") or "")
    try:
        stored = read_loaded_weights(folder / subfolder, gguf_file=gguf_file)
    except EvaluationError:
        return checkpoint_bytes(folder / subfolder)
    unpacked = stored.kind == "gguf" and variant.model in HF_TYPES
    dtype = str(told.get("dtype") or "auto")
    if unpacked and dtype == "auto":
        dtype = "float32"
    if stored.numbers is None or dtype == "auto" or (stored.packing and not unpacked):
        return stored.bytes
    return weight_bytes(stored.numbers, dtype)
