"""model_args: what may be written there, checked before anything is loaded."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from evalguard.errors import UsageError, nearest
from evalguard.models.annotations import ANYTHING, read_annotation

if TYPE_CHECKING:
    import torch
    from lm_eval.api.model import LM

    from evalguard.core.settings import Value

HF_TYPES = ("hf", "hf-auto", "huggingface")
# lm-eval's clients of servers that can be asked many things at a time
SERVED_TYPES = (
    "local-completions", "local-chat-completions", "openai-completions", "openai-chat-completions",
    "azure-openai-chat-completions", "anthropic-chat", "anthropic-chat-completions",
    "sglang-generate",
)  # fmt: skip
# those among them that are put conversations, with tools and all
CHAT_TYPES = (
    "local-chat-completions", "openai-chat-completions", "azure-openai-chat-completions",
)  # fmt: skip
# which ask a server for all that they answer, and compute nothing themselves
CLIENT_TYPES = (*SERVED_TYPES, "llama_server")
# which write texts and have no log-likelihood of a given one, whatever stands behind them
GENERATING_TYPES = (
    *CHAT_TYPES, "anthropic-chat", "anthropic-chat-completions", "anthropic-completions", "litellm",
    "litellm-chat", "litellm-chat-completions", "hf-audiolm-qwen",
)  # fmt: skip
# The two that OpenAI gives log-probabilities of prompts for, by lm-eval 0.4.13.
_OPENAI_SCORING = ("babbage-002", "davinci-002")
# all whose answers come from elsewhere, and may be another model's from one moment to the next
REMOTE_TYPES = (*CLIENT_TYPES, "anthropic-completions", "textsynth", "watsonx_llm")
_WRONG_TYPES = ("gguf", "ggml")
# what evalguard fixes for every model, because anything else compares unfairly or wrongly
_FIXED = {"softmax_dtype": "float32", "logits_cache": False}
_FIXED_REASONS = {
    "softmax_dtype": "log-softmax in a narrow dtype moves documents by more than a conversion does",
    "logits_cache": "it gives two splits of one token sequence the same log-likelihood",
}
# constructor arguments of GuardedHFLM that no guard file may write
INTERNAL_ARGS = frozenset(
    {"config_overrides", "allow_pickle", "rolling_bos", "sequences", "token_budget", "scorer"}
)
_POLICY_ARGS = ("batch_size", "max_batch_size")
# name -> (type, least value, what it is)
_TYPES: dict[str, tuple[type, int | str, str]] = {
    "pretrained": (str, "", "a path or a hub id"),
    "revision": (str, "", "the name of a revision (in quotes, where it is a number)"),
    "tokenizer": (str, "", "a path or a hub id"),
    "peft": (str, "", "a path or a hub id"),
    "subfolder": (str, "", "the name of a folder"),
    "gguf_file": (str, "", "the name of a file"),
    "parallelize": (bool, 0, "true or false"),
    "max_length": (int, 1, "a number of tokens"),
    "prefix_token_id": (int, 0, "a token id"),
    "add_bos_token": (bool, 0, "true or false"),
    "truncation": (bool, 0, "true or false"),
}
# arguments that HFLM passes on to transformers, for suggestions
TRANSFORMERS_ARGS = frozenset({"attn_implementation", "experts_implementation", "device_map"})


def check_type(model_type: str) -> None:
    """Refuse a model type that gives wrong numbers, whatever server there is.

    lm-eval's ``gguf`` sends texts, finds where a continuation begins by counting characters, and
    leaves the length of a generation to the server.

    Raises:
        UsageError: naming the types that can be used.
    """
    if model_type in _WRONG_TYPES:
        raise UsageError(
            f"model type '{model_type}' is lm-eval's own client of a llama.cpp server, whose "
            "log-likelihoods are wrong: 4.5 to 11 nats off on 5 of 6 documents",
            hint="model: llama_server asks llama.cpp's server for exact ones, and model: llama_cpp "
            "reads the GGUF file itself",
        )


def check_arguments(
    model_type: str, model_args: Mapping[str, Value], *, trust_remote_code: bool
) -> dict[str, Any]:
    """Return the arguments for a constructor, without those that evalguard fixes.

    Raises:
        UsageError: an argument that belongs to the run, that evalguard fixes to another value, or
            that needs a permission; a model type whose numbers are wrong.
    """
    check_type(model_type)
    arguments: dict[str, Any] = dict(model_args)
    for name in _POLICY_ARGS:
        if name in arguments:
            raise UsageError(
                f"model_args.{name} belongs to the run: base and candidate need the same batches",
                hint="use --batch_size",
                target=f"model_args.{name}",
            )
    if arguments.pop("trust_remote_code", False) and not trust_remote_code:
        raise UsageError(
            "model_args.trust_remote_code is set, but this model is not allowed to run remote code",
            hint="set trust_remote_code: true beside model_args, or use --trust_remote_code",
            target="model_args.trust_remote_code",
        )
    if model_type in HF_TYPES:
        for name in INTERNAL_ARGS & arguments.keys():
            raise unknown_argument(model_type, name, ())
        for name, value in _FIXED.items():
            if arguments.pop(name, value) not in (value, None):
                raise UsageError(
                    f"model_args.{name} is always {value} here: {_FIXED_REASONS[name]}",
                    target=f"model_args.{name}",
                )
    return arguments


# arguments of transformers 4, which lm-eval's users write
_BITSANDBYTES = ("load_in_4bit", "load_in_8bit")


def unknown_argument(
    model_type: str, name: str, known: Collection[str], *, hint: str = ""
) -> UsageError:
    """What is said of an argument that a model type does not take, with the nearest it does."""
    if name in _BITSANDBYTES and model_type in HF_TYPES:
        return UsageError(
            f"model_args.{name}: transformers takes no such argument any more",
            hint=f"quantization_config: {{quant_method: bitsandbytes, {name}: true}}",
            target=f"model_args.{name}",
        )
    return UsageError(
        f"model type '{model_type}' takes no argument '{name}'{nearest(name, known)}",
        hint=hint,
        target=f"model_args.{name}",
    )


def check_dtypes(arguments: Mapping[str, Any]) -> None:
    """Refuse names that are no dtype of torch, with the nearest one."""
    import torch

    names = [
        name
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype) and value.is_floating_point
    ]
    for argument in ("dtype", "mixed_precision_dtype"):
        value = arguments.get(argument)
        if value is None or (argument == "dtype" and value == "auto"):
            continue
        if not isinstance(value, str) or value not in names:
            raise UsageError(
                f"model_args.{argument}: {value!r} is not a dtype{nearest(str(value), names)}",
                hint="e.g. float32, bfloat16, float16",
                target=f"model_args.{argument}",
            )


def check_attention(asked: object) -> None:
    """Refuse an attention implementation that transformers does not know; a hub's kernel may be.

    Raises:
        UsageError: naming those that it knows.
    """
    from transformers import modeling_utils

    functions = getattr(modeling_utils, "ALL_ATTENTION_FUNCTIONS", None)  # since 4.48
    if asked is None or functions is None or not hasattr(functions, "keys"):
        return
    if not isinstance(asked, dict) and "/" not in str(asked):
        check_known("attn_implementation", asked, sorted({"eager", *functions.keys()}))


def check_experts(asked: object) -> None:
    """Refuse an implementation of experts that transformers does not know; a hub's may be one.

    Raises:
        UsageError: naming those that it knows.
    """
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS as functions
    except ImportError:  # before transformers 5
        return
    if asked is not None and not isinstance(asked, dict) and "/" not in str(asked):
        check_known("experts_implementation", asked, sorted({"eager", *functions.keys()}))


def check_known(argument: str, asked: object, known: Collection[str]) -> None:
    """Refuse what is none of some words, which are named in their order.

    Raises:
        UsageError: naming the nearest.
    """
    if asked not in known:
        raise UsageError(
            f"model_args.{argument}: {asked!r} is not known{nearest(str(asked), known)}",
            hint=f"one of: {', '.join(known)}",
            target=f"model_args.{argument}",
        )


def check_types(arguments: Mapping[str, Any]) -> None:
    """Refuse values that lm-eval would take without a word and fail on later."""
    for argument, (kind, least, wanted) in _TYPES.items():
        value = arguments.get(argument)
        if value is None:
            continue
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if not fits or value < least:
            raise UsageError(
                f"model_args.{argument}: {value!r} is not {wanted}", target=f"model_args.{argument}"
            )


def check_device(asked: Any) -> None:
    """Refuse a device that is not there; lm-eval fails on some and takes another for others.

    Raises:
        UsageError: no such device.
    """
    import torch

    wanted = read_device(asked)
    count = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }.get(wanted.type)
    if count is not None and (wanted.index or 0) >= count:
        raise UsageError(
            f"device '{asked}' is not to be had: torch {torch.__version__} finds "
            f"{count or 'no'} {wanted.type} device{'s' if count > 1 else ''} here",
            hint=_missing_device_hint(wanted, count),
        )
    if count is None:
        _check_other_device(asked, wanted)


def read_device(asked: Any) -> torch.device:
    """Return a device, whether or not it is here.

    Raises:
        UsageError: it is none.
    """
    import torch

    try:
        return torch.device(asked)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"device: {asked!r} is not a device",
            hint=_device_form(str(asked)),
            target="model_args.device",
        ) from error


def _check_other_device(asked: Any, wanted: torch.device) -> None:
    """Names of devices that torch knows, whatever it was built for; meta has no numbers."""
    import torch

    try:
        with torch.inference_mode():
            torch.zeros(1, device=wanted).tolist()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise UsageError(
            f"device '{asked}' is not to be had: torch {torch.__version__} has no numbers there "
            f"({str(error).partition('. ')[0]})",
            hint=_missing_device_hint(wanted, 0),
        ) from error


def check_placement(arguments: Mapping[str, Any]) -> None:
    """Refuse a placement that lm-eval drops without a word: of one module, or on one device.

    Raises:
        UsageError: a ``device_map`` without ``parallelize``.
    """
    asked = arguments.get("device_map")
    if asked not in (None, "auto") and not arguments.get("parallelize"):
        raise UsageError(
            f"model_args.device_map: {asked!r} would do nothing: lm-eval takes it beside "
            "parallelize: true only",
            hint="model_args.device names one device; parallelize: true spreads a model",
            target="model_args.device_map",
        )


def check_loaded_device(asked: Any, found: Any) -> None:
    """Refuse a model that was loaded elsewhere than asked, which lm-eval does without a word.

    Raises:
        UsageError: it is on another device.
    """
    import torch

    wanted = torch.device(asked)
    if (wanted.type, wanted.index or 0) != (found.type, found.index or 0):
        raise UsageError(f"device '{asked}' was asked for, and the model was loaded on '{found}'")


def constructor_parameters(loader: type[LM]) -> dict[str, inspect.Parameter]:
    """A constructor's parameters by name, those of its bases where it passes them on.

    Annotations are types: those of a base where a class has none, ``ANYTHING`` where none is read.
    """
    by_name: dict[str, inspect.Parameter] = {}
    for kind in loader.__mro__:
        constructor = vars(kind).get("__init__")
        if constructor is None or kind is object:
            continue
        parameters = inspect.signature(constructor).parameters.values()
        for parameter in parameters:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                declared = by_name.get(parameter.name, parameter)
                if declared.annotation is ANYTHING or declared is parameter:
                    known = read_annotation(parameter.annotation, constructor.__globals__)
                    declared = declared.replace(annotation=known)
                by_name[parameter.name] = declared
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    by_name.pop("self", None)
    return by_name


def check_shows_likelihoods(model_type: str, model: str, task: str) -> None:
    """Refuse a type that has no log-probabilities of given texts, whatever server there is.

    Args:
        model: as its server calls it.
        task: one that needs them.

    Raises:
        UsageError: naming the task, and types that have them.
    """
    if model_type in CHAT_TYPES:
        what = "chat completions have none"
    elif model_type in GENERATING_TYPES:
        what = f"model type '{model_type}' has none"
    elif model_type == "openai-completions" and model not in _OPENAI_SCORING:
        what = f"OpenAI gives none for '{model}', only for {' and '.join(_OPENAI_SCORING)}"
    else:
        return
    raise UsageError(
        f"task '{task}' needs log-probabilities of prompts, and {what}",
        hint="use a task that generates, or model type local-completions with a server that gives "
        "them (vLLM, llama-cpp-python; sglang-generate for SGLang)",
    )


def no_chat_requests(what: str) -> UsageError:
    """What is said of a model that can be put prompts only; ``what`` begins the sentence."""
    return UsageError(
        f"{what} cannot be asked chat requests, with their tools",
        hint="model: hf, or a server: --base http://HOST:PORT/v1 (model: local-chat-completions)",
    )


def _device_form(asked: str) -> str:
    """How a device is written, by what was written for one."""
    if asked.startswith(("MIG-", "GPU-")):
        return f"CUDA_VISIBLE_DEVICES={asked} in front of the command, and --device cuda"
    if asked.isdecimal():
        return f"cuda:{asked}"
    return "e.g. cpu, cuda, cuda:1"


def _missing_device_hint(wanted: torch.device, found: int) -> str:
    import torch

    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    built = torch.version.cuda or torch.version.hip
    if wanted.type != "cuda" or not built:
        return "--device cpu, or a torch that is built for this device"
    if shown is not None:
        return f"CUDA_VISIBLE_DEVICES is '{shown}', which hides the others of this machine"
    if found:
        return f"they are cuda:0{f' to cuda:{found - 1}' if found > 1 else ''}"
    return f"this torch is built for {built}: does `nvidia-smi` show a device and its driver?"
