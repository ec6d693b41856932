"""Read the hyper-parameters that a model computes with, under names that all libraries share.

Of a loaded torch model they are read off its modules, its weights and its config; of anything else
off a mapping of names to values: config.json, the metadata of a GGUF file, TransformerLens' cfg, a
YAML or JSON file beside recorded activations.

Su et al. 2021 (arXiv:2104.09864): the i-th of n frequencies is base^(-i/n); scaled ones (YaRN,
Llama 3) are no such series.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.hyperparameters import ABSENT, ROPE_FREQUENCIES, HeldValue
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, UsageError
from evalguard.gguf_table import check_gguf_header
from evalguard.installation import extra_command
from evalguard.models.config_overrides import is_computed_with, to_json_value
from evalguard.regular_file import read_regular_text

if TYPE_CHECKING:
    import torch

_FREQUENCIES = re.compile(r"(?!original_|.*_original_)(?:(?P<part>.*)_)?inv_freqs?")
_SINES = re.compile(r"_?(?:(?P<part>.*?)_)?(?:sin|sin_cached?|sin_cache|sines?)")
_TURNS = re.compile(r"_?freqs_?cis|_?freqs_complex")
_SINES_AND_COSINES = "embed_positions"  # GPT-J's: sines, then cosines
# How far inverse frequencies may be from a geometric progression, relative, to name their base.
_GEOMETRIC = 1e-4


def read_rotary(name: str, module: torch.nn.Module) -> Iterator[HeldValue]:
    """Give base, frequencies, size and layout of rotary positions that a module holds.

    Args:
        name: of the module.
    """
    held = {**vars(module), **module._buffers}
    for key, value in held.items():
        if not _is_table(value):
            continue
        rotary = _frequencies(key, value)
        if rotary is None:
            continue
        part, frequencies, interleaved = rotary
        label = f" ({part})" if part else ""
        theta = rope_base(frequencies)
        if theta is not None:
            yield HeldValue(name=f"rope_theta{label}", value=theta, module=name, source=key)
        yield HeldValue(
            name=f"{ROPE_FREQUENCIES}{label}",
            value=[float(f"{frequency:.7g}") for frequency in frequencies.tolist()],
            module=name,
            source=key,
        )
        if not part:
            size = 2 * len(frequencies)
            yield HeldValue(name="rope_dimensions", value=size, module=name, source=key)
        if interleaved is not None and not part:
            yield HeldValue(name="rope_interleaved", value=interleaved, module=name, source=key)


def _is_table(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "is_complex"):
        return False
    return bool(value.numel() > 1 and (value.is_floating_point() or value.is_complex()))


def _frequencies(
    key: str, value: torch.Tensor
) -> tuple[str, NDArray[np.float64], bool | None] | None:
    """Read frequencies off a tensor, what they are of, and whether pairs are neighbours."""
    plain = _FREQUENCIES.fullmatch(key)
    if plain is not None and not value.is_complex():
        return plain["part"] or "", value.detach().double().cpu().numpy().reshape(-1), None
    if value.ndim < 2 or value.shape[-2] < 2:
        return None
    # the second position: one step of each frequency
    row = value.detach()[(0,) * (value.ndim - 2)][1].cpu()
    if _TURNS.fullmatch(key) and row.is_complex():
        return "", np.angle(row.numpy().astype(np.complex128)), None
    if row.is_complex():
        return None
    sines = row.double().numpy()
    if key == _SINES_AND_COSINES and len(sines) % 2 == 0:
        return "", np.arcsin(np.clip(sines[: len(sines) // 2], -1.0, 1.0)), None
    named = _SINES.fullmatch(key)
    if named is None or np.max(np.abs(sines)) > 1.0:
        return None
    half = len(sines) // 2
    if len(sines) == 2 * half and np.array_equal(sines[:half], sines[half:]):
        return named["part"] or "", np.arcsin(sines[:half]), False
    if len(sines) == 2 * half and np.array_equal(sines[0::2], sines[1::2]):
        return named["part"] or "", np.arcsin(sines[0::2]), True
    return named["part"] or "", np.arcsin(sines), None


def rope_base(frequencies: NDArray[np.float64]) -> float | None:
    """Return the base whose rotary inverse frequencies these are, to 5 digits; None: of none."""
    n = frequencies.shape[0]
    if n < 2 or not np.all(frequencies > 0.0) or abs(frequencies[0] - 1.0) > _GEOMETRIC:
        return None
    ratio = float(frequencies[-1]) ** (1.0 / (n - 1))
    expected = ratio ** np.arange(n)
    if np.max(np.abs(expected / frequencies - 1.0)) > _GEOMETRIC:
        return None
    return float(f"{ratio**-n:.5g}")


_HINT = "a mapping of names to values: {rms_norm_eps: 1.0e-5, rope_theta: 10000.0}"
# Names by which config files, GGUF metadata (without the architecture's prefix) and
# TransformerLens call one thing.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "norm_eps": (
        "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps",
        "norm_epsilon", "eps", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
    ),
    "norm_kind": ("normalization_type",),
    "attention_scale": ("attn_scale", "attention_multiplier", "attention.scale", "softmax_scale"),
    "attention_softcap": (
        "attn_logit_softcapping", "attn_scores_soft_cap", "attn_logit_softcap",
    ),
    "final_softcap": (
        "final_logit_softcapping", "output_logits_soft_cap", "logits_soft_cap",
    ),
    "attention_window": ("sliding_window", "window_size", "attention.sliding_window"),
    "attention_kinds": ("layer_types", "attn_types"),
    "rope_theta": ("rope_theta", "rotary_base", "rope.freq_base", "rotary_emb_base"),
    "rope_dimensions": ("rotary_dim", "rope.dimension_count"),
    "rope_kind": ("rope_type", "rope.scaling.type"),
    "rope_factor": ("rope.scaling.factor",),
    "rope_interleaved": ("rotary_adjacent_pairs", "rope_interleave"),
    "activation": (
        "hidden_act", "hidden_activation", "activation_function", "act_fn",
        "feat_extract_activation",
    ),
    "embedding_scale": ("embedding_multiplier", "embedding_scale"),
    "residual_scale": ("residual_multiplier", "residual_scale"),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "tied_embeddings": ("tie_word_embeddings",),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "block_count"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "embedding_length"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "attention.head_count"),
    "key_value_heads": (
        "num_key_value_heads", "n_key_value_heads", "attention.head_count_kv",
    ),
    "head_size": ("head_dim", "d_head", "attention.key_length"),
    "mlp_size": ("intermediate_size", "d_mlp", "n_inner", "feed_forward_length"),
    "vocabulary": ("vocab_size", "d_vocab"),
    "context": ("max_position_embeddings", "n_positions", "n_ctx", "context_length"),
    "bos_token_id": ("bos_token_id", "tokenizer.ggml.bos_token_id"),
    "eos_token_id": ("eos_token_id", "tokenizer.ggml.eos_token_id"),
    "pad_token_id": ("pad_token_id", "tokenizer.ggml.padding_token_id"),
    "puts_bos_first": ("add_bos_token", "tokenizer.ggml.add_bos_token", "default_prepend_bos"),
    "dtype": ("dtype", "torch_dtype"),
    "attention_implementation": ("attn_implementation", "_attn_implementation"),
}  # fmt: skip
_COMMON = {synonym: name for name, synonyms in _SYNONYMS.items() for synonym in synonyms}
_CAPS = frozenset({"attention_softcap", "final_softcap", "attention_window"})
# Architectures that llama.cpp gives no attention window, whatever was converted had (measured).
_WITHOUT_WINDOW = frozenset({"llama", "qwen2"})
_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "gelu (tanh)": (
        "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_tanh", "newgeluactivation", "gelutanh",
        "pytorchgelutanh", "fastgeluactivation", "gelu_accurate", "accurategeluactivation",
    ),
    "gelu (erf)": ("gelu", "gelu_erf", "gelu_python", "geluactivation"),
    "gelu (sigmoid)": ("quick_gelu", "quickgeluactivation"),
    "silu": ("silu", "swish", "siluactivation"),
    "relu": ("relu", "reluactivation"),
    "relu squared": ("relu2", "squared_relu", "relusquaredactivation"),
    "mish": ("mish", "mishactivation"),
    "tanh": ("tanh",),
    "sigmoid": ("sigmoid",),
}  # fmt: skip
_ACTIVATION_NAMES = {other: name for name, others in _ACTIVATIONS.items() for other in others}
_NORM_KINDS = {
    "RMS": "RMSNorm", "RMSPRE": "RMSNorm", "LN": "LayerNorm", "LNPRE": "LayerNorm",
}  # fmt: skip


def read_named_values(
    values: Mapping[str, Any], *, prefix: str = "config", lens: bool = False
) -> list[HeldValue]:
    """Read the hyper-parameters that a mapping names, in any library's words.

    Args:
        values: may hold further mappings; GGUF metadata with or without the architecture's name.
        prefix: put before a name where it is shown as a source.
        lens: TransformerLens' cfg, whose ``attn_scale`` divides, and whose caps are -1 for none.
    """
    held_values: dict[str, HeldValue] = {}
    flat = dict(flatten_values(values))
    for key, value in flat.items():
        name = _common_name(key, values)
        if name is None or name in held_values:
            continue
        if lens and name == "attention_scale":
            value = _lens_scale(value, flat)
        source = f"{prefix}.{key}" if prefix else key
        held = _normalise(name, value)
        if held is not None or name.endswith("token_id"):
            held_values[name] = HeldValue(name=name, value=held, source=source)
    _add_derived(held_values, flat, prefix)
    return list(held_values.values())


def flatten_values(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of all that stands in mappings of mappings."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten_values(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _common_name(key: str, values: Mapping[str, Any]) -> str | None:
    architecture = str(values.get("general.architecture", ""))
    bare = key.removeprefix(f"{architecture}.") if architecture else key
    last = bare.rpartition(".")[2]
    return _COMMON.get(bare) or (None if architecture else _COMMON.get(last))


def _lens_scale(value: Any, flat: Mapping[str, Any]) -> Any:
    if flat.get("use_attn_scale") is False:
        return 1.0
    divisor = float(value) if value is not None else -1.0
    if divisor <= 0.0:  # the library's own default
        divisor = float(flat.get("d_head") or 0) ** 0.5
    return 1.0 / divisor if divisor else None


def _normalise(name: str, value: Any) -> Value:
    """One way of writing a value, so that libraries compare; None: it says nothing."""
    plain = to_json_value(value)
    if name in _CAPS:
        none = plain is None or (isinstance(plain, (int, float)) and plain <= 0)
        return ABSENT if none else plain
    if name == "activation":
        return name_activation(str(plain)) if plain is not None else None
    if name == "norm_kind":
        return _NORM_KINDS.get(str(plain).upper(), plain)
    if name == "attention_kinds" and isinstance(plain, list):
        return [_attention_kind(str(kind)) for kind in plain]
    return plain


def _attention_kind(text: str) -> str:
    local = "local" in text or "sliding" in text
    return "local" if local else "global" if text in ("global", "full_attention") else text


def name_activation(text: str) -> str:
    """Return the common name of an activation that a library calls so; else its own."""
    bare = text.rpartition(".")[2].lower()
    return _ACTIVATION_NAMES.get(bare) or _ACTIVATION_NAMES.get(bare.replace("_", ""), text)


def _add_derived(found: dict[str, HeldValue], flat: Mapping[str, Any], prefix: str) -> None:
    """What a config implies without saying it."""
    head = found.get("head_size")
    heads, hidden = found.get("heads"), found.get("hidden_size")
    if head is None and heads is not None and hidden is not None:
        width, count = hidden.value, heads.value
        if isinstance(width, int) and isinstance(count, int) and count:
            head = HeldValue(name="head_size", value=width // count, source=hidden.source)
            found["head_size"] = head
    if flat.get("use_sliding_window") is False and "attention_window" in found:
        found["attention_window"] = replace(found["attention_window"], value=ABSENT)
    scalar = flat.get("query_pre_attn_scalar")
    # a file may hold anything
    if isinstance(scalar, (int, float)) and scalar > 0 and "attention_scale" not in found:
        found["attention_scale"] = HeldValue(
            name="attention_scale",
            value=float(scalar) ** -0.5,
            source=f"{prefix}.query_pre_attn_scalar",
        )
    _add_yarn(found, flat, prefix)


def _add_yarn(found: dict[str, HeldValue], flat: Mapping[str, Any], prefix: str) -> None:
    """YaRN's factor of cosines and sines: what a config says, else what follows from its others.

    As transformers computes it (``modeling_rope_utils``): 0.1 m ln(factor) + 1 of ``mscale`` over
    that of ``mscale_all_dim``, where both are there, else of m = 1.
    """
    for section in ("rope_parameters.", "rope_scaling."):
        if "yarn" not in (flat.get(f"{section}rope_type"), flat.get(f"{section}type")):
            continue
        names = ("attention_factor", "factor", "mscale", "mscale_all_dim")
        attention_factor, factor, scale, all_dim = (flat.get(f"{section}{name}") for name in names)
        if attention_factor is None and isinstance(factor, (int, float)) and factor > 0:
            numbers = [
                number for number in (scale, all_dim) if isinstance(number, (int, float)) and number
            ]
            first, second = numbers if len(numbers) == 2 else (1.0, 0.0)
            grown = math.log(max(factor, 1.0))
            attention_factor = (0.1 * first * grown + 1.0) / (0.1 * second * grown + 1.0)
        if isinstance(attention_factor, (int, float)):
            name = "rope_attention_factor"
            source = (
                f"{prefix}.{section}attention_factor" if prefix else f"{section}attention_factor"
            )
            found.setdefault(
                name, HeldValue(name=name, value=float(attention_factor), source=source)
            )


def read_hyperparameter_file(path: Path) -> list[HeldValue]:
    """Read a config.json, a TransformerLens cfg, a GGUF file, or a YAML or JSON file.

    Raises:
        UsageError: there is no such file, or it holds no mapping.
        EvaluationError: a GGUF file that cannot be read.
    """
    if path.suffix.lower() == ".gguf":
        return _read_gguf(path)
    import yaml

    try:
        text = read_regular_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint=_HINT) from error
    try:
        values = json.loads(text) if path.suffix.lower() == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(
            f"{path} is no {path.suffix[1:] or 'YAML'}: {error}", hint=_HINT
        ) from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds a {type(values).__name__}, not a mapping", hint=_HINT)
    lens = "d_vocab" in values and "act_fn" in values
    return read_named_values(values, prefix="cfg" if lens else path.stem, lens=lens)


def read_gguf_metadata(values: Mapping[str, Any]) -> list[HeldValue]:
    """Read the hyper-parameters that the metadata of a GGUF file name, as llama.cpp takes them."""
    held_values = read_named_values(values, prefix="")
    if values.get("general.architecture") in _WITHOUT_WINDOW:
        held_values = [
            held_value for held_value in held_values if held_value.name != "attention_window"
        ]
        held_values.append(HeldValue(name="attention_window", value=ABSENT, source="llama.cpp"))
    return held_values


def _read_gguf(path: Path) -> list[HeldValue]:
    try:
        import gguf
    except ImportError as error:
        raise EvaluationError(
            f"the metadata of {path} cannot be read without the package gguf",
            hint=extra_command("gguf"),
        ) from error
    check_gguf_header(path)
    try:
        reader = gguf.GGUFReader(str(path))
        values = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith(("GGUF.", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"))
            and len(field.data) <= 1024
        }
        names = {tensor.name for tensor in reader.tensors}
    except Exception as error:  # the reader raises whatever a damaged file leads it to
        raise EvaluationError(f"{path} cannot be read as GGUF: {error}") from error
    held_values = read_gguf_metadata(values)
    held_values += [
        HeldValue(
            name="tied_embeddings", value="output.weight" not in names, source="output.weight"
        ),
        HeldValue(name="norm_order", value=_norm_order(names), source="blk.*"),
    ]
    vocabulary = reader.fields.get("tokenizer.ggml.tokens")
    if vocabulary is not None and all(
        held_value.name != "vocabulary" for held_value in held_values
    ):
        size = len(vocabulary.data)
        held_values.append(HeldValue(name="vocabulary", value=size, source="tokenizer.ggml.tokens"))
    return [held_value for held_value in held_values if held_value.value is not None]


# Attributes of modules, by what they are called in modelling files.
_MODULE_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "norm_eps": ("variance_epsilon", "eps", "epsilon", "norm_eps"),
    "attention_scale": ("scaling", "softmax_scale", "inv_norm_factor", "scale_attn"),
    "attention_softcap": ("attn_logit_softcapping", "softcap"),
    "attention_window": ("sliding_window", "window_size"),
    "rope_attention_factor": ("attention_scaling",),
    "embedding_scale": ("scalar_embed_scale", "embed_scale"),
    "groups": ("groups", "num_groups"),
    "causal": ("is_causal",),
}
_ATTRIBUTE_NAMES = {other: name for name, all_ in _MODULE_ATTRIBUTES.items() for other in all_}
# Of bookkeeping and training; sizes and the weights' own shapes show in the weights.
_NOT_COMPUTED = re.compile(
    r"training|layer_idx|layer_id|layer_number|gradient_checkpointing|.*dropout.*|p|inplace|"
    r"padding_idx|scale_grad_by_freq|sparse|max_norm|norm_type|call_super_init|dump_patches|"
    r"max_seq_len_cached|original_max_seq_len|transposed|output_padding|name_or_path|"
    r"supports_.*|can_.*|model_tags|main_input_name|base_model_prefix|.*_parallel|use_cache"
)
_PLAIN = (bool, int, float, str)
_MOST_VALUES = 8


def read_model(model: torch.nn.Module, config: Any = None) -> list[HeldValue]:
    """Read what a loaded model computes with: attributes of its modules, weights, config.

    Args:
        config: the model's own, where it is not ``model.config``; a ``cfg`` of TransformerLens
            counts too.
    """
    config = config if config is not None else getattr(model, "config", None)
    held_values = [HeldValue(name="architecture", value=type(model).__name__, source="the class")]
    for name, module in model.named_modules():
        held_values += _read_module(name, module)
    own = list(_read_config(model, config))
    # What a module holds is what runs; the config only says what it was made from. A common name is
    # only held under that name: what else compares with an attribute that is spelt like it?
    held = {held_value.name for held_value in held_values if held_value.common}
    attributes = {
        (f"config.{held_value.name}", repr(held_value.value))
        for held_value in held_values
        if not held_value.common
    }
    configured = (
        held_value
        for held_value in own
        if (held_value.name, repr(held_value.value)) not in attributes
    )
    return [*held_values, *(held_value for held_value in configured if held_value.name not in held)]


def _read_module(name: str, module: torch.nn.Module) -> Iterator[HeldValue]:
    kind = type(module).__name__
    if "norm" in kind.lower():
        yield HeldValue(name="norm_kind", value=_norm_kind(kind), module=name, source=kind)
    activation = name_activation(kind)
    if activation != kind:
        yield HeldValue(name="activation", value=activation, module=name, source=kind)
    for attribute, value in vars(module).items():
        if attribute.startswith("_") or _NOT_COMPUTED.fullmatch(attribute):
            continue
        common = _common_attribute(attribute, kind)
        if common == "activation" and activation != kind:
            continue  # the function inside of a module that is an activation
        if attribute == "attn_scale" and hasattr(module, "cfg"):  # TransformerLens' divides
            common, value = "attention_scale", 1.0 / value if value else None
        if value is None and common is None:
            continue
        if value is None or isinstance(value, _PLAIN):
            shown = _normalise(common, value) if common else value
            if shown is not None:
                yield HeldValue(
                    name=common or attribute, value=shown, module=name, source=attribute,
                    common=common is not None,
                )  # fmt: skip
        elif common is None and _is_short(value):
            yield HeldValue(
                name=attribute, value=list(value), module=name, source=attribute, common=False
            )
        elif callable(value) and common == "activation":
            function_name = getattr(value, "__name__", type(value).__name__)
            yield HeldValue(
                name="activation",
                value=name_activation(function_name),
                module=name,
                source=attribute,
            )
    yield from _read_tensors(name, module)


def _is_short(value: Any) -> bool:
    """Whether it is a few plain values: a stride, a range of time steps."""
    if not isinstance(value, (tuple, list)) or not 0 < len(value) <= _MOST_VALUES:
        return False
    return all(isinstance(item, _PLAIN) for item in value)


def _common_attribute(attribute: str, kind: str) -> str | None:
    common = _ATTRIBUTE_NAMES.get(attribute)
    if common == "norm_eps" and "norm" not in kind.lower():
        return None
    if re.search(r"(^|_)act(ivation)?(_fn|_fct)?$", attribute):
        return "activation"
    return common


def _norm_kind(kind: str) -> str:
    lowered = kind.lower()
    for word, name in (("rms", "RMSNorm"), ("group", "GroupNorm"), ("batch", "BatchNorm")):
        if word in lowered:
            return name
    return "LayerNorm" if "layer" in lowered else kind


def _read_tensors(name: str, module: torch.nn.Module) -> Iterator[HeldValue]:
    """The dtype of a module's own weights, whether it has a bias, and rotary frequencies."""
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    floating = [parameter for parameter in own if parameter.is_floating_point()]
    if floating:
        dtype = str(floating[0].dtype).removeprefix("torch.")
        yield HeldValue(name="dtype", value=dtype, module=name, source="weight")
    if "bias" in module._parameters:
        yield HeldValue(
            name="bias", value=module._parameters["bias"] is not None, module=name, source="bias"
        )
    yield from _read_buffers(name, module)
    yield from read_rotary(name, module)


def _read_buffers(name: str, module: torch.nn.Module) -> Iterator[HeldValue]:
    """Numbers that a module keeps as buffers, a scale say; quantisers keep other things there."""
    import torch

    for buffer, value in module._buffers.items():
        common = _ATTRIBUTE_NAMES.get(buffer)
        # a quantiser keeps other things there, too
        if common is not None and isinstance(value, torch.Tensor) and value.numel() == 1:
            dtype = str(value.dtype).removeprefix("torch.")
            yield HeldValue(
                name=common, value=float(value), module=name, source=buffer, dtype=dtype
            )


def _read_config(model: torch.nn.Module, config: Any) -> Iterator[HeldValue]:
    cfg = getattr(model, "cfg", None)
    if config is None and hasattr(cfg, "d_model"):
        yield from read_named_values(
            {k: v for k, v in vars(cfg).items() if not k.startswith("_")}, prefix="cfg", lens=True
        )
        return
    if config is None:
        return
    values = config if isinstance(config, Mapping) else vars(config)
    config_values = {
        str(k): to_json_value(v) for k, v in values.items() if not str(k).startswith("_")
    }
    tied = _tied_embeddings(model)
    held_values = read_named_values(config_values)
    for held_value in held_values:
        if held_value.name not in ("dtype", "tied_embeddings"):  # read off the weights
            yield held_value
    if tied is not None:
        yield HeldValue(name="tied_embeddings", value=tied, source="the weights")
    implementation = getattr(config, "_attn_implementation", None)
    if isinstance(implementation, str):
        yield HeldValue(
            name="attention_implementation", value=implementation, source="attn_implementation"
        )
    order = _norm_order({name for name, _ in model.named_modules()}, config_values)
    if order is not None:
        yield HeldValue(name="norm_order", value=order, source="the modules")
    for key, value in flatten_values(config_values):
        source = f"config.{key}"
        if _common_name(key, config_values) is None and is_computed_with(key):
            yield HeldValue(name=source, value=to_json_value(value), source=source, common=False)


def _tied_embeddings(model: torch.nn.Module) -> bool | None:
    """Whether the output layer has the embedding's weights, be they one tensor or two alike."""
    import torch

    ends = [getattr(model, f"get_{which}_embeddings", None) for which in ("input", "output")]
    first, last = (getattr(_call(end), "weight", None) for end in ends)
    if not isinstance(first, torch.Tensor) or not isinstance(last, torch.Tensor):
        return None
    if first is last:
        return True
    plain = type(first.data) is type(last.data) is torch.Tensor and first.dtype == last.dtype
    return plain and first.shape == last.shape and torch.equal(first, last)


def _call(function: Callable[[], Any] | None) -> Any:
    if function is None:
        return None
    try:
        return function()
    except (NotImplementedError, AttributeError):  # a model without such a module
        return None


def _norm_order(names: set[str], config: Mapping[str, Any] | None = None) -> str | None:
    """Where a layer's norms stand, from the names of its modules or tensors."""
    for flag in ("do_stable_layer_norm", "do_layer_norm_before"):
        if isinstance((config or {}).get(flag), bool):
            return "before" if config[flag] else "after"  # type: ignore[index]
    ends = {re.sub(r"\.(weight|bias)$", "", name).rpartition(".")[2] for name in names}
    before = bool(
        ends & {"input_layernorm", "ln_1", "attn_norm", "ln1", "pre_feedforward_layernorm"}
    )
    after = bool(ends & {"post_feedforward_layernorm", "post_ffw_norm"})
    if before or after:
        return "before and after" if before and after else "before" if before else "after"
    return "after" if any(name.endswith("attention.output.LayerNorm") for name in names) else None
