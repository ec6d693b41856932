"""A path becomes tensors by name: one file, a folder of shards, a folder of arrays."""

from __future__ import annotations

import ctypes
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from evalguard.core.split_files import FileKind, gguf_parts, split_parts
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.regular_file import open_regular, read_regular_text
from evalguard.tensor_files.gguf_files import read_gguf
from evalguard.tensor_files.lora_adapters import (
    find_base,
    fold_adapter,
    is_adapter,
    name_useless,
    read_adapter_config,
)
from evalguard.tensor_files.numpy_files import read_npy, read_npz
from evalguard.tensor_files.packed.activation_scales import is_activation_scale
from evalguard.tensor_files.packed.declared_quantisation import Quantisation, read_quantisation
from evalguard.tensor_files.packed.packed_formats import FoldedTensors, fold_packed
from evalguard.tensor_files.safetensors_files import read_safetensors, read_weight_map
from evalguard.tensor_files.stored_tensor import NoBytes, StoredTensor, unknown_codec
from evalguard.tensor_files.torch_files import read_torch

_ARRAY = 31 << 20  # bytes: glibc raises its thresholds up to 32 MB


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Let the C library keep what this process frees: up to 62 MB that lie beside each other.

    Tensors are compared in pieces, each with a dozen arrays of about a megabyte. glibc hands such
    arrays back as soon as they are freed, and the kernel clears every page of the next: half of the
    time in which packed tensors were compared. From the largest array that was freed, glibc learns
    which ones to keep (mallopt(3), M_MMAP_THRESHOLD): one is asked for and freed, and none of its
    pages is touched. Other C libraries lose nothing by it. Forks of the process have learned it.
    """
    allocator = ctypes.pythonapi
    allocator.PyMem_RawMalloc.argtypes = (ctypes.c_size_t,)
    allocator.PyMem_RawMalloc.restype = ctypes.c_void_p
    allocator.PyMem_RawFree.argtypes = (ctypes.c_void_p,)
    allocator.PyMem_RawFree(allocator.PyMem_RawMalloc(_ARRAY))


_SUFFIXES: dict[str, FileKind] = {
    ".safetensors": "safetensors", ".bin": "torch", ".pt": "torch", ".pth": "torch",
    ".ckpt": "torch", ".gguf": "gguf", ".npz": "npz", ".npy": "npy",
}  # fmt: skip
# What a folder is read from: the first of these that it holds. transformers' names come first, so
# that a second copy of the weights (consolidated.safetensors) is not taken for more of them.
_FOLDER_PATTERNS = (
    "model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.bin", "*.pt", "*.pth",
    "*.ckpt", "*.gguf", "*.npz", "*.npy",
)  # fmt: skip
_FORMS = "safetensors, torch (.bin, .pt, .pth), GGUF, npz and npy files, and folders of them"


@dataclass(slots=True, kw_only=True)
class TensorFiles:
    """The tensors of a path, open until :meth:`close`.

    Attributes:
        metadata: of a GGUF or safetensors file.
        config: the folder's config.json, {} without one.
        quantisation: how the folder says it was quantised.
        activation_scales: of a quantised checkpoint, scales of what its modules compute, and of
            caches; no weight is made with them.
        notes: what is worth a line: files that were left out.
    """

    name: str
    kind: FileKind
    files: tuple[Path, ...]
    tensors: dict[str, StoredTensor]
    metadata: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    quantisation: Quantisation = field(default_factory=Quantisation)
    activation_scales: Mapping[str, StoredTensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _stack: ExitStack

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its files."""
        self._stack.close()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that can be read."""
        return sum(tensor.nbytes for tensor in self.tensors.values() if not tensor.fault)

    @property
    def architecture(self) -> str:
        """The model's class or GGUF architecture, "" where nothing says it."""
        named = self.config.get("architectures")
        if isinstance(named, list) and named:
            return str(named[0])
        return str(self.config.get("model_type") or self.metadata.get("general.architecture") or "")


def open_tensors(path: str | Path) -> TensorFiles:
    """Open what a path holds. Only headers are read.

    Raises:
        UsageError: there is nothing at the path, or nothing of a known form.
        EvaluationError: a file is damaged, is a pickle of more than tensors, or needs a package
            that is not installed.
    """
    keep_freed_memory()
    source = Path(path).expanduser()
    named = _split_adapter(str(path))
    if named is not None:
        return _open_adapter(*named)
    if is_adapter(source):
        return _open_adapter(None, source)
    if not source.exists():
        beside = [entry.name for entry in source.parent.iterdir()] if source.parent.is_dir() else []
        raise UsageError(
            f"there is nothing at {path}{nearest(source.name, beside)}",
            hint=f"evalguard tensors reads {_FORMS}",
        )
    with ExitStack() as stack:
        if source.is_dir():
            opened = _open_folder(source, stack)
        else:
            kind = _file_kind(source)
            # llama.cpp loads all parts, too; a shard of safetensors is a file of its own
            names = gguf_parts(source.name) if kind == "gguf" else (source.name,)
            files = [source.with_name(name) for name in names]
            if len(files) > 1:
                _refuse_missing_parts(files)
            tensors, metadata = _read_all(files, kind, stack, {})
            opened = _collection(source, kind, files, tensors, stack, metadata=metadata)
        opened._stack = stack.pop_all()
    return opened


def _split_adapter(path: str) -> tuple[Path, Path] | None:
    """Return what BASE+ADAPTER names; None for a path of one thing."""
    if Path(path).expanduser().exists():
        return None
    for at in (match.start() for match in re.finditer(r"\+", path)):
        base, adapter = Path(path[:at]).expanduser(), Path(path[at + 1 :]).expanduser()
        if base.exists() and is_adapter(adapter):
            return base, adapter
    return None


def _open_adapter(base: Path | None, folder: Path) -> TensorFiles:
    """Open an adapter together with its base, as the weights that both make."""
    config = read_adapter_config(folder)
    with ExitStack() as stack:
        base_files = stack.enter_context(open_tensors(base or find_base(folder, config)))
        adapter = stack.enter_context(_open_files(folder))
        useless = name_useless(base_files.tensors, adapter.tensors)
        notes = [*base_files.notes, *adapter.notes]
        if useless:
            notes.append(
                f"the adapter changes nothing: the base has none of its {len(useless):,} modules, "
                f"first {useless[0]}"
            )
        both = replace(
            base_files,
            name=f"{base_files.name}+{folder}",
            files=(*base_files.files, *adapter.files),
            tensors=fold_adapter(base_files.tensors, adapter.tensors, config),
            notes=tuple(notes),
        )
        both._stack = stack.pop_all()
    return both


def _open_files(folder: Path) -> TensorFiles:
    """Open the files of a folder, whatever they are of."""
    with ExitStack() as stack:
        opened = _open_folder(folder, stack)
        opened._stack = stack.pop_all()
    return opened


def _collection(
    place: Path,
    kind: FileKind,
    files: Sequence[Path],
    tensors: dict[str, StoredTensor],
    stack: ExitStack,
    *,
    metadata: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> TensorFiles:
    if not tensors:
        raise EvaluationError(f"{place} holds no tensors", hint=f"files: {_names(files)}")
    folder = place if place.is_dir() else place.parent
    config = _read_config(folder)
    quantisation, folded = Quantisation(), FoldedTensors(tensors=tensors, activation_scales={})
    if kind in ("safetensors", "torch"):
        quantisation = read_quantisation(config, folder)
        folded = fold_packed(tensors, metadata or {}, quantisation)
    elif kind == "gguf":
        folded = FoldedTensors(
            tensors={n: tensor for n, tensor in tensors.items() if not is_activation_scale(n)},
            activation_scales={
                n: tensor for n, tensor in tensors.items() if is_activation_scale(n)
            },
        )
    return TensorFiles(
        name=str(place),
        kind=kind,
        files=tuple(files),
        tensors=folded.tensors,
        metadata=metadata or {},
        config=config,
        quantisation=quantisation,
        activation_scales=folded.activation_scales,
        notes=tuple(notes),
        _stack=stack,
    )


def _open_folder(folder: Path, stack: ExitStack) -> TensorFiles:
    for pattern in _FOLDER_PATTERNS:
        files = sorted(file for file in folder.glob(pattern) if file.is_file())
        if files:
            break
    else:
        listed = _names(sorted(folder.iterdir())) or "nothing"
        raise UsageError(
            f"{folder} holds no tensor files (it holds {listed})",
            hint=f"evalguard tensors reads {_FORMS}",
        )
    kind = _SUFFIXES[files[0].suffix]
    index = _find_index(folder, files)
    weight_map = read_weight_map(index) if index else {}
    if weight_map:
        files = sorted({folder / file for file in weight_map.values()})
    else:
        _refuse_missing_parts(files)
    tensors, metadata = _read_all(files, kind, stack, weight_map)
    for name, shard in weight_map.items():
        if name not in tensors:
            tensors[name] = _absent(name, shard, f"{shard} has no such tensor, the index names it")
    unread = [file for file in folder.iterdir() if file.suffix in _SUFFIXES and file not in files]
    notes = [f"{folder}: not read: {_names(sorted(unread))}"] if unread else []
    return _collection(folder, kind, files, tensors, stack, metadata=metadata, notes=notes)


def _refuse_missing_parts(files: Sequence[Path]) -> None:
    """Refuse files that are parts of a model by their names, of which others are not there.

    Raises:
        EvaluationError: naming them.
    """
    for file in files:
        beside = (file.with_name(name) for name in split_parts(file.name))
        lost = [part for part in beside if part != file and not part.exists()]
        if lost:
            raise EvaluationError(
                f"{file.parent} holds {file.name}, and lacks {_names(lost)}: what else the model "
                "has is not known",
                hint="copy or download what is missing",
            )


def _read_all(
    files: Sequence[Path], kind: FileKind, stack: ExitStack, weight_map: Mapping[str, str]
) -> tuple[dict[str, StoredTensor], Mapping[str, Any]]:
    tensors: dict[str, StoredTensor] = {}
    metadata: Mapping[str, Any] = {}
    for file in files:
        read, header = _read_shard(file, kind, stack, weight_map)
        metadata = {**header, **metadata}  # of a GGUF file in parts the first one has it all
        twice = next((name for name in read if name in tensors), None)
        if twice is not None:
            raise EvaluationError(
                f"{twice} is in {tensors[twice].file} and in {file.name}",
                hint="name the file that is meant, in place of the folder",
            )
        tensors |= read
    return tensors, metadata


def _find_index(folder: Path, files: Sequence[Path]) -> Path | None:
    indexes = sorted(folder.glob(f"*{files[0].suffix}.index.json"))
    return indexes[0] if len(indexes) == 1 or (indexes and len(files) > 1) else None


def _read_shard(
    file: Path, kind: FileKind, stack: ExitStack, weight_map: Mapping[str, str]
) -> tuple[dict[str, StoredTensor], Mapping[str, Any]]:
    """Read one of several files; of one that cannot be read, what the index says it holds."""
    expected = [name for name, shard in weight_map.items() if shard == file.name]
    try:
        if not file.exists():
            raise EvaluationError(f"{file.name} is not there, and the index names it")
        return _read_file(file, kind, stack)
    except EvaluationError as error:
        if not expected:
            raise
        return {name: _absent(name, file.name, str(error)) for name in expected}, {}


def _absent(name: str, file: str, fault: str) -> StoredTensor:
    return StoredTensor(
        name=name, shape=(), codec=unknown_codec(""), source=NoBytes(), file=file, fault=fault
    )


def _read_file(
    path: Path, kind: FileKind, stack: ExitStack
) -> tuple[dict[str, StoredTensor], Mapping[str, Any]]:
    if kind == "safetensors":
        return read_safetensors(path, stack)
    if kind == "gguf":
        return read_gguf(path, stack)
    if kind == "npz":
        return read_npz(path, stack), {}
    if kind == "npy":
        return read_npy(path, stack), {}
    return read_torch(path), {}


def _file_kind(path: Path) -> FileKind:
    """Tell by a file's first bytes, then by its suffix, what it is."""
    try:
        with open_regular(path) as file:
            head = file.read(16)
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from error
    if not head:
        raise EvaluationError(f"{path} is empty", hint="copy or download it again")
    if head.startswith(b"GGUF"):
        return "gguf"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    kind = _SUFFIXES.get(path.suffix.lower())
    if head.startswith(b"PK"):
        return "npz" if kind == "npz" else "torch"
    if head[8:9] == b"{":
        return "safetensors"
    if head[:1] == b"\x80" and kind != "safetensors":  # a pickle, maybe torch's oldest form
        return "torch"
    if kind is None:
        raise UsageError(
            f"{path} is of no form that evalguard knows", hint=f"evalguard tensors reads {_FORMS}"
        )
    return kind


def _read_config(folder: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(
            read_regular_text(folder / "config.json"),
            parse_constant=str,
            parse_float=_read_float,
            object_hook=_read_tagged_float,
        )
    except (OSError, ValueError, RecursionError):
        return {}  # only used to say more: the tensors speak for themselves
    return content if isinstance(content, dict) else {}


def _read_float(text: str) -> float | str:
    """A number; its text where it is infinite, which JSON has no number for."""
    value = float(text)
    return value if math.isfinite(value) else text


def _read_tagged_float(found: dict[str, Any]) -> Any:
    """An infinite number as transformers writes it, ``{"__float__": "Infinity"}``, as its text."""
    return found["__float__"] if found.keys() == {"__float__"} else found


def _names(files: Sequence[Path]) -> str:
    listed = [file.name for file in files]
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
