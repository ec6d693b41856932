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

from evalguard.errors import EvaluationError
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


# What transformers reports while it reads a checkpoint into a model.


class RecordingLoader:
    """Stands in for an auto class while it loads, and keeps what transformers reports."""

    def __init__(self, loader: Any, reports: list[dict[str, Any]]) -> None:
        self._loader = loader
        self._reports = reports

    def from_pretrained(self, *names: Any, **arguments: Any) -> Any:
        """Load, and keep the report: missing, unexpected and mismatched keys."""
        # Mismatched shapes are refused with their names; transformers would not name them.
        arguments["ignore_mismatched_sizes"] = True
        model, report = self._loader.from_pretrained(*names, **arguments, output_loading_info=True)
        self._reports.append(report)
        return model


def refuse_random_weights(pretrained: str, report: Mapping[str, Any]) -> None:
    """Refuse a model with weights that its checkpoint does not have.

    transformers only warns, and fills them with random numbers.

    Raises:
        EvaluationError: naming the first of them, and what usually makes such tensors missing.
    """
    other_shapes = sorted(_describe_key(key) for key in report.get("mismatched_keys") or ())
    if other_shapes:
        raise EvaluationError(
            f"{pretrained} has other shapes for {len(other_shapes)} of the model's weights "
            f"({_name_some(other_shapes)})",
            hint="the sizes in config.json do not fit these weights",
        )
    missing = sorted(str(key) for key in report.get("missing_keys") or ())
    if missing:
        left_over = sorted(str(key) for key in report.get("unexpected_keys") or ())
        raise EvaluationError(
            f"{pretrained} lacks {len(missing)} of the model's weights ({_name_some(missing)})",
            hint=_explain_missing(missing, left_over),
        )


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


_LAYER = re.compile(r"(?:^|\.)(\d+)\.")
_HEADS = ("lm_head", "embed_out", "output", "score")  # as modelling files call an output layer


def _explain_missing(missing: Sequence[str], left_over: Sequence[str]) -> str:
    """Say what tensors that a checkpoint does not hold usually mean.

    Args:
        missing: names that the model wants. left_over: names in the files that it does not want.
    """
    prefixes = _compare_prefixes(missing, left_over)
    if prefixes:
        stored, wanted = prefixes
        return (
            f"the files hold tensors of these names, but with {stored} where the model has "
            f"{wanted}: rename them, or save the checkpoint again from the model's own class"
        )
    if left_over:
        return (
            f"the files hold {len(left_over)} tensors that the model does not have "
            f"({_name_some(left_over)}): tensors were renamed, or the architecture in config.json "
            "is another one"
        )
    if all(name.split(".")[-2:-1] and name.split(".")[-2] in _HEADS for name in missing):
        return (
            "the output layer is missing from the files: one that is tied to the embedding is not "
            "saved, and then config.json has to say tie_word_embeddings: true; else save it too"
        )
    layers = {int(found[1]) for name in missing if (found := _LAYER.search(name))}
    whole = all(_LAYER.search(name) for name in missing)
    if whole and len(missing) > 4 * len(layers):
        first, last = min(layers), max(layers)
        shown = f"layer {first}" if first == last else f"layers {first} to {last}"
        return (
            f"all of {shown} is missing from the files: a shard was left out of the checkpoint or "
            "of its index, or config.json counts more layers than there are"
        )
    return (
        "the files hold no such tensors: they were lost when the checkpoint was written (a shard "
        "left out, a filter on names); write it again with all tensors"
    )


def _compare_prefixes(missing: Sequence[str], left_over: Sequence[str]) -> tuple[str, str] | None:
    """Where one renamed beginning explains most missing names: as stored, and as wanted."""
    stored = set(left_over)
    for name in missing:
        parts = name.split(".")
        for cut in range(len(parts) - 1):
            end, own = ".".join(parts[cut:]), ".".join(parts[:cut])
            for other in left_over:
                if other != end and not other.endswith(f".{end}"):
                    continue
                theirs = other.removesuffix(end).removesuffix(".")
                renamed = sum(
                    _with_prefix(one, own, theirs) in stored
                    for one in missing
                    if own == "" or one.startswith(f"{own}.")
                )
                if theirs != own and 2 * renamed > len(missing):
                    return tuple(f"'{one}.'" if one else "no prefix" for one in (theirs, own))  # type: ignore[return-value]
    return None


def _with_prefix(name: str, own: str, other: str) -> str:
    rest = name.removeprefix(f"{own}.") if own else name
    return f"{other}.{rest}" if other else rest


def _describe_key(key: Any) -> str:
    """A missing key's name; a mismatched one's with both shapes."""
    if isinstance(key, str):
        return key
    name, stored, wanted = key
    return f"{name}: {list(stored)} stored, {list(wanted)} in the model"


# The tensors of a checkpoint's files, by name; none is read before it is asked for.


def open_stored_tensors(files: CheckpointFiles, stack: ExitStack) -> dict[str, Any]:
    """Return everything that a checkpoint stores; ``[...]`` of a value is the torch tensor.

    The files stay open as long as the stack is.
    """
    read = _read_pickled if files.pickled else _read_lazily
    return {name: one for path in files.files for name, one in read(path, stack)}


def _read_lazily(path: Path, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    file = stack.enter_context(safe_open(str(path), framework="pt"))
    for key in file.keys():  # noqa: SIM118 - no mapping
        yield key, file.get_slice(key)


def _read_pickled(path: Path, _: ExitStack) -> Iterator[tuple[str, Any]]:
    import torch

    yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()


# Model folders: found, readable, not pickled; and what their names resolve to.


_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_TIMEOUT = 5.0  # seconds that the hub has to answer
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# what trainers leave beside the weights; transformers never loads these
_TRAINER_FILES = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")


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
            hint="name the folder that holds config.json and the weights",
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
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for name in needed:
        if not (folder / name).is_file():
            raise EvaluationError(
                f"{folder} is not a model folder: it has no {name}",
                hint=f"it holds: {', '.join(path.name for path in files[:8]) or 'no files'}",
            )
    tensors = [path for path in files if path.suffix == ".safetensors"]
    pickled = [
        path
        for path in files
        if path.suffix in _PICKLE_SUFFIXES and not path.name.startswith(_TRAINER_FILES)
    ]
    if pickled and not tensors and not allow_pickle:
        raise pickle_error(str(pickled[0]))
    for path in tensors:
        _check_safetensors(path)


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
        told = get_hf_file_metadata(url, timeout=_HUB_TIMEOUT).commit_hash
    except Exception:  # noqa: BLE001 - network, hub or gate: loading says what is wrong
        return None
    return here if told == here else None


def pickle_error(path: str) -> EvaluationError:
    """The error for weights that could run code while they are read."""
    return EvaluationError(
        f"{path} holds pickled weights, which can run code when they are loaded",
        hint="convert them to safetensors, or set allow_pickle: true for this model",
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
