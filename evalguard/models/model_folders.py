"""Model folders: found, readable, not pickled; and what their names resolve to."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from evalguard.errors import EvaluationError

_COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_TIMEOUT = 5.0  # seconds that the hub has to answer
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# what transformers' own weights are called
_TORCH_WEIGHTS = re.compile(r"(pytorch_|adapter_)?model[\w.-]*\.bin")
# which model type reads a file, the surer ones first
_TYPES_OF_FILES = {".gguf": "llama_cpp", ".xml": "openvino", ".onnx": "onnx", ".pth": "rwkv"}
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
    if any(name.endswith(".safetensors") or _TORCH_WEIGHTS.fullmatch(name) for name in names):
        return "hf"
    # A .pth of a folder may be anybody's, and an .xml is a graph only beside its numbers.
    graphs = {name for name in names if name.removesuffix(".xml") + ".bin" in names}
    found = {Path(name).suffix.lower() for name in names} - {".pth", ".xml"}
    found |= {".xml"} if graphs else set()
    found |= {".onnx"} if any(path.glob("onnx/*.onnx")) else set()  # where exporters put it
    return next((kind for suffix, kind in _TYPES_OF_FILES.items() if suffix in found), "hf")


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
        other = _hint_of_type(folder)
        if other:
            raise EvaluationError(f"{folder} has no weights of transformers", hint=other)
        raise pickle_error(str(pickled[0]))
    for path in tensors:
        _check_safetensors(path)


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
        found = try_to_load_from_cache(name, file, revision=revision)
    except ValueError:  # a name that no hub model can have: a folder that is not there
        return None
    if not isinstance(found, str):
        return None
    # .../snapshots/<commit>/<file>
    return Path(found).parents[file.count("/")]


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
        told = get_hf_file_metadata(url, timeout=HUB_TIMEOUT).commit_hash
    except Exception:  # noqa: BLE001 - network, hub or gate: loading says what is wrong
        return None
    return here if told == here else None


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
