"""A Llama as a GGUF file, in float32 written by hand (GGUF v3, ggml's specification)."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

_UINT32, _FLOAT32, _STRING, _F32_TENSOR, _ALIGNMENT = 4, 6, 8, 0, 32
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save_gguf(model: Path, file: Path) -> Path:
    """Write a Llama's folder as one GGUF file."""
    config = json.loads((model / "config.json").read_text())
    tensors = {
        _name(name): _permuted(name, tensor.float(), config).contiguous()
        for name, tensor in load_file(model / "model.safetensors").items()
    }
    metadata = _metadata(config)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(_text(key) + value for key, value in metadata.items())
    data = b""
    for name, tensor in tensors.items():
        shape = tuple(reversed(tensor.shape))
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", _F32_TENSOR, len(data))
        data = _padded(data + tensor.numpy().tobytes())
    file.write_bytes(_padded(head) + data)
    return file


def save_quantised_gguf(model: Path, kind: str, path: Path) -> Path:
    """Write a Llama's folder so, its matrices of whole blocks in ``kind``; skip without gguf."""
    gguf = pytest.importorskip("gguf")
    from benchmarks.tensor_faults import quantise

    reader = gguf.GGUFReader(save_gguf(model, path.with_suffix(".f32")))
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if key.startswith("llama."):
            value = field.contents()
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    quantised = getattr(gguf.GGMLQuantizationType, kind)
    for tensor in reader.tensors:
        rows = np.array(tensor.data).reshape(tuple(reversed(tensor.shape)))
        if rows.ndim == 2 and rows.shape[1] % gguf.GGML_QUANT_SIZES[quantised][0] == 0:
            data = quantise(rows, kind)
            writer.add_tensor(tensor.name, data, raw_dtype=quantised)
        else:
            writer.add_tensor(tensor.name, rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: dict[str, Any]) -> dict[str, bytes]:
    numbers = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "vocab_size": config["vocab_size"],
    }
    epsilon, base = config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
    return {
        "general.architecture": struct.pack("<I", _STRING) + _text("llama"),
        **{f"llama.{key}": struct.pack("<II", _UINT32, n) for key, n in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", _FLOAT32, epsilon),
        "llama.rope.freq_base": struct.pack("<If", _FLOAT32, base),
    }


def _name(tensor: str) -> str:
    path = tensor.removesuffix(".weight")
    if not path.startswith("model.layers."):
        return f"{_NAMES[path]}.weight"
    _, _, number, inside = path.split(".", 3)
    return f"blk.{number}.{_NAMES[inside]}.weight"


def _permuted(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Queries and keys as ggml's rotary embedding wants them: pairs beside each other."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    key = next((heads[part] for part in heads if part in name), None)
    if key is None:
        return tensor
    halves = tensor.reshape(config[key], 2, tensor.shape[0] // config[key] // 2, -1)
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
