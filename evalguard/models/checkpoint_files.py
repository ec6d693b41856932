"""Where the weights of a checkpoint lie: files of a folder or of a hub model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalguard.core.split_files import parse_weight_map
from evalguard.errors import EvaluationError
from evalguard.regular_file import read_regular_text

_COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_TIMEOUT = 5.0  # seconds that the hub has to answer
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# what transformers' own weights are called
_TORCH_WEIGHTS = re.compile(r"(pytorch_|adapter_)?model[\w.-]*\.bin")
# which model type reads a file, the surer ones first
_TYPES_OF_FILES = {".gguf": "llama_cpp", ".xml": "openvino", ".onnx": "onnx", ".pth": "rwkv"}
# what lies beside weights, and is none
_BESIDE_WEIGHTS = (".json", ".txt", ".md", ".jinja", ".py", ".model", ".yaml")
# what trainers leave beside the weights; transformers never loads these
_TRAINER_FILES = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")


def find_model_type(path: Path) -> str:
    """Return the model type that reads what lies at a path; "hf" where none else is known to.

    A folder with weights of transformers is theirs, whatever lies beside them.
    """
    if path.is_file():
        return _TYPES_OF_FILES.get(path.suffix.lower(), "hf")
    if not path.is_dir():
        return "hf"
    names = {entry.name for entry in os.scandir(path) if entry.is_file()}
    # Numbers of an OpenVINO graph, "model.bin" as a rule, are no weights of transformers.
    weights = {name for name in names if name.removesuffix(".bin") + ".xml" not in names}
    if any(name.endswith(".safetensors") or _TORCH_WEIGHTS.fullmatch(name) for name in weights):
        return "hf"
    # A .pth of a folder may be anybody's, and an .xml is a graph only beside its numbers.
    graphs = {name for name in names if name.removesuffix(".xml") + ".bin" in names}
    suffixes = {Path(name).suffix.lower() for name in names} - {".pth", ".xml"}
    suffixes |= {".xml"} if graphs else set()
    suffixes |= {".onnx"} if any(path.glob("onnx/*.onnx")) else set()  # where exporters put it
    return next((kind for suffix, kind in _TYPES_OF_FILES.items() if suffix in suffixes), "hf")


def find_local_folder(name: str) -> Path | None:
    """Return the folder a model name stands for, or None for a hub id.

    Raises:
        EvaluationError: the name can only be a path, and nothing is there.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise EvaluationError(
            f"{path} is a file, not a model folder",
            hint=_hint_of_type(path) or "name the folder that holds config.json and the weights",
        )
    looks_like_path = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if looks_like_path or os.sep + os.sep in name or name.endswith("/"):
        raise EvaluationError(
            f"there is no model folder {path}",
            hint="paths in a guard file are relative to that file; a hub id is owner/name",
        )
    return None


def check_model_folder(
    folder: Path, *, allow_pickle: bool, needed: Sequence[str] = ("config.json",)
) -> None:
    """Look into a local model folder before anything of it is loaded.

    Raises:
        EvaluationError: it is not a model folder, its weights are pickled and that was not allowed,
            or a safetensors file is damaged; the message names the file.
    """
    held = sorted(folder.iterdir())
    files = [path for path in held if path.is_file()]
    for name in needed:
        if not (folder / name).is_file():
            listed = ", ".join(f"{path.name}{'/' * path.is_dir()}" for path in held[:8])
            raise EvaluationError(
                f"{folder} is not a model folder: it has no {name}",
                hint=_hint_of_type(folder) or f"it holds: {listed or 'no files'}",
            )
    tensors = [path for path in files if path.suffix == ".safetensors"]
    pickled = [
        path
        for path in files
        if path.suffix in _PICKLE_SUFFIXES and not path.name.startswith(_TRAINER_FILES)
    ]
    if pickled and not tensors and not allow_pickle:
        hint = _hint_of_type(folder)
        if hint:
            raise EvaluationError(f"{folder} has no weights of transformers", hint=hint)
        raise pickle_error(str(pickled[0]))
    for path in tensors:
        _check_safetensors(path)


def check_weights(folder: Path) -> None:
    """Refuse a model folder that holds no weights, or not all that its index names.

    Raises:
        EvaluationError: naming the first file that is missing.
    """
    names = (*_SAFETENSORS_NAMES, *_PICKLED_NAMES)
    first = next((name for name in names if (folder / name).is_file()), "")
    for file in _indexed_files(folder / first) if first.endswith(".index.json") else ():
        if not (folder / file).is_file():
            raise EvaluationError(
                f"{first} of {folder} names {file}, which is not there",
                hint="copy or download this file again",
            )
    if not any(path.suffix not in _BESIDE_WEIGHTS for path in folder.rglob("*") if path.is_file()):
        raise EvaluationError(
            f"{folder} holds no weights", hint=f"looked for {', '.join(_SAFETENSORS_NAMES)}"
        )


def _indexed_files(index: Path) -> list[str]:
    try:
        return sorted(set(parse_weight_map(read_regular_text(index)).values()))
    except (OSError, ValueError):
        return []  # loading says what is wrong with it


def _hint_of_type(path: Path) -> str:
    """Which model type reads what lies there; "" where no other than hf is known to."""
    kind = find_model_type(path)
    return "" if kind == "hf" else f"model: {kind} reads it ({kind}:PATH on the command line)"


def checkpoint_folder(source: str, revision: str = "main", subfolder: str = "") -> Path | None:
    """Return the folder of a checkpoint, of one of the hub as it was downloaded; None: not here."""
    folder = Path(source).expanduser()
    return folder if folder.is_dir() else hub_snapshot(source, revision, subfolder)


def hub_commit(name: str, revision: str, subfolder: str = "") -> str | None:
    """Return the commit of a hub model in the local cache; None if it is not there."""
    snapshot = hub_snapshot(name, revision, subfolder)
    return None if snapshot is None else snapshot.name


def hub_snapshot(name: str, revision: str, subfolder: str = "") -> Path | None:
    """Return the folder of a hub model in the local cache, called as its commit, or None."""
    from huggingface_hub import try_to_load_from_cache

    file = f"{subfolder}/config.json" if subfolder else "config.json"
    try:
        config_file = try_to_load_from_cache(name, file, revision=revision)
    except ValueError:  # a name that no hub model can have: a folder that is not there
        return None
    if not isinstance(config_file, str):
        return None
    # .../snapshots/<commit>/<file>
    return Path(config_file).parents[file.count("/")]


def find_current_commit(name: str, revision: str, subfolder: str = "") -> str | None:
    """Return the commit that loading a hub model would take now; None where that is not known.

    A branch may have moved on: unless the machine is offline the hub is asked, and only a commit
    that is here already counts.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    here = hub_commit(name, revision, subfolder)
    if here is None or constants.HF_HUB_OFFLINE or _COMMIT.fullmatch(revision):
        return here
    url = hf_hub_url(name, "config.json", subfolder=subfolder or None, revision=revision)
    try:
        current = get_hf_file_metadata(url, timeout=HUB_TIMEOUT).commit_hash
    except Exception:  # noqa: BLE001 - network, hub or gate: loading says what is wrong
        return None
    return here if current == here else None


def pickle_error(path: str) -> EvaluationError:
    """The error for weights that could run code while they are read."""
    return EvaluationError(
        f"{path} holds pickled weights, which can run code when they are loaded",
        hint="convert them to safetensors, or give allow_pickle=true among its model arguments "
        "(allow_pickle: true in a guard file)",
    )


def _check_safetensors(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            file.keys()
    except (SafetensorError, OSError) as error:
        raise EvaluationError(
            f"{path} is damaged or incomplete: {error}",
            hint="copy or download this file again",
        ) from error


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
        settings = self.config.get("quantization_config") or nested
        if not settings:
            return ""
        return str(settings.get("quant_method") or "some method")


def split_revision(name: str) -> tuple[str, str]:
    """Split ``owner/name@revision``; a folder, and a hub id without one, are at "main"."""
    if Path(name).expanduser().exists() or "@" not in name:
        return name, "main"
    source, _, revision = name.rpartition("@")
    return source, revision


def find_checkpoint_files(name: str, *, allow_pickle: bool) -> CheckpointFiles:
    """Find a checkpoint's files as loading does: in a folder, in the hub's cache, or on the hub.

    Args:
        name: folder, hub id, or ``owner/name@revision``.
        allow_pickle: whether pickled weights will do where there are no others.

    Raises:
        EvaluationError: no such checkpoint, no weights in it, a damaged file, or pickled weights
            that were not allowed.
    """
    source, revision = split_revision(name)
    folder = find_local_folder(source)
    if folder is not None:
        check_model_folder(folder, allow_pickle=allow_pickle)
        source = str(folder)
    config = _find_file(source, "config.json", revision)
    if config is None:
        raise EvaluationError(
            f"checkpoint {name} cannot be had: it has no config.json, here or on the hub",
            hint=_CHECKPOINT_HINT,
        )
    for single, index in (_SAFETENSORS_NAMES, _PICKLED_NAMES):
        weights = _find_weights(source, single, index, revision)
        if weights:
            if single in _PICKLED_NAMES and not allow_pickle:
                raise pickle_error(str(weights[0]))
            stored = json.loads(read_regular_text(config))
            return CheckpointFiles(name=name, files=weights, config=stored)
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
    source, revision = str(model_args["pretrained"]), str(model_args.get("revision") or "main")
    inside = "/".join(part for part in (str(model_args.get("subfolder") or ""), str(file)) if part)
    path = _find_file(source, inside, revision)
    if path is None:
        raise EvaluationError(f"{source} has no file {inside}", hint=_CHECKPOINT_HINT)
    return path


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
        path = cached_file(
            place, file, revision=revision, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"checkpoint {place} cannot be had: {' '.join(str(error).split())}",
            hint=_CHECKPOINT_HINT,
        ) from error
    return Path(path) if path else None


def open_stored_tensors(files: CheckpointFiles, stack: ExitStack) -> dict[str, Any]:
    """Return everything that a checkpoint stores; ``[...]`` of a value is the torch tensor.

    The files stay open as long as the stack is.
    """
    read = _read_pickled if files.pickled else _read_lazily
    return {name: tensor for path in files.files for name, tensor in read(path, stack)}


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
