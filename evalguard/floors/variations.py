"""Variations of what should not matter: which there are for a model, applied, and read back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec

from evalguard.core.noise_floor import Factor, Unmeasured, Variation
from evalguard.core.scorer import DEFAULT_BATCH_SIZE, ModelDescription, ScoringPolicy
from evalguard.core.settings import Value
from evalguard.engine.sources import ModelSource
from evalguard.models.arguments import HF_TYPES

_NARROW = ("bfloat16", "float16")
_NAMES: dict[Factor, str] = {
    "repeat": "the same again",
    "batch_size": "batch size",
    "threads": "threads",
    "device": "device",
    "attention": "attention",
    "softmax_dtype": "softmax",
    "concurrency": "concurrency",
    "cache": "cache",
}
# Requests in flight where the usual run has one.
_CONCURRENT = 8
# How an engine in this process is told the same; a server's client has ``num_concurrent``.
_AT_ONCE = {"vllm": "max_num_seqs"}
# All prompts once more, of one running engine; nothing that was computed of another prompt.
WARM, COLD = "warm", "cold"
PlannedVariations = tuple[list[Variation], list[Unmeasured]]


def plan_variations(
    description: ModelDescription, factors: Collection[Factor]
) -> PlannedVariations:
    """Say which variations a model can be scored under here, and why not under others.

    Args:
        description: of the default run: every variation departs from what was read back there.
        factors: those that are wanted.
    """
    varied: list[Variation] = []
    unmeasured: list[Unmeasured] = []
    for factor, values_of in _VALUES.items():
        if factor not in factors:
            continue
        values = values_of(description)
        if isinstance(values, str):
            unmeasured.append(Unmeasured(factor=factor, name=_NAMES[factor], reason=values))
            continue
        default = _default_value(description, factor)
        varied += [
            Variation(
                factor=factor, name=_variation_name(factor, value), value=value, default=default
            )
            for value in values
        ]
    return varied, unmeasured


def apply_variation(
    variation: Variation, source: ModelSource, policy: ScoringPolicy
) -> ModelSource:
    """Return what has to be loaded, and how it scores, for a variation.

    Args:
        source: the model of the default run; ``policy``: how that run scores.
    """
    value = variation.value
    arguments = dict(source.variant.model_args)
    if variation.factor == "batch_size" and isinstance(value, int):
        policy = replace(policy, batch_size=value)
    elif variation.factor == "threads" and isinstance(value, int):
        policy = replace(policy, threads=value)
    elif variation.factor == "device" and "device" not in arguments:
        policy = replace(policy, device=str(value))
    elif variation.factor == "device":
        arguments["device"] = value
    elif variation.factor == "attention":
        arguments["attn_implementation"] = value
    elif variation.factor == "softmax_dtype":
        policy = replace(policy, softmax_dtype="model")
    elif variation.factor == "concurrency":
        arguments[_AT_ONCE.get(source.variant.model, "num_concurrent")] = value
    elif variation.factor == "cache" and value == COLD:
        arguments["cache_prompt"] = False
    variant = replace(source.variant, model_args=arguments)
    name = f"{source.name}, {variation.name}"
    return replace(source, name=name, variant=variant, policy=policy)


def why_not_taken(variation: Variation, description: ModelDescription) -> str:
    """Why a variation that was applied is none, by what the loaded model shows; "" if it took."""
    if variation.factor == "repeat" or variation.value == WARM:
        return ""
    value = description.computation.get(variation.factor)
    if variation.factor == "cache":
        value = WARM if description.computation.get("prefix_cache") else COLD
    if value == variation.value:
        return ""
    return f"it did not take: {variation.value} was asked for, and the model has {value}"


def _default_value(description: ModelDescription, factor: Factor) -> Value:
    """What a factor is in the default run."""
    value = description.computation.get(factor)
    budget = description.computation.get("token_budget")
    return f"{budget} tokens" if factor == "batch_size" and value is None and budget else value


def _variation_name(factor: Factor, value: Value) -> str:
    return {
        "batch_size": f"batch size {value}",
        "threads": f"{value} thread{'s' if value != 1 else ''}",
        "device": f"on {value}",
        "attention": f"{value} attention",
        "softmax_dtype": f"{value} softmax",
        "concurrency": f"{value} request{'s' if value != 1 else ''} in flight",
        "cache": "asked again" if value == WARM else "without its cache",
    }.get(factor, _NAMES[factor])


def _repeats(_: ModelDescription) -> Sequence[Value]:
    return [None]


def _batch_sizes(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("batch_size")
    if description.computation.get("token_budget") is not None:
        return [1, DEFAULT_BATCH_SIZE]
    if default == "auto":
        return "the model chooses it by itself"
    if not isinstance(default, int):
        return "the model type shows none"
    return [size for size in (1, 2 * default) if size != default]


def _threads(description: ModelDescription) -> Sequence[Value] | str:
    kind = description.computation.get("device")
    if kind not in (None, "cpu"):
        return f"the model computes on {kind}"
    if not description.parameters or description.model_type in _AT_ONCE:
        return "the model does not compute with torch in this process"
    return [1] if description.computation.get("threads") != 1 else [2]


def _devices(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("device")
    if default is None or description.model_type not in HF_TYPES:
        return f"model type '{description.model_type}' is not moved to another"
    other_kinds = [kind for kind in _device_kinds() if kind != default]
    return other_kinds or f"there is no other kind than {default} here"


def _device_kinds() -> Iterator[str]:
    import torch

    yield "cpu"
    if torch.cuda.is_available():
        yield "cuda"
    if torch.backends.mps.is_available():
        yield "mps"


def _attentions(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("attention")
    if default is None or description.model_type not in HF_TYPES:
        return "the model names no implementation of its attention"
    known = ["eager", "sdpa"]
    on_gpu = description.computation.get("device") == "cuda"
    if on_gpu and _main_dtype(description) in _NARROW and find_spec("flash_attn") is not None:
        known.append("flash_attention_2")
    return [name for name in known if name != default]


def _softmax_dtypes(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("softmax_dtype")
    if default is None or description.model_type not in HF_TYPES:
        return f"model type '{description.model_type}' has a softmax of its own"
    own = _main_dtype(description)
    if own not in _NARROW:
        return f"the model's own dtype is {own or 'unknown'}, which is no narrower than float32"
    return [own]


def _concurrencies(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("concurrency")
    if not isinstance(default, int):
        return "the model is not asked over a connection"
    return [1] if default != 1 else [_CONCURRENT]


def _caches(description: ModelDescription) -> Sequence[Value] | str:
    computation = description.computation
    if "prefix_cache" not in computation:
        return "the model keeps nothing of one prompt for the next"
    if computation["prefix_cache"] is False:
        return "its prefix cache is off (model_args: enable_prefix_caching, cache_prompt)"
    return [COLD if description.model_type == "llama_server" else WARM]


def _main_dtype(description: ModelDescription) -> str:
    """The dtype of most weights."""
    return description.dtype.partition("+")[0]


_VALUES: dict[Factor, Callable[[ModelDescription], Sequence[Value] | str]] = {
    "repeat": _repeats,
    "batch_size": _batch_sizes,
    "threads": _threads,
    "device": _devices,
    "attention": _attentions,
    "softmax_dtype": _softmax_dtypes,
    "concurrency": _concurrencies,
    "cache": _caches,
}
