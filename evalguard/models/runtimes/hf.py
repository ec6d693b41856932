"""transformers in an environment of its own, for a version that is not evalguard's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from evalguard.core.settings import Value
from evalguard.errors import UsageError, nearest
from evalguard.models.annotations import ANYTHING, check_annotated, read_annotation
from evalguard.models.arguments import check_attention
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments
from evalguard.models.runtimes.tokenizer import FolderTokenizer
from evalguard.models.runtimes.torch_runtime import TorchRuntime, effective_dtype, take_common

if TYPE_CHECKING:
    import torch

_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")
_DEFAULT_LENGTH = 2048  # lm-eval's


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a checkpoint with ``AutoModelForCausalLM``.

    model_args: ``pretrained``, ``dtype``, ``device``, ``max_length``, ``add_bos_token``,
    ``prefix_token_id``, ``tokenizer``, ``attn_implementation``, ``quantization_config`` (a
    mapping as in a checkpoint's config.json: quant_method bitsandbytes, quanto, torchao ...; the
    weights are quantised while they are loaded).

    Raises:
        UsageError: a quantisation or an attention that transformers does not know; a quantisation
            that did not happen.
    """
    import torch
    from transformers import AutoModelForCausalLM

    common = take_common(arguments)
    attention = arguments.take("attn_implementation")
    quantisation = arguments.take("quantization_config")
    arguments.check_all_taken()
    check_attention(attention)
    options: dict[str, Any] = {"trust_remote_code": arguments.code_allowed}
    if attention is not None:
        options["attn_implementation"] = attention
    if not arguments.pickle_allowed:
        options["use_safetensors"] = True
    if quantisation is not None:
        options["quantization_config"] = read_quantisation(quantisation)
    name = "dtype" if _takes_dtype() else "torch_dtype"
    model = AutoModelForCausalLM.from_pretrained(
        str(common["folder"]), **{name: common["dtype"] or "auto"}, **options
    )
    if model.device.type != torch.device(common["device"]).type:
        model = model.to(common["device"])  # bitsandbytes refuses it, even where nothing moves
    return _HFRuntime(model, common, arguments, quantisation)


def read_quantisation(told: Any) -> Any:
    """Return transformers' configuration of a quantisation.

    Args:
        told: a mapping as in a checkpoint's config.json, with ``quant_method``.

    Raises:
        UsageError: transformers does not know the method, or it lacks what it needs.
    """
    from transformers.quantizers.auto import (
        AUTO_QUANTIZATION_CONFIG_MAPPING,
        AutoQuantizationConfig,
    )

    # transformers has two entries for bitsandbytes and finds the right one by the number of bits.
    known = sorted({name.partition("_")[0] if "bitsandbytes" in name else name
                    for name in AUTO_QUANTIZATION_CONFIG_MAPPING})  # fmt: skip
    method = told.get("quant_method") if isinstance(told, Mapping) else None
    if method not in known:
        raise UsageError(
            f"model_args.quantization_config: quant_method {method!r} is not known"
            f"{nearest(str(method), known)}"
            if isinstance(told, Mapping)
            else f"model_args.quantization_config: {told!r} is not a mapping",
            hint=f"{{quant_method: NAME, ...}} with NAME one of: {', '.join(known)}",
            target="model_args.quantization_config",
        )
    if method == "bitsandbytes" and not (told.get("load_in_8bit") or told.get("load_in_4bit")):
        raise UsageError(
            "model_args.quantization_config: bitsandbytes is not told how many bits",
            hint="load_in_8bit: true, or load_in_4bit: true",
            target="model_args.quantization_config",
        )
    bits = {"_4bit": "load_in_4bit", "_8bit": "load_in_8bit"}
    names = [f"{method}{end}" for end, asked in bits.items() if told.get(asked)]
    kind = AUTO_QUANTIZATION_CONFIG_MAPPING[names[0] if method == "bitsandbytes" else method]
    check_quantisation_words(told)
    _check_quantisation_keys(kind, told)
    try:
        return AutoQuantizationConfig.from_dict(dict(told))
    except (TypeError, ValueError, AttributeError, KeyError, AssertionError) as error:
        raise UsageError(
            f"model_args.quantization_config: transformers' {kind.__name__} cannot be made of it: "
            f"{type(error).__name__}: {error}",
            target="model_args.quantization_config",
        ) from error


# Whose configurations hold what transformers reads, and nothing of a tool that wrote them.
_OWN_METHODS = ("bitsandbytes", "eetq", "higgs", "hqq", "quanto", "torchao")
# Where its class takes any text, and another layer fails on most.
_QUANTISATION_WORDS = {"bnb_4bit_quant_type": Literal["fp4", "nf4"]}


def check_quantisation_words(told: Any) -> None:
    """Refuse what no version of transformers takes for a quantisation.

    Raises:
        UsageError: naming the key.
    """
    for key, wanted in _QUANTISATION_WORDS.items() if isinstance(told, Mapping) else ():
        check_annotated(f"quantization_config.{key}", told.get(key), wanted)


def _check_quantisation_keys(kind: type, told: Mapping[str, Any]) -> None:
    """Refuse keys that a configuration's class would leave out without a word, and wrong values.

    Raises:
        UsageError: naming the key.
    """
    classes = [base for base in kind.__mro__ if base is not object]
    constructors = [vars(base)["__init__"] for base in classes if "__init__" in vars(base)]
    annotations: dict[str, Any] = {}
    for constructor in constructors:
        parameters = inspect.signature(constructor).parameters.values()
        named = {p.name: read_annotation(p.annotation, constructor.__globals__) for p in parameters}
        annotations = {**named, **annotations}
    own = told.get("quant_method") in _OWN_METHODS
    # Earlier transformers hand what stands beside torchao's name of a scheme on to it.
    own = own and not isinstance(told.get("quant_type"), str)
    for needed in inspect.signature(kind).parameters.values():
        optional = needed.default is not ANYTHING or needed.kind is needed.VAR_KEYWORD
        if own and not optional and needed.name not in told:
            raise UsageError(
                f"model_args.quantization_config: {kind.__name__} needs '{needed.name}'",
                target="model_args.quantization_config",
            )
    source = ""
    try:
        source = "".join(inspect.getsource(base) for base in classes) if own else ""
    except OSError:  # installed without it: what its constructor takes besides is not seen
        own = False
    for key, value in told.items():
        if key == "quant_method":  # known by now, also one that other code has registered
            continue
        read = key in annotations or f'"{key.removeprefix("_")}"' in source
        if own and not read:
            raise UsageError(
                f"model_args.quantization_config: {kind.__name__} reads no '{key}'"
                f"{nearest(key, annotations)}",
                target="model_args.quantization_config",
            )
        check_annotated(f"quantization_config.{key}", value, annotations.get(key, ANYTHING))


def _takes_dtype() -> bool:
    """Whether transformers calls the argument ``dtype``; before 4.56 it was ``torch_dtype``."""
    import transformers

    parts = transformers.__version__.split(".")
    return (int(parts[0]), int(parts[1])) >= (4, 56)


class _HFRuntime(TorchRuntime):
    def __init__(
        self,
        model: Any,
        common: Mapping[str, Any],
        arguments: RuntimeArguments,
        quantisation: Mapping[str, Any] | None,
    ) -> None:
        tokenizer = FolderTokenizer(common["tokenizer"], trust_remote_code=arguments.code_allowed)
        text = getattr(model.config, "text_config", None) or model.config
        length = next((getattr(text, n) for n in _LENGTHS if getattr(text, n, None)), 0)
        super().__init__(
            model,
            tokenizer,
            max_length=int(common["max_length"] or length or _DEFAULT_LENGTH),
            vocabulary_size=int(text.vocab_size),
            add_bos=common["add_bos"],
            prefix=common["prefix"],
        )
        self.files = (common["folder"], *tokenizer.files)
        self._quantisation = quantisation

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.module(input_ids=ids, use_cache=False).logits
        return logits

    def traced_module(self) -> Any:
        """The model itself."""
        return self.module

    @property
    def effective(self) -> Mapping[str, Value]:
        config = self.module.config
        attention = getattr(config, "_attn_implementation", None)
        shown = {**effective_dtype(self), "attn_implementation": attention}
        if self._quantisation is not None:
            stored = getattr(config, "quantization_config", None)
            has = {} if stored is None else stored if isinstance(stored, dict) else stored.to_dict()
            shown["quantization_config"] = {
                name: getattr(has.get(name), "value", has.get(name)) for name in self._quantisation
            }
        return shown
