"""Memory: which models are in it at the same time, and what tells that there was too little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from evalguard.config.options import MemoryUse
from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Variant
from evalguard.errors import EvalguardError, EvaluationError, WorkerError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import checkpoint_folder
from evalguard.models.machine import checkpoint_bytes, fits_in_memory, weight_bytes
from evalguard.tensor_files.loaded_weights import read_loaded_weights

# What torch, its allocators and evalguard itself say where memory ran out; in small letters.
_NO_MEMORY = (
    "memory ran out", "out of memory", "outofmemory", "can't allocate", "cannot allocate memory",
    "memoryerror", "std::bad_alloc", "alloc_failed",
)  # fmt: skip


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

    @property
    def takes_turns(self) -> bool:
        """Whether one model is loaded at a time, however much room there is."""
        return self.use == "sequential"

    def opens_all(self, *, separate_servers: bool, on_cluster: bool) -> bool:
        """Whether models that are not held against each other are all open from the beginning.

        Args:
            separate_servers: whether every one is asked over a server of its own.
            on_cluster: whether they run on other machines, with memory of their own.
        """
        if self.use == "auto":
            return separate_servers
        return self.use == "lockstep" and not on_cluster

    def takes_beside(
        self, first: ModelDescription, other: Variant, *, loaded: bool, places: int | None = None
    ) -> bool:
        """Whether another model is loaded beside a first one.

        Args:
            loaded: whether the first one is in memory by now, where it takes room no more.
            places: where a cluster has room for a model; None: the models are on this machine.
        """
        if places is not None:
            return places > 1
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
    arguments = variant.model_args
    subfolder = str(arguments.get("subfolder") or "")
    source, revision = (
        str(arguments.get("pretrained") or ""),
        str(arguments.get("revision") or "main"),
    )
    folder = checkpoint_folder(source, revision, subfolder) if source else None
    if folder is None:
        return 0
    gguf_file = str(arguments.get("gguf_file") or "")
    try:
        stored = read_loaded_weights(folder / subfolder, gguf_file=gguf_file)
    except EvaluationError:
        return checkpoint_bytes(folder / subfolder)
    unpacked = stored.kind == "gguf" and variant.model in HF_TYPES
    dtype = str(arguments.get("dtype") or "auto")
    if unpacked and dtype == "auto":
        dtype = "float32"
    if stored.numbers is None or dtype == "auto" or (stored.packing and not unpacked):
        return stored.bytes
    return weight_bytes(stored.numbers, dtype)


def was_killed(error: EvalguardError) -> bool:
    """Whether somebody else ended its worker at once, as a kernel does that is short of memory."""
    return isinstance(error, WorkerError) and error.cause == "killed"


def ran_out_of_memory(error: EvalguardError) -> bool:
    """Whether there was too little memory, as far as an error tells."""
    return was_killed(error) or mentions(error, _NO_MEMORY)


def mentions(error: EvalguardError, words: tuple[str, ...]) -> bool:
    """Whether an error, its hint or a worker's last words have one of these, in small letters."""
    quoted = " ".join(quote.text for quote in error.quotes)
    text = f"{error} {quoted} {error.hint}".lower()
    return any(word in text for word in words)


@contextmanager
def advise_one_at_a_time() -> Iterator[None]:
    """Where memory runs out with two models loaded, say how to load one at a time."""
    try:
        yield
    except EvaluationError as error:
        if ran_out_of_memory(error):
            alone = "--distributions reference (or off) loads one model at a time"
            error.hint = "; ".join(filter(None, (error.hint, alone)))
        raise
