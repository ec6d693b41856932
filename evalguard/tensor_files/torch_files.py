"""torch's own files. Nothing in them is executed: a pickle of code is refused."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.errors import EvaluationError
from evalguard.tensor_files.stored_tensor import (
    Bytes,
    LoadedBytes,
    NoBytes,
    StoredTensor,
    plain_codec,
    unknown_codec,
)

if TYPE_CHECKING:
    import torch

_PICKLE_HINT = (
    "evalguard never runs what a pickle holds; save the state dict alone, or as safetensors "
    "(safetensors.torch.save_file)"
)
BARE_TENSOR = "tensor"  # the name of one that has none in its file
# Wrappers of training programs around the tensors.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")


def read_torch(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a torch file: a tensor, or dicts and lists of them, names with dots.

    Raises:
        EvaluationError: it holds more than tensors, which would have to be executed, or is damaged.
    """
    import pickle

    import torch

    arguments: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                content = torch.load(path, mmap=True, **arguments)
            except RuntimeError as error:
                if "mmap" not in str(error):
                    raise
                content = torch.load(path, mmap=False, **arguments)  # from before torch 1.6
    except pickle.UnpicklingError as error:
        text = " ".join(str(error).split())
        named = text.partition("Unsupported ")[2] or text.partition("WeightsUnpickler error: ")[2]
        what = f"something else than tensors ({named[:150]})" if named else "no tensors"
        raise EvaluationError(f"{path} holds {what}", hint=_PICKLE_HINT) from error
    except Exception as error:
        raise EvaluationError(
            f"{path} cannot be read as a torch file: {' '.join(str(error).split())[:200]}",
            hint="it was cut off or damaged, or is no torch file: copy or download it again",
        ) from error
    tensors = dict(_flatten(_unwrap(content), ""))
    _check_storages(path, tensors.values())
    return {name: _torch_tensor(name, tensor, path) for name, tensor in tensors.items()}


def _check_storages(path: Path, tensors: Iterable[torch.Tensor]) -> None:
    """Check that storages are as large as the zip's records: torch maps what a pickle says.

    Raises:
        EvaluationError: they are larger, and so hold what lies behind their records.
    """
    import torch

    if not zipfile.is_zipfile(path):
        return
    plain = (torch.Tensor, torch.nn.Parameter)  # others may wrap several, and have no storage
    storages = [
        tensor.untyped_storage()
        for tensor in tensors
        if type(tensor) in plain and tensor.layout == torch.strided and tensor.device.type == "cpu"
    ]
    stated = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    with zipfile.ZipFile(path) as archive:
        held = sum(record.file_size for record in archive.infolist() if "/data/" in record.filename)
    if stated > held:
        raise EvaluationError(
            f"{path} cannot be read as a torch file: its tensors say that they hold {stated:,} "
            f"bytes, its records hold {held:,}",
            hint="it was damaged: copy or download it again",
        )


def _unwrap(content: Any) -> Any:
    while isinstance(content, Mapping):
        inner = [content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner or any(hasattr(value, "is_floating_point") for value in content.values()):
            return content
        content = inner[0]
    return content


def _flatten(content: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if hasattr(content, "is_floating_point"):
        yield name or BARE_TENSOR, content
        return
    entries: Any = ()
    if isinstance(content, Mapping):
        entries = content.items()
    elif isinstance(content, list | tuple):
        entries = enumerate(content)
    for key, value in entries:
        yield from _flatten(value, f"{name}.{key}" if name else str(key))


def _torch_tensor(name: str, tensor: torch.Tensor, path: Path) -> StoredTensor:
    dense = "strided" in str(tensor.layout)
    dtype = "float32" if dense and tensor.is_quantized else str(tensor.dtype).removeprefix("torch.")
    codec = plain_codec(dtype) if dense else None
    fault = "" if codec else f"evalguard does not read {tensor.dtype} of {tensor.layout}"
    return StoredTensor(
        name=name,
        shape=tuple(tensor.shape),
        codec=codec or unknown_codec(dtype),
        source=NoBytes() if fault else LoadedBytes(partial(_torch_bytes, tensor)),
        file=path.name,
        fault=fault,
    )


def _torch_bytes(tensor: torch.Tensor) -> Bytes:
    import torch

    plain = tensor.dequantize() if tensor.is_quantized else tensor.detach()
    raw: Bytes = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw
