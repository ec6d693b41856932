"""The tensors of a checkpoint's files, by name; none is read before it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from evalguard.models.checkpoint_files import CheckpointFiles


def stored_tensors(files: CheckpointFiles, stack: ExitStack) -> dict[str, Any]:
    """Return everything that a checkpoint stores; ``[...]`` of a value is the torch tensor.

    The files stay open as long as the stack is.
    """
    read = _pickled if files.pickled else _lazy
    return {name: one for path in files.files for name, one in read(path, stack)}


def _lazy(path: Path, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    file = stack.enter_context(safe_open(str(path), framework="pt"))
    for key in file.keys():  # noqa: SIM118 - no mapping
        yield key, file.get_slice(key)


def _pickled(path: Path, _: ExitStack) -> Iterator[tuple[str, Any]]:
    import torch

    yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
