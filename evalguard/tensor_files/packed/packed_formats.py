"""Which of a checkpoint's tensors are parts of packed weights: one table of formats, each told by
the names and dtypes of its parts, and by what the checkpoint says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from evalguard.tensor_files.packed.activation_scales import is_activation_scale
from evalguard.tensor_files.packed.bitsandbytes_blocks import read_bitsandbytes_4bit
from evalguard.tensor_files.packed.declared_quantisation import Quantisation
from evalguard.tensor_files.packed.four_bit_floats import (
    read_compressed_tensors_e2m1,
    read_gpt_oss,
    read_modelopt_e2m1,
)
from evalguard.tensor_files.packed.mlx_words import read_mlx
from evalguard.tensor_files.packed.packed_integers import (
    read_compressed_tensors_integers,
    read_gptq_or_awq,
    read_modelopt_int4,
)
from evalguard.tensor_files.packed.parts import PackingError, Parts
from evalguard.tensor_files.packed.quanto_tensors import read_quanto_bits, read_quanto_bytes
from evalguard.tensor_files.packed.scaled_codes import read_bitsandbytes_int8, read_scaled
from evalguard.tensor_files.packed.torchao_tensors import find_torchao, read_torchao
from evalguard.tensor_files.stored_tensor import NoBytes, StoredTensor, unknown_codec

Reader = Callable[[Parts], StoredTensor]
# A part that is left over, and the part without which it says nothing.
_ORPHANS = {
    ".qzeros": ".qweight", ".scales": ".qweight", ".g_idx": ".qweight",
    ".weight_shape": ".weight_packed", ".weight_global_scale": ".weight_packed",
    ".biases": ".weight",
    ".weight_zero_point": ".weight", ".weight_scale": ".weight", ".weight_scale_2": ".weight",
    ".weight_scale_inv": ".weight", ".SCB": ".weight",
    ".weight.absmax": ".weight.quant_state.bitsandbytes__nf4",
    ".weight.quant_map": ".weight.quant_state.bitsandbytes__nf4",
    ".weight._scale": ".weight._data", ".weight._shift": ".weight._data._data",
}  # fmt: skip
# Parts of packings that evalguard does not read: AQLM, EXL3, EXL2, HQQ, QuIP#, VPTQ, SpQR, Marlin.
_UNKNOWN = (
    ".codes", ".codebooks", ".trellis", ".q_weight", ".W_q", ".Qidxs", ".indices", ".dense_weights",
    ".qweight", ".weight_packed", ".B_packed",
)  # fmt: skip
# Names that a model may have that nobody has quantised.
_ALSO_PLAIN = (".scales", ".biases", ".g_idx", ".weight_shape")
_CODES = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedTensors:
    """The tensors of a checkpoint with each packed weight as one.

    Attributes:
        tensors: by name, in the order of the files.
        activation_scales: what belongs to no weight.
    """

    tensors: dict[str, StoredTensor]
    activation_scales: dict[str, StoredTensor]


def fold_packed(
    tensors: Mapping[str, StoredTensor], metadata: Mapping[str, Any], told: Quantisation
) -> FoldedTensors:
    """Return a checkpoint's tensors with packed weights as the tensors that they stand for.

    One that cannot be read, because a part is missing or lies or its packing is not known, has a
    fault that says so.
    """
    packed: dict[str, StoredTensor] = {}  # by the part that stands first
    taken: set[str] = set()
    for name, parts, reader in _find_readers(tensors, metadata, told):
        made = _read(name, parts, reader, told)
        taken |= {part.name for part in made.parts}
        packed[made.parts[0].name] = made
    remaining = {name: part for name, part in tensors.items() if name not in taken}
    names = {weight.name: first for first, weight in packed.items()}
    for made in _find_unknown(remaining, told):
        first = names.get(made.name)
        if first is None:
            packed[made.parts[0].name] = made
        elif packed[first].fault:  # more of what cannot be read
            packed[first] = replace(packed[first], parts=(*packed[first].parts, *made.parts))
        else:
            continue
        taken |= {part.name for part in made.parts}
    quantised = bool(packed) or bool(told.method)
    folded: dict[str, StoredTensor] = {}
    scales: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if name in packed:
            folded[packed[name].name] = packed[name]
        elif name in taken:
            continue
        elif quantised and is_activation_scale(name):
            scales[name] = tensor
        else:
            folded[name] = tensor
    return FoldedTensors(tensors=folded, activation_scales=scales)


def _read(name: str, parts: Parts, reader: Reader, told: Quantisation) -> StoredTensor:
    try:
        made = reader(parts)
        if told.transforms:
            raise PackingError(
                "it was rotated before it was stored (transform_config), which evalguard does not "
                "undo"
            )
    except PackingError as error:
        return _faulty(name, _find_all(parts), str(error), told)
    return made


def _find_all(parts: Parts) -> tuple[StoredTensor, ...]:
    """Return all that may be part of a weight that cannot be read, so that nothing of it counts as
    a tensor of its own."""
    module = parts.stem.removesuffix(".weight")
    names = [module + suffix for suffix in (*_ORPHANS, *_BY_NAME, ".pre_quant_scale")]
    related = dict(parts.used)
    for name in names:
        tensor = parts.tensors.get(name)
        if tensor is not None:
            related[name] = tensor
    if not related:
        related = {
            name: part for name, part in parts.tensors.items() if name.startswith(parts.stem)
        }
    return tuple(related.values())


def _faulty(
    name: str, parts: tuple[StoredTensor, ...], fault: str, told: Quantisation
) -> StoredTensor:
    return StoredTensor(
        name=name,
        shape=(),
        codec=unknown_codec(""),
        source=NoBytes(),
        file=parts[0].file,
        fault=fault,
        packing=told.name or "unknown",
        parts=parts,
        shape_known=False,
    )


def _find_readers(
    tensors: Mapping[str, StoredTensor], metadata: Mapping[str, Any], told: Quantisation
) -> Iterator[tuple[str, Parts, Reader]]:
    """Yield the name of every packed weight, its parts, and what reads them."""
    done: set[str] = set()
    for name, kind in find_torchao(metadata).items():
        module, _, leaf = name.rpartition(".")
        parts = Parts(f"{module}._{leaf}_", tensors, told)
        if any(tensor_name.startswith(parts.stem) for tensor_name in tensors):
            done |= {tensor_name for tensor_name in tensors if tensor_name.startswith(parts.stem)}
            yield name, parts, partial(_read_torchao, name, kind)
    for name, tensor in tensors.items():
        if name in done:
            continue
        for key, reader in _BY_NAME.items():
            if name.endswith(key):
                stem = name.removesuffix(key)
                weight = stem if key == "_blocks" else f"{stem}.weight"
                if key == "_blocks" and stem + "_scales" not in tensors:
                    continue
                if key == ".qweight" and stem + ".scales" not in tensors:
                    continue  # not GPTQ's, nor AWQ's
                yield weight, Parts(stem, tensors, told), reader
                break
        else:
            by_dtype = _choose_by_dtype(name, tensor, tensors, told)
            if by_dtype is not None:
                yield name, Parts(by_dtype[0], tensors, told), by_dtype[1]


def _read_torchao(name: str, kind: Mapping[str, Any], parts: Parts) -> StoredTensor:
    return read_torchao(name, parts, kind)


def _read_compressed_tensors(parts: Parts) -> StoredTensor:
    packed = parts.take(".weight_packed")
    if packed.dtype == "int32":
        return read_compressed_tensors_integers(parts)
    return read_compressed_tensors_e2m1(parts)


_BY_NAME: dict[str, Reader] = {
    ".weight_packed": _read_compressed_tensors,
    ".qweight": read_gptq_or_awq,
    ".weight.quant_state.bitsandbytes__nf4": read_bitsandbytes_4bit,
    ".weight.quant_state.bitsandbytes__fp4": read_bitsandbytes_4bit,
    ".weight._data._data": read_quanto_bits,
    ".weight._data": read_quanto_bytes,
    "_blocks": read_gpt_oss,
}


def _choose_by_dtype(
    name: str, tensor: StoredTensor, tensors: Mapping[str, StoredTensor], told: Quantisation
) -> tuple[str, Reader] | None:
    """Return the stem and the reader of codes of a byte under the weight's own name."""
    stem = name.removesuffix(".weight")
    if tensor.dtype == "uint32" and stem != name:
        return (stem, read_mlx) if stem + ".scales" in tensors or told.method == "mlx" else None
    if tensor.dtype not in _CODES or tensor.fault:
        return None
    if stem != name and stem + ".SCB" in tensors and tensor.dtype == "int8":
        return stem, read_bitsandbytes_int8
    if any(name + f".quant_state.bitsandbytes__{kind}" in tensors for kind in ("nf4", "fp4")):
        return None
    scale = tensors.get(name + "_scale")
    if scale is None and name + "_scale_inv" not in tensors:
        lost = told.method and stem != name and len(tensor.shape) > 1
        return (name, read_scaled) if lost else None
    matrices = scale is not None and min(len(scale.shape), len(tensor.shape)) > 1
    if scale is None or tensor.dtype not in ("uint8", "int8") or not matrices:
        return name, read_scaled
    if scale.dtype in ("float8_e4m3fn", "float8_e8m0fnu", "uint8") or name + "_scale_2" in tensors:
        return name, read_modelopt_e2m1
    if scale.shape[-2] == 2 * tensor.shape[-2] and tensor.dtype == "uint8":
        return name, read_modelopt_int4
    return name, read_scaled


def _find_unknown(left: Mapping[str, StoredTensor], told: Quantisation) -> Iterator[StoredTensor]:
    """Yield weights of which parts are left that nothing explains, as what cannot be read."""
    modules: dict[str, list[StoredTensor]] = {}
    why: dict[str, str] = {}
    for name, tensor in left.items():
        if is_activation_scale(name):
            continue
        suffix = next((ending for ending in _UNKNOWN if name.endswith(ending)), None)
        if suffix is not None:
            stem = name.removesuffix(suffix)
            by = f" by {told.name}" if told.method else ""
            why[stem] = f"evalguard does not know how {name} is packed{by}"
        elif (lost := _find_lost(name, left, told)) is not None:
            stem = lost.name.removesuffix(".weight")
            if stem not in why:
                modules.setdefault(stem, []).append(lost)
            why.setdefault(stem, lost.fault)
        elif (orphan := _find_orphan(name, told)) is not None and (
            told.method or not name.endswith(_ALSO_PLAIN)
        ):
            stem, wanted = orphan
            if stem + ".weight" in left and stem + ".weight" != name:
                continue  # a plain weight, and a scale that it does not need
            why.setdefault(stem, f"{stem}{wanted} is missing")
        elif not told.known and _is_no_plain_part(name, tensor):
            stem = name.rpartition(".")[0]
            why.setdefault(stem, f"it is packed by {told.name}, which evalguard does not know")
        else:
            continue
        modules.setdefault(stem, []).append(tensor)
    for stem, parts in modules.items():
        beside = (left.get(stem + key) for key in _ORPHANS)
        parts += [part for part in beside if part is not None and part not in parts]
        yield _faulty(f"{stem}.weight", tuple(parts), why[stem], told)


def _find_orphan(name: str, told: Quantisation) -> tuple[str, str] | None:
    return next(
        (
            (name.removesuffix(key), ".weight" if told.method == "mlx" else wanted)
            for key, wanted in _ORPHANS.items()
            if name.endswith(key)
        ),
        None,
    )


def _find_lost(
    name: str, left: Mapping[str, StoredTensor], told: Quantisation
) -> StoredTensor | None:
    """Return the weight whose scale a tensor is, where that weight itself cannot be read."""
    orphan = _find_orphan(name, told)
    weight = None if orphan is None else left.get(f"{orphan[0]}.weight")
    return weight if weight is not None and weight.fault and weight.name != name else None


def _is_no_plain_part(name: str, tensor: StoredTensor) -> bool:
    """Whether a tensor is neither a module's weight nor its bias in plain floats."""
    plain = tensor.dtype.startswith(("float", "bfloat")) and not tensor.dtype.startswith("float8")
    return not (plain and name.endswith((".weight", ".bias")))
