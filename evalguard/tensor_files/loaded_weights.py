"""What the files of a checkpoint hold of what is loaded from them, read off their headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalguard.errors import EvalguardError, EvaluationError
from evalguard.gguf_table import read_gguf_table
from evalguard.tensor_files.opening import open_tensors
from evalguard.tensor_files.packed.declared_quantisation import read_json_object, read_quantisation
from evalguard.tensor_files.safetensors_files import read_safetensors, read_weight_map
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensor_files.torch_files import read_torch


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """One tensor of a model, whatever it is stored as.

    Attributes:
        name: the weight's, not those of its parts: "model.layers.0.mlp.up_proj.weight".
        shape: as the model has it; () where ``weights`` is None.
        weights: number of elements; 0 of a scale of activations, None where the file does not say.
        stored_bytes: of all its parts: codes, scales, zero points, indices.
        dtype: "bfloat16", "q4_k", "nvfp4", "int4".
        packing: who packed it and how: "GPTQ int4"; "" of plain numbers and of GGUF's.
        fault: why its numbers cannot be read; "" if they can.
    """

    name: str
    shape: tuple[int, ...]
    weights: int | None
    stored_bytes: int
    dtype: str
    packing: str = ""
    fault: str = ""


def list_stored_weights(path: str | Path) -> tuple[StoredWeight, ...]:
    """Return the weights of a checkpoint in the order of its files.

    Args:
        path: a file, or a folder of shards: safetensors, packed or not, GGUF, torch, npz.

    Raises:
        UsageError: there is nothing at the path, or nothing of a known form.
        EvaluationError: a file is damaged.
    """
    with open_tensors(path) as opened:
        weights = [
            StoredWeight(
                name=tensor.name,
                shape=tensor.shape,
                weights=None if tensor.fault and not tensor.shape else tensor.elements,
                stored_bytes=tensor.nbytes,
                dtype=tensor.dtype,
                packing=tensor.packing,
                fault=tensor.fault,
            )
            for tensor in opened.tensors.values()
        ]
        scales = [
            StoredWeight(
                name=scale.name,
                shape=scale.shape,
                weights=0,
                stored_bytes=scale.nbytes,
                dtype=scale.dtype,
                packing="activation scale",
            )
            for scale in opened.activation_scales.values()
        ]
    return (*weights, *scales)


# What transformers loads of a folder, in its order: one file, else the index of several. Whatever
# else lies there (another format, an optimizer's state) is not loaded.
_WHOLE_OR_INDEX = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_OTHER_FORMS = ("*.gguf", "*.pth", "*.safetensors")
# What in a config says how large an architecture is.
_SIZES = (
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings",
    "num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "n_embd",
    "n_layer", "n_inner", "n_head", "d_model", "num_layers",
)  # fmt: skip
_FEW = 0.05  # of the bytes: whole numbers that are no weights, such as positions


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """The tensors that a model is loaded from.

    Attributes:
        kind: form of the files: "safetensors", "torch" or "gguf".
        bytes: of all tensors as they are stored.
        numbers: weights that they stand for; None where how they are packed is not known.
        dtype: of most bytes.
        packing: how the weights are packed, "" where each number is one.
        sizes: what the config says of the architecture's size; {} where there is none.
    """

    kind: str
    bytes: int
    numbers: int | None
    dtype: str
    packing: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)


def read_loaded_weights(place: Path, *, gguf_file: str = "") -> LoadedWeights:
    """Return what a model folder, as transformers loads it, or a file of weights holds.

    Args:
        gguf_file: the file of the folder that is loaded in place of its other weights.

    Raises:
        EvaluationError: a file is missing, damaged or of an unknown form; the message says which.
    """
    if gguf_file:
        place = place / gguf_file
    if place.is_file():
        return _read_file(place)
    if not place.is_dir():
        raise EvaluationError(f"there is nothing at {place}")
    for whole, index in _WHOLE_OR_INDEX:
        if (place / whole).is_file():
            return _plain_weights(place, [place / whole])
        if (place / index).is_file():
            return _plain_weights(place, *_shards(place, index))
    return _read_file(_only_file(place))


def read_adapter_bytes(folder: Path) -> int:
    """Return the bytes of an adapter's tensors.

    Raises:
        EvaluationError: there is none in the folder, or its file is damaged.
    """
    file = next((folder / name for name in _ADAPTERS if (folder / name).is_file()), None)
    if file is None:
        raise EvaluationError(f"{folder} holds no {' or '.join(_ADAPTERS)}")
    return sum(tensor.nbytes for tensor in _checked_tensors(file))


def same_architecture(one: LoadedWeights, other: LoadedWeights) -> bool:
    """Whether two checkpoints hold as many weights, by the sizes that their configs name."""
    return bool(one.sizes) and one.sizes == other.sizes


def _read_file(path: Path) -> LoadedWeights:
    if path.suffix != ".gguf":
        return _plain_weights(path.parent, [path])
    tensors = read_gguf_table(path)
    if not tensors:
        raise EvaluationError(f"{path} holds no tensors")
    return LoadedWeights(
        kind="gguf",
        bytes=sum(tensor.bytes for tensor in tensors),
        numbers=sum(tensor.weights for tensor in tensors),
        dtype=_most((tensor.kind, tensor.bytes) for tensor in tensors),
    )


def _only_file(folder: Path) -> Path:
    for pattern in _OTHER_FORMS:
        files = sorted(file for file in folder.glob(pattern) if file.is_file())
        parts = {file.name.rpartition("-of-")[2] for file in files}
        if len(files) == 1 or (pattern == "*.gguf" and len(parts) == 1 and "-of-" in files[0].name):
            return files[0]
        if files:
            raise EvaluationError(
                f"{folder} holds {len(files)} files like {files[0].name}, and which of them are "
                "loaded is not known"
            )
    wanted = ", ".join(name for names in _WHOLE_OR_INDEX for name in names)
    raise EvaluationError(f"{folder} holds no weights (looked for {wanted})")


def _shards(folder: Path, index: str) -> tuple[list[Path], Mapping[str, str]]:
    weight_map = read_weight_map(folder / index)
    files = [folder / name for name in sorted({*weight_map.values()})]
    for file in files:
        if not file.is_file():
            raise EvaluationError(f"{index} names {file.name}, which is not there")
    return files, weight_map


def _plain_weights(
    folder: Path, files: list[Path], weight_map: Mapping[str, str] | None = None
) -> LoadedWeights:
    """Of safetensors or torch files that are loaded together."""
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _checked_tensors(file):
            if tensor.name in tensors:
                raise EvaluationError(
                    f"{tensor.name} is in {tensors[tensor.name].file} and {tensor.file}"
                )
            tensors[tensor.name] = tensor
    for name, shard in (weight_map or {}).items():
        if name not in tensors:
            raise EvaluationError(f"{shard} has no tensor {name[:80]}, which the index names")
    if not tensors:
        raise EvaluationError(f"{files[0]} holds no tensors")
    config = read_json_object(folder / "config.json") or {}
    quantised = read_quantisation(config, folder)
    size = sum(stored.nbytes for stored in tensors.values())
    whole = sum(stored.nbytes for stored in tensors.values() if not _is_float(stored))
    packing = quantised.method or ("packed" if quantised.settings else "")
    packing = packing or ("whole numbers" if whole > _FEW * size else "")
    numbers = sum(stored.elements for stored in tensors.values() if _is_float(stored))
    return LoadedWeights(
        kind="safetensors" if files[0].suffix == ".safetensors" else "torch",
        bytes=size,
        numbers=_packed_weights(files, size) if packing else numbers,
        dtype=_most((stored.dtype, stored.nbytes) for stored in tensors.values()),
        packing=packing,
        sizes=_named_sizes(config),
    )


def _packed_weights(files: list[Path], size: int) -> int | None:
    """The weights that packed files stand for; None where not all of them are read."""
    path = files[0] if len(files) == 1 else files[0].parent
    try:
        weights = list_stored_weights(path)
    except EvalguardError:
        return None
    if (
        any(weight.fault for weight in weights)
        or sum(weight.stored_bytes for weight in weights) != size
    ):
        return None
    counts = [weight.weights for weight in weights]
    return None if None in counts else sum(count for count in counts if count is not None)


def _checked_tensors(file: Path) -> list[StoredTensor]:
    with ExitStack() as stack:
        if file.suffix == ".safetensors":
            tensors = [*read_safetensors(file, stack)[0].values()]
        else:
            tensors = [*read_torch(file).values()]
    for tensor in tensors:
        if tensor.fault:
            raise EvaluationError(f"{tensor.name[:80]} of {tensor.file}: {tensor.fault}")
    return tensors


def _is_float(tensor: StoredTensor) -> bool:
    return tensor.dtype.startswith(("float", "bfloat"))


def _most(sizes: Iterable[tuple[str, int]]) -> str:
    counts: Counter[str] = Counter()
    for name, size in sizes:
        counts[name] += size
    return counts.most_common(1)[0][0]


def _named_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    merged = {**config, **(text if isinstance(text, dict) else {})}
    return {name: merged[name] for name in _SIZES if merged.get(name) is not None}
