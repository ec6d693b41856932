"""What is wrong with a model type or one of its model_args, seen before anything is loaded."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evalguard.errors import UsageError, nearest
from evalguard.models.annotations import check_annotated
from evalguard.models.arguments import (
    CLIENT_TYPES,
    HF_TYPES,
    INTERNAL_ARGS,
    SERVED_TYPES,
    TRANSFORMERS_ARGS,
    check_arguments,
    check_attention,
    check_dtypes,
    check_experts,
    check_known,
    check_type,
    check_types,
    constructor_parameters,
    read_device,
    unknown_argument,
)
from evalguard.models.config_overrides import override_config
from evalguard.models.runtimes.runtime import RuntimeArguments
from evalguard.models.runtimes.types import RUNTIME_TYPES

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from evalguard.core.settings import Value

# What nearly every file holds is known without importing torch, which takes seconds.
_USUAL_ARGS = frozenset({
    "add_bos_token", "device", "dtype", "gguf_file", "max_length", "parallelize", "peft",
    "prefix_token_id", "pretrained", "quantization_config", "revision", "subfolder", "tokenizer",
})  # fmt: skip
_USUAL_DTYPES = ("auto", "float32", "bfloat16", "float16")
_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", "cpu", "cuda", "mps", "disk")
# What transformers' loader takes out of its keyword arguments, and what lm-eval hands on to it,
# without an annotation or with a wider one.
_OF_TRANSFORMERS: Mapping[str, Any] = {
    "adapter_kwargs": dict, "adapter_name": str, "allow_all_kernels": bool, "cache_dir": str,
    "code_revision": str, "distributed_config": dict, "force_download": bool, "from_flax": bool,
    "from_tf": bool, "ignore_mismatched_sizes": bool, "key_mapping": dict,
    "local_files_only": bool, "low_cpu_mem_usage": bool, "max_memory": dict,
    "offload_buffers": bool, "offload_state_dict": bool, "output_loading_info": bool,
    "proxies": dict, "resume_download": bool, "tp_plan": Literal["auto"] | dict, "tp_size": int,
    "use_kernels": bool, "use_safetensors": bool, "variant": str, "weights_only": bool,
}  # fmt: skip
_SIZES = ("max_memory_per_gpu", "max_cpu_memory")
_SIZE = re.compile(r"\d+(\.\d*)?\s*[KMG]i?B", re.IGNORECASE)
_USUAL_DEVICE = re.compile(r"(cpu|cuda|mps)(:\d+)?")


def check_model_type(model_type: str) -> None:
    """Refuse a model type that neither evalguard nor lm-eval has.

    Raises:
        UsageError: naming those that there are.
    """
    check_type(model_type)
    if model_type in HF_TYPES or model_type in RUNTIME_TYPES:
        return
    import lm_eval.models  # noqa: F401  registers every model type; must come first
    from lm_eval.api.registry import model_registry

    import evalguard.models.served.llama_server_model  # noqa: F401  registers one more

    if model_type not in model_registry:
        names = sorted(model_registry.keys())
        known = [*names, *RUNTIME_TYPES]
        raise UsageError(
            f"there is no model type '{model_type}'{nearest(model_type, known)}",
            hint=f"lm-eval's model types: {', '.join(names)}; evalguard's: `evalguard models "
            "--types`",
        )


def find_loader(model_type: str) -> type[LM]:
    """Return lm-eval's class of a model type.

    Raises:
        UsageError: there is none.
        Exception: whatever importing it raises, where its packages are not here.
    """
    check_model_type(model_type)
    from lm_eval.api.registry import get_model

    loader: type[LM] = get_model(model_type)
    return loader


def check_argument(
    model_type: str,
    name: str,
    value: Value,
    *,
    folder: Path | None,
    code_allowed: bool,
    runs_here: bool,
) -> str:
    """Refuse an argument that a model type does not take, or a value that it cannot have.

    Args:
        model_type: a key of ``RUNTIME_TYPES`` where the model runs in an environment of its own.
        folder: of a Hugging Face model, where it is here; its config's fields are arguments, too.
        code_allowed: whether code that comes with the model may run, and take what it likes.
        runs_here: whether it is this environment's library that takes it.

    Returns:
        What could not be checked, "" where nothing.

    Raises:
        UsageError: naming the argument.
    """
    check_arguments(model_type, {name: value}, trust_remote_code=True)
    if model_type in RUNTIME_TYPES and RUNTIME_TYPES[model_type].others:
        return _check_engine_argument(model_type, name, value, runs_here=runs_here)
    taken = _taken_names(model_type, name)
    if taken is not None and name not in taken:
        of_transformers = model_type in HF_TYPES and (
            code_allowed or _transformers_takes(name, folder)
        )
        if not of_transformers:
            raise unknown_argument(model_type, name, taken)
        if folder is not None and not code_allowed:
            _check_field(folder, name, value)
    check_types({name: value})
    _check_value(model_type, name, value)
    if name == "mixed_precision_dtype" or (name == "dtype" and value not in _USUAL_DTYPES):
        check_dtypes({name: value})
    if name == "device" and not _USUAL_DEVICE.fullmatch(str(value)):
        read_device(value)
    if name == "attn_implementation" and not code_allowed and value not in ("eager", "sdpa"):
        check_attention(value)
    if name == "experts_implementation" and not code_allowed:
        check_experts(value)
    if name == "device_map" and isinstance(value, str) and not _USUAL_DEVICE.fullmatch(value):
        check_known("device_map", value, _DEVICE_MAPS)
    if name == "quantization_config" and value is not None:
        _check_quantisation(value, whole=model_type in HF_TYPES)
    return ""


def _check_value(model_type: str, name: str, value: Value) -> None:
    """Refuse a value that an argument of our types, or of lm-eval's clients, cannot have."""
    taken = RuntimeArguments(model_type=model_type, given={name: value})
    kind = RUNTIME_TYPES[model_type].arguments if model_type in RUNTIME_TYPES else None
    allowed = (kind or {}).get(name)
    if value is None:
        return
    if allowed is bool:
        taken.take_flag(name)
    elif allowed is float:
        taken.take_number(name)
    elif isinstance(allowed, int):
        taken.take_whole(name, least=allowed)
    elif isinstance(allowed, tuple):
        taken.choose(name, allowed, "")
    elif allowed is str:
        taken.take_text(name)
        if model_type == "rwkv" and name == "strategy":
            from evalguard.models.runtimes.rwkv import check_strategy

            check_strategy(str(value), check=read_device)
    elif model_type == "openvino" and name == "target":
        from evalguard.models.runtimes.graphs import check_target

        check_target(value)
    elif model_type == "transformer_lens" and name == "attn_types":
        from evalguard.models.runtimes.transformer_lens import check_pattern

        check_pattern(value)
    elif model_type not in RUNTIME_TYPES and name not in _USUAL_ARGS:
        parameter = _loader_parameters(model_type).get(name)
        if name in _OF_TRANSFORMERS and model_type in HF_TYPES:
            check_annotated(name, value, _OF_TRANSFORMERS[name])
        elif parameter is not None and value != parameter.default:
            check_annotated(name, value, parameter.annotation)
        if name in _SIZES and model_type in HF_TYPES:
            _check_size(name, value)
        address = model_type in CLIENT_TYPES and name == "base_url"
        if address and not str(value).startswith(("http://", "https://")):
            raise UsageError(
                f"model_args.base_url: {value!r} does not begin with http:// or https://",
                target="model_args.base_url",
            )


def _check_size(name: str, value: Value) -> None:
    """Refuse a text that accelerate reads no number of bytes from."""
    if isinstance(value, str) and not _SIZE.fullmatch(value):
        raise UsageError(
            f"model_args.{name}: {value!r} is no size",
            hint="20GiB, 500MB, or a number of bytes",
            target=f"model_args.{name}",
        )


@cache
def _loader_parameters(model_type: str) -> Mapping[str, inspect.Parameter]:
    """Arguments of an lm-eval class; {} where its packages are not here."""
    from evalguard.models.hf.model import GuardedHFLM

    try:
        loader = GuardedHFLM if model_type in HF_TYPES else find_loader(model_type)
    except UsageError:
        raise
    except Exception:  # noqa: BLE001 - its packages are not here, and any value may be right
        return {}
    return constructor_parameters(loader)


def _check_engine_argument(model_type: str, name: str, value: Value, *, runs_here: bool) -> str:
    """As ``check_argument``, of a library that takes arguments beyond those that are known here."""
    from evalguard.models.runtimes.vllm import engine_annotations, refuse_engine_argument

    refuse_engine_argument(name, value)
    known = RUNTIME_TYPES[model_type].arguments or {}
    check_types({name: value})
    _check_value(model_type, name, value)
    if name in known:
        return ""
    try:
        taken = engine_annotations() if runs_here else None
    except Exception:  # noqa: BLE001 - it is not here, or does not start on this machine
        taken = None
    if taken is None:
        return (
            f"model_args.{name} is not checked: '{model_type}' is not in this environment"
            f"{nearest(name, known)}"
        )
    if name not in taken:
        raise unknown_argument(model_type, name, {*taken, *known})
    check_annotated(name, value, taken[name])
    return ""


def _check_field(folder: Path, name: str, value: Value) -> None:
    """Refuse a value that a field of the model's config cannot have."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder)
        override_config(config, {name: value})
    except UsageError:
        raise
    except Exception:  # noqa: BLE001 - no field of its class; what is wrong with the folder is
        return  # told elsewhere


def _check_quantisation(value: Value, *, whole: bool) -> None:
    """``whole``: by this environment's transformers, which may know other keys than another's."""
    from evalguard.models.runtimes.hf import check_quantisation_words, read_quantisation

    check_quantisation_words(value)
    if whole:
        with contextlib.suppress(ImportError):  # its package is not here: a comparison says which
            read_quantisation(value)


def refuse_unknown_arguments(
    model_type: str, names: Collection[str], taken: Collection[str]
) -> None:
    """Refuse what lm-eval's clients of servers would ignore without a word.

    Raises:
        UsageError: naming the first, and the nearest that there is.
    """
    unknown = [name for name in names if name not in taken]
    if unknown and model_type in SERVED_TYPES:
        raise unknown_argument(model_type, unknown[0], taken)


def _taken_names(model_type: str, name: str) -> Collection[str] | None:
    """Names of the arguments that a model type takes; None where it takes any."""
    if model_type in RUNTIME_TYPES:
        return RUNTIME_TYPES[model_type].arguments
    if model_type in HF_TYPES and name in _USUAL_ARGS:
        return _USUAL_ARGS
    return _loader_names(model_type)


@cache
def _loader_names(model_type: str) -> frozenset[str] | None:
    from evalguard.models.served.shown_logprobs import TOP_ARGUMENT

    if model_type in HF_TYPES:
        from evalguard.models.hf.model import LOADER_ARGUMENTS, GuardedHFLM

        of_loader = constructor_parameters(GuardedHFLM).keys() - INTERNAL_ARGS
        return frozenset(of_loader | LOADER_ARGUMENTS | TRANSFORMERS_ARGS)
    try:
        loader = find_loader(model_type)
    except UsageError:
        raise
    except Exception:  # noqa: BLE001 - its packages are not here, and any argument may be right
        return None
    parameters = inspect.signature(loader).parameters.values()
    if model_type not in SERVED_TYPES and any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset({*constructor_parameters(loader), "device", TOP_ARGUMENT})


def _transformers_takes(name: str, folder: Path | None) -> bool:
    """Whether transformers takes an argument: its loader, or a model's config as one of its fields.

    Where the model is not here, a field of any config that transformers has is one.
    """
    from transformers import AutoConfig, PreTrainedModel
    from transformers.models.auto import auto_factory

    word = re.escape(name)
    loaders = (PreTrainedModel.from_pretrained, auto_factory._BaseAutoModelClass.from_pretrained)
    if any(re.search(rf"\b{word}\"?\s*[:=,)]", inspect.getsource(loader)) for loader in loaders):
        return True
    if folder is not None:
        try:
            return hasattr(AutoConfig.from_pretrained(folder), name)
        except Exception:  # noqa: BLE001 - what is wrong with the folder is told elsewhere
            return True
    declared = re.compile(rf"^\s+(?:self\.)?{word}\s*[:=]", re.MULTILINE)
    models = Path(inspect.getfile(auto_factory)).parents[1]
    sources = (models.parent / "configuration_utils.py", *models.glob("*/configuration_*.py"))
    return any(declared.search(path.read_text(encoding="utf-8")) for path in sources)
