"""Planted differences that ``evalguard tensors`` has to flag and to name, and quantisations that it
must not flag.

    python -m benchmarks.tensor_faults --output benchmarks/results/tensor_faults.md

Twelve faults in each of six formats, in a small Llama's tensors; then healthy quantisations of
random and heavy-tailed weights with outliers and empty rows. GGUF blocks are written by the package
gguf, q4_k and q6_k by plain quantisers below, and those of an importance matrix by
importance_matrix.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.importance_matrix import draw_importance, quantise_by_importance
from benchmarks.output import deliver
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_report import TensorsReport

COMMAND = "python -m benchmarks.tensor_faults --output benchmarks/results/tensor_faults.md"
WIDTH, INNER, VOCABULARY, LAYERS, HEADS = 512, 1024, 1024, 4, 8
Weights = dict[str, np.ndarray]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
UP, DOWN, VALUE = (
    f"model.layers.1.{part}.weight" for part in ("mlp.up_proj", "mlp.down_proj", "self_attn.v_proj")
)


def make_weights(seed: int, kind: str = "random") -> Weights:
    """Return a Llama's tensors: random, or heavy-tailed with outliers and rows that are zero."""
    generator = np.random.default_rng(seed)

    def draw(rows: int, columns: int) -> np.ndarray:
        if kind == "random":
            return (generator.standard_normal((rows, columns)) * 0.02).astype(np.float32)
        values = generator.standard_t(3, (rows, columns)) * 0.02
        values[generator.integers(rows, size=3)] *= 30
        values[generator.integers(rows, size=3)] = 0
        return values.astype(np.float32)

    found: Weights = {EMBEDDING: draw(VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            scale = generator.uniform(0.2, 0.5, WIDTH).astype(np.float32)
            found[f"{stem}.{norm}.weight"] = scale
        for part in ("v_proj", "o_proj"):
            found[f"{stem}.self_attn.{part}.weight"] = draw(WIDTH, WIDTH)
        for part, shape in (("up_proj", (INNER, WIDTH)), ("down_proj", (WIDTH, INNER))):
            found[f"{stem}.mlp.{part}.weight"] = draw(*shape)
    # one of equal elements: a factor explains it as well as a constant
    found["model.norm.weight"] = np.full(WIDTH, 0.317, dtype=np.float32)
    found[HEAD] = found[EMBEDDING].copy()
    return found


# What is planted: in the weights before they are quantised, so that every format can hold it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A change, the tensors that it is in, and the name that it must be given."""

    change: Callable[[Weights], None]
    name: str
    tensors: tuple[str, ...]
    count: int = 1


def _rows(name: str, where: Any, factor: float) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[name][where] *= np.float32(factor)

    return change


def _roll(weights: Weights) -> None:
    weights[UP][100:108] = np.roll(weights[UP][100:108], 1, axis=0)


def _swap(weights: Weights) -> None:
    weights[DOWN][[17, 300]] = weights[DOWN][[300, 17]]


def _repeat(weights: Weights) -> None:
    weights[UP][77] = weights[UP][76]


def _insert(weights: Weights) -> None:
    for name in (EMBEDDING, HEAD):
        old = weights[name].copy()
        weights[name][301:] = old[300:-1]
        weights[name][300] = old[5:9].mean(axis=0)


def _heads(weights: Weights) -> None:
    heads = weights[VALUE].reshape(HEADS, -1, WIDTH)
    heads[[1, 4, 6]] = heads[[4, 6, 1]].copy()


def _turn(weights: Weights) -> None:
    weights[UP] = np.ascontiguousarray(weights[UP].T).reshape(weights[UP].shape)


def _norms(weights: Weights) -> None:
    for name in weights:
        if name.endswith("norm.weight"):
            weights[name] += 1


def _stale(weights: Weights) -> None:
    drawn = np.random.default_rng(99).standard_normal(weights[HEAD].shape) * 0.01
    weights[HEAD] += drawn.astype(np.float32)


BLOCK = (7, slice(96, 128))
FAULTS = (
    Fault(change=_rows(UP, slice(0, 64), 0), name="rows zeroed", tensors=(UP,)),
    Fault(change=_rows(DOWN, slice(64, 88), -1), name="rows negated", tensors=(DOWN,)),
    Fault(change=_roll, name="rows permuted", tensors=(UP,)),
    Fault(change=_swap, name="rows permuted", tensors=(DOWN,)),
    Fault(change=_repeat, name="rows duplicated", tensors=(UP,)),
    Fault(change=_insert, name="shifted", tensors=(EMBEDDING, HEAD), count=2),
    Fault(change=_heads, name="heads permuted", tensors=(VALUE,)),
    Fault(change=_turn, name="transposed", tensors=(UP,)),
    Fault(change=_rows(UP, BLOCK, 10), name="blocks scaled", tensors=(UP,)),
    Fault(change=_rows(DOWN, (7, slice(96, 608)), -1), name="blocks negated", tensors=(DOWN,)),
    Fault(change=_norms, name="plus a constant", tensors=("model.norm.weight",), count=9),
    Fault(change=_stale, name="stale tied head", tensors=(HEAD,)),
)


# The formats: each writes quantised weights to a folder, and gives the path.


def write_bfloat16(weights: Weights, folder: Path) -> Path:
    """Write a cast."""
    tensors = {name: torch.from_numpy(one).bfloat16() for name, one in weights.items()}
    return _save(tensors, folder / "bf16.safetensors")


def write_int8(weights: Weights, folder: Path) -> Path:
    """Write integers with a scale for each row beside them."""
    return _save(_scaled(weights, 127, 0), folder / "int8.safetensors")


def write_int4(weights: Weights, folder: Path) -> Path:
    """Write integers of 4 bits with a scale for each 64 columns beside them."""
    return _save(_scaled(weights, 7, 64), folder / "int4.safetensors")


def write_float8(weights: Weights, folder: Path) -> Path:
    """Write e4m3 with a scale for each row beside it."""
    tensors: dict[str, torch.Tensor] = {}
    for name, values in weights.items():
        one = torch.from_numpy(values)
        if one.ndim < 2:
            tensors[name] = one
            continue
        scale = (one.abs().amax(dim=1, keepdim=True) / 448).clamp(min=1e-12)
        tensors[name] = (one / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale
    return _save(tensors, folder / "float8.safetensors")


def _scaled(weights: Weights, top: int, group: int) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, values in weights.items():
        if values.ndim < 2:
            tensors[name] = torch.from_numpy(values)
            continue
        blocks = values.reshape(len(values), -1, group or values.shape[1])
        scale = np.maximum(np.abs(blocks).max(axis=2, keepdims=True) / top, 1e-12)
        codes = np.clip(np.rint(blocks / scale), -top, top).astype(np.int8)
        tensors[name] = torch.from_numpy(codes.reshape(values.shape))
        tensors[f"{name}_scale"] = torch.from_numpy(scale[:, :, 0].astype(np.float32))
    return tensors


def _save(tensors: dict[str, torch.Tensor], path: Path) -> Path:
    save_file({name: one.contiguous() for name, one in tensors.items()}, path)
    return path


_GGUF = {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}  # fmt: skip
_TOP = {EMBEDDING: "token_embd", HEAD: "output", "model.norm.weight": "output_norm"}


def write_gguf(kind: str, orders: float | None = None) -> Callable[[Weights, Path], Path]:
    """Return what writes a GGUF file whose matrices are of a kind.

    Args:
        orders: of magnitude of an importance matrix; None: without one.
    """
    quantised = gguf.GGMLQuantizationType[kind]

    def write(weights: Weights, folder: Path) -> Path:
        path = folder / f"{kind}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in (("block_count", LAYERS), ("embedding_length", WIDTH),
                           ("feed_forward_length", INNER), ("head_count", HEADS),
                           ("head_count_kv", HEADS), ("context_length", 512)):  # fmt: skip
            getattr(writer, f"add_{key}")(value)
        for name, values in weights.items():
            if values.ndim < 2:
                writer.add_tensor(_gguf_name(name), values)
                continue
            if orders is not None:
                importance = draw_importance(values.shape[1], orders, len(name))
                data = quantise_by_importance(kind, values, importance)
            else:
                data = quantise(values, kind)
            writer.add_tensor(_gguf_name(name), data, raw_dtype=quantised)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _gguf_name(name: str) -> str:
    if name in _TOP:
        return f"{_TOP[name]}.weight"
    _, _, layer, inside = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_GGUF[inside]}.weight"


def quantise(values: np.ndarray, kind: str) -> np.ndarray:
    """Return blocks of a kind: of K-quants by a plain quantiser, of others by gguf's own."""
    own = {"Q4_K": quantise_q4_k, "Q6_K": quantise_q6_k}.get(kind)
    if own is not None:
        return own(values)
    found: np.ndarray = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
    return found


def quantise_q4_k(values: np.ndarray) -> np.ndarray:
    """Return blocks of q4_k: sub-blocks of 32 from their least to their greatest element."""
    blocks = values.reshape(-1, 8, 32)
    low = np.minimum(blocks.min(axis=2), 0)
    span = (blocks.max(axis=2) - low).clip(min=0) / 15
    halves = [one.max(axis=1).astype(np.float32) / 63 for one in (span, -low)]
    scale, minimum = (one.astype(np.float16) for one in halves)
    wide = [np.where(one == 0, 1, one).astype(np.float32)[:, None] for one in (scale, minimum)]
    codes = [np.rint(one / size).clip(0, 63) for one, size in zip((span, -low), wide, strict=True)]
    step, offset = (
        size.astype(np.float32)[:, None] * code
        for size, code in zip((scale, minimum), codes, strict=True)
    )
    safe = np.where(step == 0, 1, step)[..., None]
    levels = np.rint((blocks + offset[..., None]) / safe).clip(0, 15).astype(np.uint8)
    sizes, offsets = (code.astype(np.uint8) for code in codes)
    packed = np.concatenate(
        [
            (sizes[:, :4] & 63) | ((sizes[:, 4:] >> 4) << 6),
            (offsets[:, :4] & 63) | ((offsets[:, 4:] >> 4) << 6),
            (sizes[:, 4:] & 15) | ((offsets[:, 4:] & 15) << 4),
        ],
        axis=1,
    )
    halved = levels[:, 0::2] | (levels[:, 1::2] << 4)
    head = [one[:, None].view(np.uint8) for one in (scale, minimum)]
    raw = np.concatenate([*head, packed, halved.reshape(len(blocks), 128)], axis=1)
    return raw.reshape(len(values), -1)


def quantise_q6_k(values: np.ndarray) -> np.ndarray:
    """Return blocks of q6_k: sub-blocks of 16 with their greatest element at the lowest level."""
    blocks = values.reshape(-1, 16, 16)
    far = np.abs(blocks).argmax(axis=2)[..., None]
    wanted = -np.take_along_axis(blocks, far, axis=2)[..., 0] / 32
    scale = (np.abs(wanted).max(axis=1) / 127).astype(np.float16)
    wide = np.where(scale == 0, 1, scale).astype(np.float32)[:, None]
    sizes = np.rint(wanted / wide).clip(-128, 127).astype(np.int8)
    step = (scale.astype(np.float32)[:, None] * sizes)[..., None]
    safe = np.where(step == 0, 1, step)
    levels = np.rint(blocks / safe).clip(-32, 31).astype(np.int8) + np.int8(32)
    halves = levels.astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = halves & 15, halves >> 4
    nibbles = np.concatenate([low[:, :, :2], low[:, :, 2:] << 4], axis=2)
    packed = nibbles[:, :, :2] | nibbles[:, :, 2:]
    pairs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    parts = (packed, pairs, sizes.view(np.uint8), scale[:, None].view(np.uint8))
    raw = np.concatenate([one.reshape(len(blocks), -1) for one in parts], axis=1)
    return raw.reshape(len(values), -1)


FORMATS: dict[str, Callable[[Weights, Path], Path]] = {
    "bfloat16": write_bfloat16,
    "GGUF q8_0": write_gguf("Q8_0"),
    "GGUF q4_k": write_gguf("Q4_K"),
    "GGUF q6_k": write_gguf("Q6_K"),
    "int8 a row": write_int8,
    "int4 groups of 64": write_int4,
}
OTHERS: dict[str, Callable[[Weights, Path], Path]] = {
    "GGUF q4_0": write_gguf("Q4_0"),
    "GGUF q5_0": write_gguf("Q5_0"),
    "GGUF q5_1": write_gguf("Q5_1"),
    "GGUF mxfp4": write_gguf("MXFP4"),
    "float8 a row": write_float8,
    **{
        f"GGUF {kind.lower()}, importance matrix": write_gguf(kind, orders=6)
        for kind in ("Q4_0", "Q4_1", "Q5_0", "Q2_K", "Q3_K", "Q4_K", "IQ2_XXS")
    },
}


def compare(base: Path, candidate: Path) -> TensorsReport:
    """Compare as the command does."""
    return compare_tensors(str(base), str(candidate), TensorOptions())


def plant(name: str, fault: Fault, folder: Path) -> list[str]:
    """Plant a fault in a format; return a row: format, fault, flagged, named, innocent."""
    weights = make_weights(1)
    _save(
        {key: torch.from_numpy(one) for key, one in weights.items()}, folder / "model.safetensors"
    )
    damaged = {key: one.copy() for key, one in weights.items()}
    fault.change(damaged)
    report = compare(folder / "model.safetensors", FORMATS[name](damaged, folder))
    beyond = {one.name: one for one in report.deltas if not one.passed}
    likes = [one.likeness for one in beyond.values()]
    named = [one for one in likes if one is not None and one.name == fault.name]
    right = len(named) == fault.count and set(fault.tensors) <= set(beyond)
    once = len({one.detail for one in named}) == 1
    words = named[0].words if named else "; ".join(one.words for one in likes if one) or "nothing"
    return [
        name,
        fault.name,
        "yes" if set(fault.tensors) <= set(beyond) else "no",
        "yes" if right and (once or fault.count < 3) else "no",
        str(len(set(beyond)) - len(named)),
        words,
    ]


def check_healthy(name: str, kind: str, folder: Path) -> list[str]:
    """Quantise healthy weights; return a row: format, weights, flagged tensors."""
    weights = make_weights(2, kind)
    _save(
        {key: torch.from_numpy(one) for key, one in weights.items()}, folder / "model.safetensors"
    )
    path = {**FORMATS, **OTHERS}[name](weights, folder)
    report = compare(folder / "model.safetensors", path)
    flagged = [one.name for one in report.deltas if not one.passed or one.damage]
    return [name, kind, str(len(flagged)), json.dumps(flagged[:3]) if flagged else ""]


def main() -> None:
    """Plant all faults, check all healthy ones, and deliver the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    planted, healthy = [], []
    for name in FORMATS:
        for fault in FAULTS:
            with tempfile.TemporaryDirectory() as folder:
                planted.append(plant(name, fault, Path(folder)))
    for name in (*FORMATS, *OTHERS):
        for kind in ("random", "heavy-tailed"):
            with tempfile.TemporaryDirectory() as folder:
                healthy.append(check_healthy(name, kind, Path(folder)))
    deliver(render(planted, healthy), options.output)


def render(planted: list[list[str]], healthy: list[list[str]]) -> Iterator[str]:
    """Yield the lines of the page."""
    flagged = sum(row[2] == "yes" for row in planted)
    named = sum(row[2] == row[3] == "yes" for row in planted)
    innocent = sum(row[4] != "0" for row in planted)
    wrong = sum(row[2] != "0" for row in healthy)
    yield "# Planted differences of tensors"
    yield ""
    yield (
        f"`{COMMAND}`: of {len(planted)} planted differences {flagged} flagged, {named} flagged "
        f"and named, {innocent} with an innocent tensor; of {len(healthy)} healthy quantisations "
        f"{wrong} flagged."
    )
    yield ""
    yield "| format | planted | flagged | named | other tensors flagged | words |"
    yield "|---|---|---|---|---|---|"
    for row in planted:
        yield f"| {' | '.join(row)} |"
    yield ""
    yield "| format | healthy weights | flagged | |"
    yield "|---|---|---|---|"
    for row in healthy:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
