"""Hugging Face checkpoint to GGUF, with a type for all tensors and for single ones.

    build:
      call: evalguard.recipes.gguf:convert
      output: model.gguf
      inputs: {source: orig, type: Q8_0, overrides: {"blk.*.ffn_down.weight": F16}}

Needs the packages ``gguf`` and ``safetensors``, and for K- and i-quants ``xllamacpp``, whose ggml
rounds them. Every matrix has the one type, as of ``llama-quantize --pure``. A matrix whose rows are
no multiple of the type's block has another one, by llama.cpp's rules (``fallback_type``); the file
names those (``FALLBACKS_KEY``). The file format and the names of its keys are
those of llama.cpp (docs/gguf.md in its repository); weights of q and k are permuted because
llama.cpp rotates pairs of neighbours where Hugging Face rotates halves.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import UsageError, nearest
from evalguard.recipes.checkpoints import find_checkpoint

# Where the packages keep it: one library of all, or one of ggml alone.
_PLACES = {"xllamacpp": "xllamacpp/*.so", "llama_cpp": "llama_cpp/lib/libggml*"}
_HINT = "add xllamacpp to the model's requirements"


def quantise_rows(values: NDArray[Any], kind: Any) -> NDArray[np.uint8]:
    """Return rows of float32 as the bytes of a ggml type, rounded as llama-quantize rounds.

    Args:
        values: (rows, columns); columns are a multiple of the type's block.
        kind: the package gguf's ``GGMLQuantizationType``.

    Raises:
        UsageError: the library is not there, or the type needs an importance matrix.
    """
    library = _library()
    number = int(kind)
    if library.ggml_quantize_requires_imatrix(number):
        raise UsageError(
            f"GGUF type '{kind.name}' needs an importance matrix, which this recipe has not",
            hint="llama.cpp's own llama-quantize --imatrix FILE as build: {command: ...}",
        )
    rows, columns = values.shape
    source = np.ascontiguousarray(values, dtype=np.float32)
    packed = np.empty((rows, int(library.ggml_row_size(number, columns))), dtype=np.uint8)
    library.ggml_quantize_init(number)
    written = library.ggml_quantize_chunk(
        number, source.ctypes.data, packed.ctypes.data, 0, rows, columns, None
    )
    if written != packed.nbytes:
        raise UsageError(f"ggml wrote {written:,} bytes of {kind.name}, not {packed.nbytes:,}")
    return packed


@cache
def _library() -> Any:
    for name, pattern in _PLACES.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for path in sorted(Path(str(module.__file__)).parent.parent.glob(pattern)):
            library = ctypes.CDLL(str(path))
            if hasattr(library, "ggml_quantize_chunk"):
                return _declare(library)
    raise UsageError("K-quants are written by ggml's library, which is not here", hint=_HINT)


def _declare(library: Any) -> Any:
    """Types of the functions that are called, as ggml.h has them."""
    number, size, pointer = ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p
    library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    library.ggml_quantize_requires_imatrix.argtypes = [ctypes.c_int]
    library.ggml_quantize_init.restype = None
    library.ggml_quantize_init.argtypes = [ctypes.c_int]
    library.ggml_row_size.restype = size
    library.ggml_row_size.argtypes = [ctypes.c_int, number]
    library.ggml_quantize_chunk.restype = size
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, pointer, pointer, number, number, number, pointer,
    ]  # fmt: skip
    return library


_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6  # kinds of tokens in a GGUF file


def write_tokenizer(
    writer: Any, folder: Path, config: Mapping[str, Any], add_bos: bool | None
) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    if model.get("type") != "BPE":
        # The runtime takes the checkpoint's own tokenizer then (model_args: tokenizer).
        writer.add_tokenizer_model("no_vocab")
        return
    size = int(config["vocab_size"])
    added = {token["id"]: token for token in tokenizer.get("added_tokens", ())}
    texts = {number: text for text, number in model["vocab"].items()}
    texts |= {number: token["content"] for number, token in added.items()}
    tokens = [texts.get(number, f"[PAD{number}]") for number in range(size)]
    whole_bytes = bool(model.get("byte_fallback"))
    kinds = [
        _kind_of(number, text, added, texts, whole_bytes) for number, text in enumerate(tokens)
    ]
    writer.add_tokenizer_model("llama" if whole_bytes else "gpt2")
    if not whole_bytes:
        writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    if whole_bytes:
        writer.add_token_scores(_scores(tokens, model["merges"]))
        prepends = any(
            normalizer.get("type") == "Prepend"
            for normalizer in (tokenizer.get("normalizer") or {}).get("normalizers", ())
        )
        writer.add_add_space_prefix(prepends)
    else:
        writer.add_token_merges(merges)
    if config.get("bos_token_id") is not None:
        writer.add_bos_token_id(int(config["bos_token_id"]))
    eos = config.get("eos_token_id")
    if eos is not None:
        writer.add_eos_token_id(int(eos[0] if isinstance(eos, list) else eos))
    template = tokenizer.get("post_processor") or {}
    begins = [next(iter(piece)) for piece in template.get("single", ())][:1] == ["SpecialToken"]
    writer.add_add_bos_token(begins if add_bos is None else add_bos)
    chat = _chat_template(folder)
    if chat:
        writer.add_chat_template(chat)


def _chat_template(folder: Path) -> str:
    """The folder's chat template, which llama.cpp's server renders conversations by; "": none."""
    own, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    template = settings.get("chat_template")
    return template if isinstance(template, str) else ""


def _kind_of(
    number: int,
    text: str,
    added: Mapping[int, Mapping[str, Any]],
    texts: Mapping[int, str],
    whole_bytes: bool,
) -> int:
    if number not in texts:
        return _USER
    if text == "<unk>":
        return _UNKNOWN
    if number in added:
        return _CONTROL if added[number].get("special") else _USER
    return _BYTE if whole_bytes and len(text) == 6 and text.startswith("<0x") else _NORMAL


def _scores(tokens: list[str], merges: list[Any]) -> list[float]:
    """llama.cpp joins the pair whose result has the highest score: earlier merges score higher."""
    order = {"".join(m.split(" ") if isinstance(m, str) else m): -float(rank)
             for rank, m in enumerate(merges)}  # fmt: skip
    lowest = -float(len(merges)) - 1.0
    return [order.get(token, lowest) for token in tokens]


_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Gemma2ForCausalLM": "gemma2",
}
_LAYER_TENSORS = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_GEMMA2_TENSORS = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
_WHOLE_TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
# What the package gguf writes, and what ggml's library does.
_PLAIN_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
_GGML_TYPES = ("Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "IQ4_XS", "IQ4_NL", "IQ3_S")
TYPES = (*_PLAIN_TYPES, *_GGML_TYPES)
_FALLBACKS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL", "IQ3_S": "IQ4_NL",
}  # fmt: skip
FALLBACKS_KEY = "evalguard.fallbacks"
Array = NDArray[Any]


def convert(
    output: Path | str,
    source: str,
    type: str = "F16",
    overrides: Mapping[str, str] | None = None,
    eps: float | None = None,
    rope_base: float | None = None,
    add_bos: bool | None = None,
) -> None:
    """Write a GGUF file.

    Args:
        source: folder with config.json, safetensors and tokenizer.json.
        type: of every matrix whose rows it fits; vectors stay F32, as llama.cpp's converter has it.
        overrides: pattern of GGUF tensor names -> type, the first match counts; one that decides
            no matrix is an error.
        eps, rope_base: in place of the checkpoint's, to plant or to mend a fault.
        add_bos: whether a text is to begin with BOS; None: as the tokenizer does.

    Raises:
        UsageError: an architecture, type or tokenizer that this does not write, a pattern that
            decides nothing.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    folder = find_checkpoint(source)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = _architecture(config)
    rules = {**dict(overrides or {}), "*": type}
    for name in rules.values():
        if name not in TYPES:
            raise UsageError(f"GGUF type '{name}' is not written here{nearest(name, TYPES)}",
                             hint=f"one of: {', '.join(TYPES)}")  # fmt: skip
    writer = GGUFWriter(str(output), architecture)
    _write_sizes(writer, config, eps, rope_base)
    write_tokenizer(writer, folder, config, add_bos)
    changed: dict[tuple[str, str], list[str]] = {}
    matrices: dict[str, str] = {}  # and the pattern that decides each
    for name, tensor in _tensors(folder, config):
        if tensor.ndim > 1:
            matrices[name] = next(pattern for pattern in rules if fnmatchcase(name, pattern))
        asked = rules[matrices[name]] if name in matrices else "F32"
        written = fallback_type(asked, tensor.shape[-1])
        if written != asked:
            changed.setdefault((asked, written), []).append(name)
        kind = GGMLQuantizationType[written]
        writer.add_tensor(name, _encode(tensor, kind), raw_dtype=kind)
    for pattern in overrides or {}:
        if pattern not in matrices.values():
            raise UsageError(
                f"overrides: '{pattern}' decides the type of no matrix{nearest(pattern, matrices)}",
                hint="vectors stay F32, and of two patterns that fit the first counts; matrices: "
                f"{', '.join(list(matrices)[:4])} ...",
            )
    if changed:
        writer.add_string(FALLBACKS_KEY, _fallbacks_text(changed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _architecture(config: Mapping[str, Any]) -> str:
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in _ARCHITECTURES:
        raise UsageError(
            f"no GGUF recipe for {architecture}{nearest(architecture, _ARCHITECTURES)}",
            hint="llama.cpp's convert_hf_to_gguf.py as build: {command: ...} converts more",
        )
    return _ARCHITECTURES[architecture]


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _write_sizes(
    writer: Any, config: Mapping[str, Any], eps: float | None, rope_base: float | None
) -> None:
    rope = config.get("rope_parameters") or config
    if (kind := rope.get("rope_type", "default")) != "default":
        raise UsageError(f"no GGUF recipe for rope type '{kind}'")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads") or config["num_attention_heads"])
    writer.add_key_length(_head_size(config))
    writer.add_value_length(_head_size(config))
    writer.add_rope_dimension_count(_head_size(config))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"] if eps is None else eps)
    if config["architectures"][0] == "Gemma2ForCausalLM":
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(name) is not None:
                getattr(writer, f"add_{name}")(config[name])
        writer.add_sliding_window(config["sliding_window"])
    if _query_scale(config) != 1.0:
        writer.add_float32("evalguard.query_scale", _query_scale(config))  # for a trace
    writer.add_rope_freq_base(rope.get("rope_theta", 1e4) if rope_base is None else rope_base)


def _tensors(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """GGUF name and float32 values of every tensor."""
    heads = int(config["num_attention_heads"])
    groups = int(config.get("num_key_value_heads") or heads)
    gemma2 = config["architectures"][0] == "Gemma2ForCausalLM"
    names = {**_LAYER_TENSORS, **(_GEMMA2_TENSORS if gemma2 else {})}
    rotates_pairs = _architecture(config) == "llama"
    for name, tensor in _read_checkpoint(folder):
        if gemma2 and name.endswith("norm.weight"):
            tensor = tensor + 1.0  # it multiplies by 1 + weight, llama.cpp by the weight
        if name in _WHOLE_TENSORS:
            yield _WHOLE_TENSORS[name], tensor
            continue
        parts = name.split(".", 3)
        if parts[:2] != ["model", "layers"] or parts[-1] not in names:
            raise UsageError(f"no GGUF recipe for the tensor {name}")
        if ".q_proj." in name:
            tensor = _interleave(tensor, heads) if rotates_pairs else tensor
            tensor = tensor * _query_scale(config)
        if ".k_proj." in name and rotates_pairs:
            tensor = _interleave(tensor, groups)
        yield f"blk.{parts[2]}.{names[parts[-1]]}", tensor


def _query_scale(config: Mapping[str, Any]) -> float:
    """What q is multiplied by where llama.cpp scales attention by the head's size alone."""
    scalar = config.get("query_pre_attn_scalar")
    return 1.0 if scalar is None else math.sqrt(_head_size(config) / float(scalar))


def _interleave(weight: Array, heads: int) -> Array:
    """Rows of each head from halves to pairs: (first, second half) -> neighbours."""
    rows = weight.shape[0]
    halves = weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def _read_checkpoint(folder: Path) -> Iterator[tuple[str, Array]]:
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"no safetensors in {folder}")
    for file in files:
        with safe_open(file, framework=_framework()) as opened:
            for name in opened.keys():  # noqa: SIM118  not a mapping
                yield name, _as_float32(opened.get_tensor(name))


def _framework() -> str:
    """bfloat16 needs torch; numpy has no such type."""
    import importlib.util

    return "pt" if importlib.util.find_spec("torch") else "np"


def _as_float32(tensor: Any) -> Array:
    if hasattr(tensor, "detach"):
        return np.asarray(tensor.detach().float().numpy(), dtype=np.float32)
    return np.asarray(tensor, dtype=np.float32)


def fallback_type(kind: str, columns: int) -> str:
    """Return the type of a matrix of which ``kind`` was asked: itself, where its blocks fit.

    Those of llama.cpp's quantiser (tensor_type_fallback in src/llama-quant.cpp, of 2026): a type of
    blocks of 32 in place of one of 256, and F16 where that does not fit either.

    >>> fallback_type("Q4_K", 256), fallback_type("Q4_K", 96), fallback_type("Q4_0", 172)
    ('Q4_K', 'Q5_0', 'F16')
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    for candidate in (kind, _FALLBACKS.get(kind, "F16")):
        if columns % GGML_QUANT_SIZES[GGMLQuantizationType[candidate]][0] == 0:
            return candidate
    return "F16"


def _fallbacks_text(changed: Mapping[tuple[str, str], list[str]]) -> str:
    """Which matrices have another type than was asked for, layers as one."""
    parts = []
    for (asked, written), names in changed.items():
        kinds = Counter(re.sub(r"^blk\.\d+\.", "blk.*.", name) for name in names)
        listed = [f"{kind} ({count})" if count > 1 else kind for kind, count in kinds.items()]
        parts.append(f"{written} in place of {asked}: {', '.join(listed)}")
    return "; ".join(parts)


def _encode(tensor: Array, kind: Any) -> Array:
    """Values of a type, as bytes."""
    if kind.name in _GGML_TYPES:
        return quantise_rows(tensor.reshape(-1, tensor.shape[-1]), kind)
    from gguf.quants import quantize

    return np.asarray(quantize(tensor, kind))
