"""Where the weights of a checkpoint lie: files of a folder or of a hub model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalguard.errors import EvaluationError
from evalguard.models.weights import check_model_folder, local_folder, refuse_pickle

# The names that transformers looks for, in its order: one file, else the index of several.
_SAFE = ("model.safetensors", "model.safetensors.index.json")
_WHAT_TO_GIVE = "give a model folder, or the id of a hub model that can be reached"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


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


def checkpoint_files(name: str, *, allow_pickle: bool) -> CheckpointFiles:
    """Find a checkpoint's files as loading does: in a folder, in the hub's cache, or on the hub.

    Args:
        name: folder, hub id, or ``owner/name@revision``.
        allow_pickle: whether pickled weights will do where there are no others.

    Raises:
        EvaluationError: no such checkpoint, no weights in it, a damaged file, or pickled weights
            that were not allowed.
    """
    place, revision = split_revision(name)
    folder = local_folder(place)
    if folder is not None:
        check_model_folder(folder, allow_pickle=allow_pickle)
        place = str(folder)
    config = _file(place, "config.json", revision)
    if config is None:
        raise EvaluationError(
            f"checkpoint {name} cannot be had: it has no config.json, here or on the hub",
            hint=_WHAT_TO_GIVE,
        )
    for single, index in (_SAFE, _PICKLED):
        found = _weights(place, single, index, revision)
        if found:
            if single in _PICKLED and not allow_pickle:
                raise refuse_pickle(str(found[0]))
            stored = json.loads(config.read_text())
            return CheckpointFiles(name=name, files=found, config=stored)
    raise EvaluationError(
        f"{name} holds no weights that can be read",
        hint=f"looked for {', '.join(_SAFE)}",
    )


def _weights(place: str, single: str, index: str, revision: str) -> tuple[Path, ...]:
    from transformers.utils.hub import get_checkpoint_shard_files

    whole = _file(place, single, revision)
    if whole:
        return (whole,)
    parts = _file(place, index, revision)
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


def _file(place: str, file: str, revision: str) -> Path | None:
    from transformers.utils import cached_file

    try:
        found = cached_file(
            place, file, revision=revision, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"checkpoint {place} cannot be had: {' '.join(str(error).split())}",
            hint=_WHAT_TO_GIVE,
        ) from error
    return Path(found) if found else None
