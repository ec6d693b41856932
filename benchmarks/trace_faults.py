"""Tiny random models of seven architectures, and the faults of ports that are planted in them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

from evalguard.core.hyperparameters import compare_hyperparameters
from evalguard.core.precision_vote import round_integer, round_mantissa
from evalguard.core.settings import Value
from evalguard.core.trace_points import ROOT, ModelInputs, token_inputs
from evalguard.core.trace_record import Trace
from evalguard.core.weight_precision import round_weights
from evalguard.models.hyperparameters_read import read_model

_VOCABULARY = 80
_SIZES = {
    "vocab_size": _VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
_DECODER = {**_SIZES, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}

# name -> (model type of transformers, config)
ARCHITECTURES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", _DECODER),
    "Gemma-2": (
        "gemma2",
        {**_DECODER, "head_dim": 8, "sliding_window": 8,
         "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "GPT-2": (
        "gpt2",
        {"vocab_size": _VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
         "bos_token_id": 1, "eos_token_id": 2},
    ),
    "Qwen3.5": (
        "qwen3_5_text",
        {**_DECODER, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "linear_key_head_dim": 8, "linear_value_head_dim": 8,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "Mamba-2": (
        "mamba2",
        {"vocab_size": _VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8,
         "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    ),
    "BERT": ("bert", _SIZES),
    "HuBERT": (
        "hubert",
        {**_SIZES, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
         "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
         "num_conv_pos_embedding_groups": 4, "feat_extract_norm": "group"},
    ),
}  # fmt: skip
_ENCODERS = ("BERT", "HuBERT")
_EAGER = ("Gemma-2", "Mamba-2")  # soft-caps; no attention


def sample_model(name: str, rng: np.random.Generator) -> nn.Module:
    """Make a model with random weights of random size; no bias is zero and no norm is one."""
    kind, values = ARCHITECTURES[name]
    torch.manual_seed(int(rng.integers(2**31)))
    width = float(rng.uniform(0.05, 0.25))
    key = "initializer_range"
    config = CONFIG_MAPPING[kind](**{**values, key: width})
    make = AutoModel if name in _ENCODERS else AutoModelForCausalLM
    attention = "eager" if name in _EAGER else "sdpa"
    model = make.from_config(config, attn_implementation=attention)
    for parameter in model.parameters():
        if parameter.ndim < 2:
            parameter.data += torch.randn_like(parameter) * 0.1
    return model.eval()  # type: ignore[no-any-return]


def sample_inputs(name: str, rng: np.random.Generator) -> ModelInputs:
    """Make one document: token ids, or a piece of sound."""
    if name == "HuBERT":
        return {"input_values": rng.standard_normal((1, 240)).astype(np.float32)}
    return token_inputs(rng.integers(3, _VOCABULARY, int(rng.integers(12, 24))).tolist())


# Changes a candidate; gives the modules that may be named for it, None where it has no such place.
Plant = Callable[[Any, np.random.Generator], "frozenset[str] | None"]


def _choose(
    model: nn.Module, rng: np.random.Generator, fits: Callable[[nn.Module], bool]
) -> tuple[str, Any] | None:
    found = [(name or ROOT, module) for name, module in model.named_modules() if fits(module)]
    return found[int(rng.integers(len(found)))] if found else None


def _scale(by: float) -> Plant:
    def plant(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
        chosen = _choose(model, rng, lambda m: isinstance(getattr(m, "scaling", None), float))
        if chosen is None:
            return None
        chosen[1].scaling *= by
        return frozenset({chosen[0]})

    return plant


def _eps(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    names = ("variance_epsilon", "eps")
    chosen = _choose(
        model, rng, lambda m: any(isinstance(getattr(m, n, None), float) for n in names)
    )
    if chosen is None:
        return None
    name = next(n for n in names if isinstance(getattr(chosen[1], n, None), float))
    setattr(chosen[1], name, getattr(chosen[1], name) * 10)
    return frozenset({chosen[0]})


class _Approximation(nn.Module):
    """An activation as other runtimes approximate it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "silu":
            return x * functional.relu6(x + 3.0) / 6.0
        if self.kind == "tanh":  # where the base has the error function
            return functional.gelu(x, approximate="tanh")
        return functional.gelu(x)


def _activation(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    def is_activation(module: nn.Module) -> bool:
        kind = type(module).__name__.lower()
        plain = next(module.children(), None) is None
        return plain and ("gelu" in kind or "silu" in kind)

    chosen = _choose(model, rng, is_activation)
    if chosen is None:
        return None
    kind = type(chosen[1]).__name__.lower()
    exact = kind in ("geluactivation", "gelu")
    other = _Approximation("silu" if "silu" in kind else "tanh" if exact else "erf")
    parent, _, child = chosen[0].rpartition(".")
    model.get_submodule(parent)._modules[child] = other
    return frozenset({chosen[0]})


def _has_matrix(module: nn.Module) -> bool:
    kind = type(module).__name__
    return kind in ("Linear", "Conv1D", "Conv1d") and hasattr(module, "weight")


def _transposed(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    chosen = _choose(
        model,
        rng,
        lambda m: _has_matrix(m) and m.weight.ndim == 2 and m.weight.shape[0] == m.weight.shape[1],  # type: ignore[union-attr,operator,index]
    )
    if chosen is None:
        return None
    chosen[1].weight.data = chosen[1].weight.data.T.contiguous()
    return _owners(model, chosen[1].weight)


def _permuted(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    chosen = _choose(model, rng, lambda m: _has_matrix(m) and not hasattr(m, "parametrizations"))
    if chosen is None:
        return None
    order = torch.from_numpy(rng.permutation(chosen[1].weight.shape[0]))
    chosen[1].weight.data = chosen[1].weight.data[order].contiguous()
    return _owners(model, chosen[1].weight)


def _owners(model: nn.Module, weight: torch.Tensor) -> frozenset[str]:
    """All modules that have a weight, which may be tied."""
    return frozenset(
        name
        for name, module in model.named_modules()
        if any(parameter is weight for parameter in module.parameters(recurse=False))
    )


def _rope(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    chosen = _choose(model, rng, lambda m: isinstance(getattr(m, "inv_freq", None), torch.Tensor))
    if chosen is None:
        return None
    factor = float(rng.choice([1.05, 2.0, 50.0]))
    size = chosen[1].inv_freq.numel()
    exponents = torch.arange(size, device=chosen[1].inv_freq.device) / size
    chosen[1].inv_freq = chosen[1].inv_freq / factor**exponents
    return frozenset({chosen[0]})


def _norm_in_bfloat16(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    def is_norm(module: nn.Module) -> bool:
        return type(module).__name__.endswith("Norm") and not hasattr(module, "dim")

    chosen = _choose(model, rng, is_norm)
    if chosen is None:
        return None
    norm, groups = chosen[1], getattr(chosen[1], "num_groups", 0)
    eps = float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 1e-6)))

    def forward(x: torch.Tensor) -> torch.Tensor:
        low = x.to(torch.bfloat16)
        weight = norm.weight.to(torch.bfloat16)
        bias = getattr(norm, "bias", None)
        if groups:
            parts = low.reshape(low.shape[0], groups, -1)
            parts = parts - parts.mean(-1, keepdim=True)
            scaled = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + eps)
            shape = (1, -1, *[1] * (low.ndim - 2))
            out = scaled.reshape(low.shape) * weight.view(shape)
            return (out + bias.to(torch.bfloat16).view(shape)).to(x.dtype)
        if bias is not None:
            low = low - low.mean(-1, keepdim=True)
        scaled = low * torch.rsqrt(low.pow(2).mean(-1, keepdim=True) + eps)
        offset = 1.0 if type(norm).__name__ in ("Gemma2RMSNorm", "Qwen3_5RMSNorm") else 0.0
        out = scaled * (weight + offset)
        return (out if bias is None else out + bias.to(torch.bfloat16)).to(x.dtype)

    norm.forward = forward
    return frozenset({chosen[0]})


def _norm_not_upcast(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    """Compute a norm in its input's dtype where the base does in float32."""
    if next(model.parameters()).dtype is not torch.bfloat16:
        return None
    guilty = _norm_in_bfloat16(model, rng)
    if guilty is not None:
        norm = model.get_submodule(next(iter(guilty)))
        low, own = norm.forward, type(norm).forward
        norm.forward = lambda x: low(x) if x.dtype is torch.bfloat16 else own(norm, x)
    return guilty


def _layer_quantised(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    layer = lists[-1][int(rng.integers(len(lists[-1])))]
    rule = str(rng.choice(["int8 per tensor", "int4 in groups of 32"]))
    chosen = {id(m) for m in layer.modules() if _has_matrix(m)}
    for module in layer.modules():
        if id(module) in chosen:
            weight: Any = module.weight
            values = round_weights(weight.data.float().numpy(), rule)
            weight.data = torch.from_numpy(np.array(values)).to(weight.dtype)
    return frozenset(name for name, m in model.named_modules() if id(m) in chosen)


def _soft_cap(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    if getattr(model.config, "final_logit_softcapping", None) is None:
        return None
    if rng.random() < 0.3:
        model.config.final_logit_softcapping = None
        return frozenset({ROOT})
    chosen = _choose(model, rng, lambda m: hasattr(m, "attn_logit_softcapping"))
    assert chosen is not None
    chosen[1].attn_logit_softcapping = None
    return frozenset({chosen[0]})


def _bias_dropped(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    chosen = _choose(
        model,
        rng,
        lambda m: _has_matrix(m) and getattr(m, "bias", None) is not None,
    )
    if chosen is None:
        return None
    if isinstance(chosen[1], nn.Linear) and rng.random() < 0.5:
        chosen[1].bias = None
    else:
        chosen[1].bias.data.zero_()
    return frozenset({chosen[0]})


def _mis_grouped(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    chosen = _choose(model, rng, lambda m: getattr(m, "groups", 1) > 1)
    if chosen is None:
        return None
    convolution, own = chosen[1], chosen[1].forward
    groups, channels = convolution.groups, convolution.in_channels
    if groups == channels:  # such weights are used by the code around the module as well
        convolution.weight.data = convolution.weight.data.roll(1, 0)
    else:
        order = torch.arange(channels).view(groups, -1).T.reshape(-1)
        convolution.forward = lambda x: own(x[:, order])
    return frozenset({chosen[0]})


def _rounded_everywhere(round_values: Callable[[Any], Any]) -> Plant:
    """Round every matrix to a grid that nobody declares, and leave it in its dtype."""

    def plant(model: Any, _: np.random.Generator) -> frozenset[str] | None:
        return _round_matrices(model, round_values)

    return plant


def _round_matrices(model: Any, round_values: Callable[[Any], Any]) -> frozenset[str]:
    changed: set[str] = set()
    for module in model.modules():
        if _has_matrix(module) and not hasattr(module, "parametrizations"):
            weight: Any = module.weight
            rows = weight.data.float().numpy().reshape(weight.shape[0], -1)
            values = np.array(round_values(rows), dtype=np.float32).reshape(weight.shape)
            weight.data = torch.from_numpy(values).to(weight.dtype)
            changed |= _owners(model, weight)
    return frozenset(changed)


def _times_a_constant(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    """Multiply a module's output, as a multiplier of the config that is read twice, or never."""
    chosen = _choose(model, rng, lambda m: _has_matrix(m) and not hasattr(m, "parametrizations"))
    if chosen is None:
        return None
    factor, own = float(rng.choice([6.0, 1.0 / 6.0, -1.0, 12.0, 1.5])), chosen[1].forward
    chosen[1].forward = lambda *given: own(*given) * factor
    return frozenset({chosen[0]})


def _frequencies(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    """Scale rotary frequencies, all or the long ones, or round them to bfloat16."""
    chosen = _choose(model, rng, lambda m: isinstance(getattr(m, "inv_freq", None), torch.Tensor))
    if chosen is None:
        return None
    own = chosen[1].inv_freq
    kind = int(rng.integers(3))
    long = torch.where(torch.arange(own.numel()) >= own.numel() // 2, own / 8.0, own)
    chosen[1].inv_freq = (own / 2.0, long, own.bfloat16().float())[kind]
    return frozenset({chosen[0]})


def _stale_tie(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    """Give a tied output layer the embedding of an earlier step."""
    if type(model).__name__ in _HEADLESS:
        return None
    ends = [getattr(model, f"get_{which}_embeddings")() for which in ("input", "output")]
    if None in ends or ends[0].weight is not ends[1].weight:
        return None
    weight = ends[1].weight.data
    moved = weight + float(rng.uniform(0.02, 0.3)) * weight.std() * torch.randn_like(weight)
    ends[1].weight = nn.Parameter(moved)
    return _owners(model, ends[1].weight)


_HEADLESS = ("HubertModel", "BertModel")


def _nan(model: Any, rng: np.random.Generator) -> frozenset[str] | None:
    chosen = _choose(model, rng, lambda m: _has_matrix(m) and not hasattr(m, "parametrizations"))
    if chosen is None:
        return None
    weight = chosen[1].weight
    weight.data.view(-1)[int(rng.integers(weight.numel()))] = float("nan")
    return _owners(model, weight)


FAULTS: Mapping[str, Plant] = {
    "attention scale off by 2%": _scale(1.02),
    "attention scale off by 6.5%": _scale(1.065),
    "attention scale off by 20%": _scale(1.2),
    "eps x10": _eps,
    "wrong activation approximation": _activation,
    "transposed weight": _transposed,
    "permuted weight": _permuted,
    "wrong rope base": _rope,
    "norm in bfloat16": _norm_in_bfloat16,
    "norm in its input's precision": _norm_not_upcast,
    "one layer quantised": _layer_quantised,
    "soft-cap off": _soft_cap,
    "bias dropped": _bias_dropped,
    "convolution mis-grouped": _mis_grouped,
    "all weights in 3 bits, undeclared": _rounded_everywhere(partial(round_integer, bits=3)),
    "all weights in 3 bits of mantissa": _rounded_everywhere(partial(round_mantissa, bits=3)),
    "output times a constant": _times_a_constant,
    "rotary frequencies scaled or rounded": _frequencies,
    "stale tied head": _stale_tie,
    "nan in a weight": _nan,
}


Told = Callable[[Trace, Any, Any], bool]  # of a trace, a base and a candidate


def _says(words: str) -> Told:
    def told(trace: Trace, *_: Any) -> bool:
        return any(words in one.operation for one in trace.suspects[:1])

    return told


def _differ(name: str) -> Told:
    def told(_: Trace, base: Any, candidate: Any) -> bool:
        found = compare_hyperparameters(read_model(base), read_model(candidate))
        return any(one.name.startswith(name) and one.verdict == "differs" for one in found)

    return told


def _is_constant(trace: Trace, *_: Any) -> bool:
    return bool(trace.suspects) and trace.suspects[0].relation is not None


def _nan_is_held(trace: Trace, *_: Any) -> bool:
    return any(one.side == "candidate" and bool(one.weights) for one in trace.nonfinite)


# Whether a trace says what the fault is made of, beside the module.
TOLD: Mapping[str, Told] = {
    "all weights in 3 bits, undeclared": _says("looks rounded to 3 bits"),
    "all weights in 3 bits of mantissa": _says("looks rounded to 3 bits of mantissa"),
    "output times a constant": _is_constant,
    "rotary frequencies scaled or rounded": _differ("rope_"),
    "stale tied head": _differ("tied_embeddings"),
    "nan in a weight": _nan_is_held,
}


# Healthy ports.


def port(model: nn.Module, dtype: str) -> Any:
    """Copy a model, its parameters in a dtype; what is computed at construction stays float32."""
    candidate = copy.deepcopy(model)
    for parameter in candidate.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(getattr(torch, dtype))
    return candidate


def quantise(model: nn.Module, dtype: str) -> Any:
    """Copy a model whose linear layers have int8 weights per output channel, dequantised."""
    candidate = copy.deepcopy(model)
    for module in candidate.modules():
        if _has_matrix(module):
            weight: Any = module.weight
            if hasattr(module, "parametrizations"):
                continue
            rule = "int8 per column" if type(module).__name__ == "Conv1D" else "int8 per channel"
            weight.data = torch.from_numpy(np.array(round_weights(weight.data.numpy(), rule)))
    return port(candidate, dtype)


def quantise_with_torchao(model: nn.Module, dtype: str) -> Any:
    """Copy a model whose linear layers have torchao's int8 weights, but for the output layer."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    candidate = port(model, dtype)
    head = getattr(candidate, "get_output_embeddings", lambda: None)()
    quantize_(
        candidate,
        Int8WeightOnlyConfig(),
        filter_fn=lambda module, _name: isinstance(module, nn.Linear) and module is not head,
    )
    return candidate


def with_other_attention(model: nn.Module, dtype: str) -> Any:
    """Copy a model with eager attention in place of sdpa, or the other way round."""
    candidate = port(model, dtype)
    own = candidate.config._attn_implementation
    if "Gemma" not in type(model).__name__ and "Mamba" not in type(model).__name__:
        candidate.set_attn_implementation("eager" if own == "sdpa" else "sdpa")
    return candidate


def with_other_shapes(model: nn.Module, dtype: str) -> Any:
    """Copy a model whose linear layers multiply in a batch three times as large."""
    candidate = port(model, dtype)
    for module in _linear(candidate):
        module.forward = _thrice(module)
    return candidate


def with_split_sums(model: nn.Module, dtype: str) -> Any:
    """Copy a model whose linear layers add two halves of every sum, in float32."""
    candidate = port(model, dtype)
    for module in _linear(candidate):
        module.forward = _in_halves(module)
    return candidate


def _linear(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if isinstance(module, nn.Linear))


def _thrice(module: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        many = functional.linear(flat.repeat(3, 1), module.weight, module.bias)
        return many[: len(flat)].reshape(*x.shape[:-1], -1)

    return forward


def _in_halves(module: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        wide, weight = x.float(), module.weight.float()
        out = functional.linear(wide[..., half:], weight[:, half:])
        out = out + functional.linear(wide[..., :half], weight[:, :half])
        return (out if module.bias is None else out + module.bias.float()).to(x.dtype)

    return forward


def quantise_to_3_bits(model: nn.Module, dtype: str) -> Any:
    """Copy a model whose linear layers have 3 bits a weight, with a scale for each row."""
    candidate = copy.deepcopy(model)
    _round_matrices(candidate, partial(round_integer, bits=3))
    return port(candidate, dtype)


# What is said of a healthy port whose weights are rounded, as a guard file's settings say it.
DECLARED: Mapping[str, Mapping[str, Value]] = {
    "int8 weights": {"weights": "int8"},
    "3-bit weights, declared": {"weights": {"bits": 3}},
}
HEALTHY: Mapping[str, tuple[Callable[[nn.Module, str], Any], tuple[str, ...]]] = {
    "port": (port, ("float32", "bfloat16", "float16")),
    "int8 weights": (quantise, ("float32", "bfloat16")),
    "3-bit weights, declared": (quantise_to_3_bits, ("float32", "bfloat16")),
    **(
        {"torchao int8 weights": (quantise_with_torchao, ("float32", "bfloat16"))}
        if find_spec("torchao")
        else {}
    ),
    "other attention": (with_other_attention, ("float32", "bfloat16", "float16")),
    "other batch shape": (with_other_shapes, ("float32", "bfloat16")),
    "sums in two halves": (with_split_sums, ("float32", "bfloat16", "float16")),
}
