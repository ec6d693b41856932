"""A small weight packed in a few formats, from the same descriptions as the code that reads them,
and compared with what it was packed from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_report import TensorDelta, TensorsReport

Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.0."
UP = f"{LAYER}mlp.up_proj"
ROWS, COLUMNS, GROUP = 128, 256, 64


def make_weights() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    rows = 1 + 2 * torch.rand(ROWS, 1, generator=generator)
    return {
        f"{UP}.weight": torch.randn(ROWS, COLUMNS, generator=generator) * 0.02 * rows,
        f"{LAYER}post_attention_layernorm.weight": torch.rand(COLUMNS, generator=generator) + 0.5,
        "lm_head.weight": torch.randn(96, COLUMNS, generator=generator) * 0.02,
    }


def plain(weights: Tensors) -> Tensors:
    return {name: one for name, one in weights.items() if name != f"{UP}.weight"}


def compare(folder: Path, base: Tensors, packed: Tensors, **config: Any) -> TensorsReport:
    save_file(base, folder / "base.safetensors")
    candidate = folder / "packed"
    candidate.mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in packed.items()}, candidate / "model.safetensors")
    text = json.dumps({"quantization_config": config} if config else {})
    (candidate / "config.json").write_text(text, encoding="utf-8")
    return compare_tensors(str(folder / "base.safetensors"), str(candidate), TensorOptions())


def find(report: TensorsReport, name: str = f"{UP}.weight") -> TensorDelta:
    return next(delta for delta in report.deltas if delta.name == name)


def words(report: TensorsReport, name: str = f"{UP}.weight") -> str:
    likeness = find(report, name).likeness
    return "" if likeness is None else likeness.words


def choose_e2m1(scaled: torch.Tensor) -> torch.Tensor:
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = (scaled.abs()[..., None] - levels).abs().argmin(-1)
    return (codes + 8 * (scaled < 0)).to(torch.uint8)


def pack_nvfp4(weight: torch.Tensor) -> Tensors:
    whole = weight.abs().max() / (6 * 448)
    groups = weight.reshape(ROWS, -1, 16)
    scale = (groups.abs().amax(2) / 6 / whole).to(torch.float8_e4m3fn)
    codes = choose_e2m1(groups / (scale.float() * whole)[..., None]).reshape(ROWS, -1)
    return {
        f"{UP}.weight": codes[:, ::2] | (codes[:, 1::2] << 4),
        f"{UP}.weight_scale": scale,
        f"{UP}.weight_scale_2": whole,
        f"{UP}.input_scale": torch.ones(()),
    }


def pack_words(codes: torch.Tensor) -> torch.Tensor:
    """Eight numbers of 4 bits a word, along the first axis."""
    grid = codes.reshape(-1, 8, codes.shape[1]).numpy().astype(np.uint32)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)[None, :, None]
    return torch.from_numpy((grid << shifts).sum(axis=1, dtype=np.uint32).view(np.int32))


def fit_groups(weight: torch.Tensor, least: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and the zero point of each group, (rows, groups), for codes of 4 bits."""
    groups = weight.reshape(ROWS, -1, GROUP)
    high, low = groups.amax(2).clamp(min=0), groups.amin(2).clamp(max=0)
    scale = ((high - low) / 15).half().float()
    return scale, (-low / scale).round().clamp(least, 15)


def pack_gptq(weight: torch.Tensor, order: torch.Tensor | None = None) -> Tensors:
    inputs = torch.arange(COLUMNS) if order is None else order
    index = torch.empty(COLUMNS, dtype=torch.int64)
    index[inputs] = torch.arange(COLUMNS) // GROUP
    scale, zero = fit_groups(weight[:, inputs], least=1)
    codes = (weight / scale[:, index]).round() + zero[:, index]
    return {
        f"{UP}.qweight": pack_words(codes.clamp(0, 15).T.contiguous()),
        f"{UP}.qzeros": pack_words(zero - 1).T.contiguous(),
        f"{UP}.scales": scale.T.half(),
        f"{UP}.g_idx": index.int(),
    }


def pack_act_order(weight: torch.Tensor) -> Tensors:
    return pack_gptq(weight, torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(1)))


def pack_awq(weight: torch.Tensor) -> Tensors:
    """As GPTQ's, but along the outputs, of which a word has 0, 2, 4, 6, 1, 3, 5 and 7."""
    groups = weight.reshape(ROWS, -1, GROUP)
    scale, zero = fit_groups(weight, least=0)
    codes = ((groups / scale[..., None]).round() + zero[..., None]).clamp(0, 15)
    order = torch.arange(ROWS).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
    return {
        f"{UP}.qweight": pack_words(codes.reshape(ROWS, -1)[order]).T.contiguous(),
        f"{UP}.qzeros": pack_words(zero[order]).T.contiguous(),
        f"{UP}.scales": scale.T.half(),
    }


def pack_int8(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {
        f"{UP}.weight": (weight / scale).round().to(torch.int8),
        f"{UP}.weight_scale": scale,
    }


def pack_mlx(weight: torch.Tensor, bits: int = 5, dtype: torch.dtype = torch.float16) -> Tensors:
    """Codes between the ends of each group, one after the other in words, chosen by scales that are
    rounded to their dtype after that; of 5 bits in groups of 64 the sizes alone say so."""
    groups = weight.reshape(ROWS, -1, GROUP)
    low, high = groups.amin(2), groups.amax(2)
    scale = (high - low) / (2**bits - 1)
    codes = (groups - low.to(dtype).float()[..., None]) / scale[..., None]
    whole = codes.round().clamp(0, 2**bits - 1).to(torch.uint8).reshape(ROWS, -1, 1).numpy()
    flags = np.unpackbits(whole, axis=2, count=bits, bitorder="little").reshape(ROWS, -1)
    words = np.packbits(flags, axis=1, bitorder="little").view(np.int32)
    return {
        f"{UP}.weight": torch.from_numpy(words).view(torch.uint32),
        f"{UP}.scales": scale.to(dtype),
        f"{UP}.biases": low.to(dtype),
    }
