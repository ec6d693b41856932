"""Where the weights of a checkpoint lie: files of a folder or of a hub model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalguard.errors import EvaluationError
from evalguard.models.model_folders import check_model_folder, find_local_folder, pickle_error
from evalguard.regular_file import read_regular_text

# The names that transformers looks for, in its order: one file, else the index of several.
_SAFETENSORS_NAMES = ("model.safetensors", "model.safetensors.index.json")
_CHECKPOINT_HINT = "give a model folder, or the id of a hub model that can be reached"
_PICKLED_NAMES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """The files that hold a checkpoint's weights, and its config.json as it is written."""

    name: str
    files: tuple[Path, ...]
    config: Mapping[str, Any]

    @property
    def pickled(self) -> bool:
        """Whether reading these files could run code."""
        return self.files[0].suffix != ".safetensors"

    @property
    def quantisation(self) -> str:
        """How the weights are quantised in the files, "" if they are not."""
        inner = self.config.get("text_config")
        nested = inner.get("quantization_config") if isinstance(inner, dict) else None
        found = self.config.get("quantization_config") or nested
        if not found:
            return ""
        return str(found.get("quant_method") or "some method")


def split_revision(name: str) -> tuple[str, str]:
    """Split ``owner/name@revision``; a folder, and a hub id without one, are at "main"."""
    if Path(name).expanduser().exists() or "@" not in name:
        return name, "main"
    place, _, revision = name.rpartition("@")
    return place, revision


def find_checkpoint_files(name: str, *, allow_pickle: bool) -> CheckpointFiles:
    """Find a checkpoint's files as loading does: in a folder, in the hub's cache, or on the hub.

    Args:
        name: folder, hub id, or ``owner/name@revision``.
        allow_pickle: whether pickled weights will do where there are no others.

    Raises:
        EvaluationError: no such checkpoint, no weights in it, a damaged file, or pickled weights
            that were not allowed.
    """
    place, revision = split_revision(name)
    folder = find_local_folder(place)
    if folder is not None:
        check_model_folder(folder, allow_pickle=allow_pickle)
        place = str(folder)
    config = _find_file(place, "config.json", revision)
    if config is None:
        raise EvaluationError(
            f"checkpoint {name} cannot be had: it has no config.json, here or on the hub",
            hint=_CHECKPOINT_HINT,
        )
    for single, index in (_SAFETENSORS_NAMES, _PICKLED_NAMES):
        found = _find_weights(place, single, index, revision)
        if found:
            if single in _PICKLED_NAMES and not allow_pickle:
                raise pickle_error(str(found[0]))
            stored = json.loads(read_regular_text(config))
            return CheckpointFiles(name=name, files=found, config=stored)
    raise EvaluationError(
        f"{name} holds no weights that can be read",
        hint=f"looked for {', '.join(_SAFETENSORS_NAMES)}",
    )


def find_gguf_file(model_args: Mapping[str, Any]) -> Path | None:
    """Find the GGUF file that a model is loaded from by ``gguf_file``; None where it is not.

    Raises:
        EvaluationError: it is not there.
    """
    file = model_args.get("gguf_file")
    if not file:
        return None
    place, revision = str(model_args["pretrained"]), str(model_args.get("revision") or "main")
    inside = "/".join(part for part in (str(model_args.get("subfolder") or ""), str(file)) if part)
    found = _find_file(place, inside, revision)
    if found is None:
        raise EvaluationError(f"{place} has no file {inside}", hint=_CHECKPOINT_HINT)
    return found


def _find_weights(place: str, single: str, index: str, revision: str) -> tuple[Path, ...]:
    from transformers.utils.hub import get_checkpoint_shard_files

    whole = _find_file(place, single, revision)
    if whole:
        return (whole,)
    parts = _find_file(place, index, revision)
    if not parts:
        return ()
    files, _ = get_checkpoint_shard_files(place, str(parts), revision=revision)
    lacking = [file for file in files if not Path(file).is_file()]
    if lacking:
        raise EvaluationError(
            f"{index} of {place} names {lacking[0]}, which is not there",
            hint="copy or download this file again",
        )
    return tuple(map(Path, files))


def _find_file(place: str, file: str, revision: str) -> Path | None:
    from transformers.utils import cached_file

    try:
        found = cached_file(
            place, file, revision=revision, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"checkpoint {place} cannot be had: {' '.join(str(error).split())}",
            hint=_CHECKPOINT_HINT,
        ) from error
    return Path(found) if found else None


def open_stored_tensors(files: CheckpointFiles, stack: ExitStack) -> dict[str, Any]:
    """Return everything that a checkpoint stores; ``[...]`` of a value is the torch tensor.

    The files stay open as long as the stack is.
    """
    read = _read_pickled if files.pickled else _read_lazily
    return {name: one for path in files.files for name, one in read(path, stack)}


def shape_of(stored: Any) -> tuple[int, ...]:
    """The shape of a tensor in a file, which is not read, or in memory."""
    return tuple(stored.get_shape() if hasattr(stored, "get_shape") else stored.shape)


def _read_lazily(path: Path, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    file = stack.enter_context(safe_open(str(path), framework="pt"))
    for key in file.keys():  # noqa: SIM118 - no mapping
        yield key, file.get_slice(key)


def _read_pickled(path: Path, _: ExitStack) -> Iterator[tuple[str, Any]]:
    import torch

    yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
