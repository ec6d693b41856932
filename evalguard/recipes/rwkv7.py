"""Convert an RWKV-7 checkpoint of BlinkDL's to the layout of flash-linear-attention.

    build:
      call: evalguard.recipes.rwkv7:convert
      inputs: {source: ./rwkv7.pth, tokenizer: ./tokenizer, dtype: float32}

Needs ``torch`` and ``safetensors``; model type fla loads what is written.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.errors import BuildError, UsageError, nearest

if TYPE_CHECKING:
    from torch import Tensor

_DTYPES = ("float32", "bfloat16", "float16")
_TOKENIZER_FILES = ("tokenizer*.json", "special_tokens_map.json", "rwkv_vocab_*.txt")
_WHOLE = {
    "emb.weight": "model.embeddings.weight",
    "head.weight": "lm_head.weight",
    "ln_out.weight": "model.norm.weight",
    "ln_out.bias": "model.norm.bias",
}
_PARTS = {
    "ln0": "pre_norm",
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "att.ln_x": "attn.g_norm",
    "att.receptance": "attn.r_proj",
    "att.key": "attn.k_proj",
    "att.value": "attn.v_proj",
    "att.output": "attn.o_proj",
    "ffn.key": "ffn.key",
    "ffn.value": "ffn.value",
}
# rwkv-pip's, of layer norms and of group norms; fla has head_dim * norm_eps for the latter.
_NORM_EPS, _GROUP_NORM_EPS = 1e-5, 64e-5
_LOW_RANK = {"0": "lora.2.bias", "1": "lora.0.weight", "2": "lora.2.weight"}


def convert(
    output: Path | str,
    source: str,
    tokenizer: str | None = None,
    dtype: str = "float32",
    fuse_norm: bool = False,
) -> None:
    """Write a checkpoint folder of flash-linear-attention with its tokenizer.

    Args:
        source: the ``.pth`` file.
        tokenizer: folder whose tokenizer files go along; default: RWKV's world vocabulary, of
            package rwkv where that is installed.
        dtype: of every tensor that is written. float32 keeps what a float32 file has.
        fuse_norm: what the configuration says of fla's fused norms.

    Raises:
        UsageError: no such file, dtype or tokenizer.
        BuildError: a tensor that RWKV-7 does not have, or one is missing, or fla cannot compute
            the model.
    """
    import torch
    from safetensors.torch import save_file

    file = Path(source).expanduser()
    if not file.is_file():
        raise UsageError(f"source: there is no file at {file}")
    if dtype not in _DTYPES:
        raise UsageError(
            f"dtype '{dtype}' is not known{nearest(dtype, _DTYPES)}",
            hint=f"one of: {', '.join(_DTYPES)}",
        )
    weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    # Layer 0 mixes no values in; some files of BlinkDL's have the unused tensors all the same.
    weights = {k: v for k, v in weights.items() if not re.match(r"blocks\.0\.att\.v[012]$", k)}
    config = _read_config(weights, file, fuse_norm=fuse_norm, dtype=dtype)
    of_dtype = getattr(torch, dtype)
    tensors = {_rename(name): _shape(name, tensor, of_dtype) for name, tensor in weights.items()}
    texts = list(_tokenizer_files(tokenizer))
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for text_file in texts:
        shutil.copyfile(text_file, folder / text_file.name)


def _read_config(
    weights: dict[str, Tensor], file: Path, *, fuse_norm: bool, dtype: str
) -> dict[str, object]:
    """What the tensors' shapes say of the model.

    Raises:
        BuildError: a tensor is missing.
    """
    try:
        vocabulary, width = weights["emb.weight"].shape
        heads, head = weights["blocks.0.att.r_k"].shape
        layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
        ranks = {
            f"{long}_low_rank_dim": weights[f"blocks.{layer}.att.{short}1"].shape[1]
            for long, short, layer in (
                ("decay", "w", 0), ("a", "a", 0), ("gate", "g", 0), ("v", "v", 1)
            )
            if layer < layers
        }  # fmt: skip
        between = weights["blocks.0.ffn.key.weight"].shape[0]
    except KeyError as error:
        raise BuildError(f"{file} is not an RWKV-7 checkpoint: it has no {error}") from error
    if head * _NORM_EPS != _GROUP_NORM_EPS:
        raise BuildError(
            f"{file} has heads of {head}: RWKV-7's group norm has epsilon {_GROUP_NORM_EPS:g} "
            f"whatever their size, flash-linear-attention's {head * _NORM_EPS:g} (head_dim * "
            "norm_eps), and its configuration has no place for another",
            hint="a port of your own is named as model_args.pretrained; evalguard trace shows what "
            "its group norms do",
        )
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": between,
        "hidden_ratio": between / width,
        "num_hidden_layers": layers,
        "head_dim": head,
        "num_heads": heads,
        **ranks,
        "norm_eps": _NORM_EPS,
        "norm_first": True,
        "norm_bias": True,
        "hidden_act": "sqrelu",
        "fuse_norm": fuse_norm,
        "fuse_cross_entropy": False,
        "tie_word_embeddings": False,
        # RWKV's world vocabulary begins and ends a text with token 0.
        "bos_token_id": 0,
        "eos_token_id": 0,
        "dtype": dtype,
    }


def _rename(name: str) -> str:
    """The name of a tensor in fla.

    Raises:
        BuildError: RWKV-7 has no such tensor.
    """
    if name in _WHOLE:
        return _WHOLE[name]
    _, _, rest = name.partition("blocks.")
    layer, _, inner = rest.partition(".")
    part, _, kind = inner.rpartition(".")
    prefix = f"model.layers.{layer}"
    if part in _PARTS and kind in ("weight", "bias"):
        return f"{prefix}.{_PARTS[part]}.{kind}"
    if part == "att" and (low := re.fullmatch(r"([wavg])([012])", kind)):
        return f"{prefix}.attn.{low[1]}_lora.{_LOW_RANK[low[2]]}"
    if part == "att" and re.fullmatch(r"x_[rwkvag]|k_k|k_a|r_k", kind):
        return f"{prefix}.attn.{kind}"
    if inner == "ffn.x_k":
        return f"{prefix}.ffn.x_k"
    raise BuildError(f"RWKV-7 has no tensor '{name}'")


def _shape(name: str, tensor: Tensor, dtype: object) -> Tensor:
    """A tensor as fla has it: matrices of a low-rank pair transposed, most vectors flat."""
    last = name.rpartition(".")[2]
    if re.fullmatch(r"[wavg][12]", last):
        tensor = tensor.squeeze().T
    elif last in ("k_k", "k_a", "w0", "a0", "v0") or name.endswith("ffn.x_k"):
        tensor = tensor.flatten()
    return tensor.to(dtype).contiguous().clone()  # type: ignore[call-overload,no-any-return]


def _tokenizer_files(folder: str | None) -> Iterator[Path]:
    """Files of the tokenizer.

    Raises:
        UsageError: there are none.
    """
    if folder is None:
        spec = importlib.util.find_spec("rwkv")
        places = (
            []
            if spec is None
            else [Path(location) for location in spec.submodule_search_locations or ()]
        )
    else:
        places = [Path(folder).expanduser()]
    files = [
        file for root in places for glob in _TOKENIZER_FILES for file in sorted(root.glob(glob))
    ]
    if not files:
        raise UsageError(
            f"no tokenizer files in {folder}" if folder else "package rwkv is not installed here",
            hint="tokenizer: FOLDER, or add rwkv to the requirements for RWKV's world vocabulary",
        )
    yield from files
