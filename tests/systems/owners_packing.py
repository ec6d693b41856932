"""Weights packed by the libraries whose formats they are: checkpoints, and what their owners
dequantise them to. Run in an environment of theirs; argument: the library, and a folder.

Each format is a folder with ``model.safetensors`` and ``config.json``; beside it are
``NAME-expected.safetensors`` and the weights that all were packed from, ``base.safetensors``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]
MLP = "model.layers.0.mlp"
SHAPES = {"gate_proj": (256, 128), "up_proj": (192, 128), "down_proj": (128, 256)}


def make_weights() -> Tensors:
    """Return matrices in bfloat16 whose rows differ in size."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, (rows, columns) in SHAPES.items():
        size = 0.02 * (1 + 3 * torch.rand(rows, 1, generator=generator))
        values = torch.randn(rows, columns, generator=generator) * size
        made[f"{MLP}.{name}.weight"] = values.bfloat16()
    return made


def save(
    folder: Path,
    tensors: Tensors,
    expected: Tensors,
    config: dict[str, Any],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write a checkpoint, and what it stands for."""
    folder.mkdir(parents=True)
    laid = {name: one.contiguous().clone() for name, one in tensors.items()}
    save_file(laid, folder / "model.safetensors", metadata=metadata)
    numbers = {name: one.float().contiguous() for name, one in expected.items()}
    save_file(numbers, folder.parent / f"{folder.name}-expected.safetensors")
    text = json.dumps({"quantization_config": config})
    (folder / "config.json").write_text(text, encoding="utf-8")


def pack_compressed_tensors(folder: Path) -> None:
    """Pack as llm-compressor saves: a compressor for each of its formats."""
    exponent = {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
    fourth = {"scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}
    four = {"num_bits": 4, "type": "float", "symmetric": True}
    eight = {"num_bits": 8, "type": "float", "symmetric": True}
    whole = {"type": "int", "symmetric": True}
    formats: dict[str, tuple[str, dict[str, Any]]] = {
        "nvfp4": (
            "nvfp4-pack-quantized",
            {**four, **fourth, "strategy": "tensor_group", "group_size": 16},
        ),
        "mxfp4": (
            "mxfp4-pack-quantized",
            {**four, **exponent, "strategy": "group", "group_size": 32},
        ),
        "mxfp8": (
            "mxfp8-quantized",
            {**eight, **exponent, "strategy": "group", "group_size": 32},
        ),
        "fp8-tensor": ("float-quantized", {**eight, "strategy": "tensor"}),
        "fp8-channel": ("float-quantized", {**eight, "strategy": "channel"}),
        "fp8-block": (
            "float-quantized",
            {**eight, "strategy": "block", "block_structure": [64, 64]},
        ),
        "int8": ("int-quantized", {**whole, "num_bits": 8, "strategy": "channel"}),
        "packed-int8": ("pack-quantized", {**whole, "num_bits": 8, "strategy": "channel"}),
        "packed-int4": (
            "pack-quantized",
            {**whole, "num_bits": 4, "strategy": "group", "group_size": 64},
        ),
        "packed-int4-zeros": (
            "pack-quantized",
            {**whole, "num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False},
        ),
        "packed-int3-zeros": (
            "pack-quantized",
            {**whole, "num_bits": 3, "strategy": "group", "group_size": 64, "symmetric": False},
        ),
    }
    for name, (form, arguments) in formats.items():
        _compress(folder / name, form, arguments)


def _compress(folder: Path, form: str, arguments: dict[str, Any]) -> None:
    import compressed_tensors.compressors  # noqa: F401  (registers them)
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    given = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=given)
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors, expected = {}, {}
    for name, stored in make_weights().items():
        weight = stored.float()
        low, high = _span(weight, given)
        scales: Tensors = {}
        if given.strategy == "tensor_group":
            scales["weight_global_scale"] = generate_gparam(
                weight.min().reshape(1), weight.max().reshape(1)
            )
        second = scales.get("weight_global_scale")
        more = {} if second is None else {"global_scale": second}
        scale, zero = calculate_qparams(low, high, given, **more)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero, **scales}
        packed = compressor.compress(state, scheme)
        if form == "nvfp4-pack-quantized":
            expected[name] = _dequantise_nvfp4(packed, given)
        else:
            expected[name] = compressor.decompress(dict(packed), scheme)["weight"]
        stem = name.removesuffix(".weight")
        tensors |= {f"{stem}.{part}": one for part, one in packed.items()}
    group = {"targets": ["Linear"], "weights": json.loads(given.model_dump_json())}
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
    }
    save(folder, tensors, expected, config)


def _dequantise_nvfp4(packed: Tensors, given: Any) -> torch.Tensor:
    """Do what the compressor's ``decompress`` does, in float32: it rounds to bfloat16."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    codes = packed["weight_packed"]
    unpacked = unpack_fp4_from_uint8(codes, codes.shape[0], 2 * codes.shape[1], dtype=torch.float32)
    dequantised: torch.Tensor = dequantize(
        x_q=unpacked,
        scale=packed["weight_scale"].float(),
        args=given,
        global_scale=packed["weight_global_scale"],
        dtype=torch.float32,
    )
    return dequantised


def _span(weight: torch.Tensor, given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the greatest of each part that has a scale of its own."""
    rows, columns = weight.shape
    if given.strategy in ("group", "tensor_group"):
        parts = weight.reshape(rows, -1, given.group_size)
        return parts.amin(2), parts.amax(2)
    if given.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if given.strategy == "block":
        high, wide = given.block_structure
        parts = weight.reshape(rows // high, high, columns // wide, wide)
        return parts.amin((1, 3)), parts.amax((1, 3))
    return weight.min().reshape(1), weight.max().reshape(1)


def pack_torchao(folder: Path) -> None:
    """Pack as torchao's own safetensors functions flatten its tensors."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )

    def by(config: Any) -> Callable[[torch.Tensor], Any]:
        def quantise(weight: torch.Tensor) -> Any:
            rows, columns = weight.shape
            linear = torch.nn.Linear(columns, rows, bias=False)
            linear.weight.data = weight.float()  # of bfloat16 it dequantises to bfloat16
            holder = torch.nn.Sequential(linear)
            quantize_(holder, config)
            return holder[0].weight.data

        return quantise

    def nvfp4(weight: torch.Tensor) -> Any:
        size = per_tensor_amax_to_scale(weight.abs().max())
        return NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=size)

    formats: dict[str, Callable[[torch.Tensor], Any]] = {
        "int8": by(Int8WeightOnlyConfig()),
        "float8": by(Float8WeightOnlyConfig()),
        "int4": by(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))),
        "int8-groups": by(IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(64))),
        "nvfp4": nvfp4,
        "mxfp4": lambda weight: MXTensor.to_mx(weight, torch.float4_e2m1fn_x2, 32),
        "mxfp8": lambda weight: MXTensor.to_mx(weight, torch.float8_e4m3fn, 32),
    }
    for name, quantise in formats.items():
        made = {key: quantise(weight) for key, weight in make_weights().items()}
        expected = {key: one.dequantize() for key, one in made.items()}
        if name[:2] in ("nv", "mx"):
            expected = {key: one.dequantize(torch.float32) for key, one in made.items()}
        flat, metadata = flatten_tensor_state_dict(made)
        kept = {key: _as_bytes(one) for key, one in flat.items()}
        save(folder / name, kept, expected, {"quant_method": "torchao"}, metadata)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return dtypes that safetensors does not write in all versions as the bytes that they are."""
    strange = ("float8_e8m0fnu", "float4_e2m1fn_x2")
    return tensor.view(torch.uint8) if str(tensor.dtype).endswith(strange) else tensor


def pack_bitsandbytes(folder: Path) -> None:
    """Pack as its layers save themselves."""
    import bitsandbytes.functional as owner

    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            tensors, expected = {}, {}
            for name, weight in make_weights().items():
                codes, state = owner.quantize_4bit(
                    weight, quant_type=kind, compress_statistics=nested, blocksize=64
                )
                told = state.as_dict(packed=True)
                tensors[name] = codes
                tensors |= {f"{name}.{part}": one for part, one in told.items()}
                again = {part: one.clone() for part, one in told.items()}
                read = owner.QuantState.from_dict(again, device=torch.device("cpu"))
                read.dtype = torch.float32
                expected[name] = owner.dequantize_4bit(codes, read)
            config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
            save(folder / (f"{kind}-double" if nested else kind), tensors, expected, config)
    tensors, expected = {}, {}
    for name, weight in make_weights().items():
        codes, scale, _ = owner.int8_vectorwise_quant(weight.half())
        stem = name.removesuffix(".weight")
        tensors[name], tensors[f"{stem}.SCB"] = codes, scale
        tensors[f"{stem}.weight_format"] = torch.tensor(0, dtype=torch.uint8)
        expected[name] = owner.int8_vectorwise_dequant(codes, scale)
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    save(folder / "int8", tensors, expected, config)


def pack_quanto(folder: Path) -> None:
    """Pack as the state of frozen modules."""
    from optimum.quanto import freeze, qfloat8, qint2, qint4, qint8, quantize

    for kind in (qint8, qint4, qint2, qfloat8):
        linears = torch.nn.ModuleDict()
        for name, weight in make_weights().items():
            rows, columns = weight.shape
            linear = torch.nn.Linear(columns, rows, bias=False)
            linear.weight.data = weight.float()
            linears[name.split(".")[-2]] = linear
        quantize(linears, weights=kind)
        freeze(linears)
        tensors = {f"{MLP}.{name}": one for name, one in linears.state_dict().items()}
        expected = {
            f"{MLP}.{name}.weight": linear.weight.dequantize() for name, linear in linears.items()
        }
        save(folder / kind.name, tensors, expected, {"quant_method": "quanto"})


def pack_mlx(folder: Path) -> None:
    """Pack as mlx-lm saves: words, scales and biases beside each other, and its two configs."""
    import mlx.core as mx
    import numpy as np

    modes = [("affine", bits, 64) for bits in (2, 3, 4, 5, 6, 8)]
    for mode, bits, width in (*modes, ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
        tensors, expected = {}, {}
        told = {"group_size": width, "bits": bits, "mode": mode}
        for name, weight in make_weights().items():
            values = mx.array(weight.float().numpy()).astype(mx.bfloat16)
            words, scales, *biases = mx.quantize(values, **told)
            wide = [one.astype(mx.float32) for one in (scales, *biases)] if biases else [scales]
            made = mx.dequantize(words, *wide, **told).astype(mx.float32)
            stem = name.removesuffix(".weight")
            tensors[name] = torch.from_numpy(np.array(words))
            for part, one in zip(("scales", "biases"), (scales, *biases), strict=False):
                plain = one.astype(mx.float32) if biases else one
                kept = torch.from_numpy(np.array(plain))
                tensors[f"{stem}.{part}"] = kept.bfloat16() if biases else kept
            expected[name] = torch.from_numpy(np.array(made))
        form = folder / (f"{mode}-{bits}" if mode == "affine" else mode)
        save(form, tensors, expected, {})
        text = json.dumps({"quantization": told, "quantization_config": told})
        (form / "config.json").write_text(text, encoding="utf-8")


LIBRARIES = {
    "compressed-tensors": pack_compressed_tensors,
    "torchao": pack_torchao,
    "bitsandbytes": pack_bitsandbytes,
    "quanto": pack_quanto,
    "mlx": pack_mlx,
}

if __name__ == "__main__":
    LIBRARIES[sys.argv[1]](Path(sys.argv[2]))
    base = {name: one.float() for name, one in make_weights().items()}
    save_file(base, Path(sys.argv[2]) / "base.safetensors")
