"""Load an lm-eval model by type and model_args, with errors that say what is wrong."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.scorer import DEFAULT_BATCH_SIZE, ScoringPolicy
from evalguard.errors import EvalguardError, SettingError, UsageError
from evalguard.gguf_table import check_gguf_header
from evalguard.models.argument_checks import check_model_type, find_loader, refuse_unknown_arguments
from evalguard.models.arguments import (
    HF_TYPES,
    check_arguments,
    check_attention,
    check_device,
    check_dtypes,
    check_loaded_device,
    check_placement,
    check_types,
    constructor_parameters,
)
from evalguard.models.checkpoint_files import (
    check_model_folder,
    check_weights,
    find_gguf_file,
    find_local_folder,
    pickle_error,
)
from evalguard.models.failures import MisfitError, explain_load_failures
from evalguard.models.language_classes import refuse_other_class
from evalguard.models.quantised_folders import OTHER_WEIGHTS
from evalguard.models.served.shown_logprobs import ask_for_top_tokens, take_top_argument
from evalguard.models.unloaded_models import (
    build_empty_model,
    load_tokenizer,
    make_empty_model,
    read_effective_config,
)

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from evalguard.core.settings import Value

__all__ = ["HF_TYPES", "check_engine", "load_lm"]
# lm-eval's types whose package is looked for as they are constructed: its module, what installs it.
_ENGINES = {
    "anthropic-completions": ("anthropic", "anthropic"),
    "habana": ("optimum", "optimum-habana"),
    "hf-audiolm-qwen": ("librosa", "librosa soundfile"),
    "ipex": ("optimum", "'optimum[ipex]'"),
    "litellm": ("litellm", "litellm"),
    "litellm-chat": ("litellm", "litellm"),
    "litellm-chat-completions": ("litellm", "litellm"),
    "mamba_ssm": ("mamba_ssm", "mamba_ssm"),
    "nemo_lm": ("nemo", "'nemo_toolkit[nlp]'"),
    "neuronx": ("optimum", "'optimum[neuronx]'"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "onnxruntime-genai": ("onnxruntime_genai", "onnxruntime-genai"),
    "sglang": ("sglang", "sglang"),
    "trtllm": ("tensorrt_llm", "tensorrt_llm"),
    "vllm-vlm": ("vllm", "vllm"),
    "watsonx_llm": ("ibm_watsonx_ai", "ibm_watsonx_ai python-dotenv"),
}

# Arguments of lm-eval's Hugging Face model that need a package: its module, what installs it.
_NEEDED = {
    "autogptq": ("auto_gptq", "auto-gptq"),
    "gptqmodel": ("gptqmodel", "gptqmodel --no-build-isolation"),
    "peft": ("peft", "peft"),
}


def load_lm(
    model_type: str,
    model_args: Mapping[str, Value],
    config_overrides: Mapping[str, Value],
    policy: ScoringPolicy,
    *,
    trust_remote_code: bool,
    allow_pickle: bool,
) -> LM:
    """Load a model of any lm-eval type; ``hf`` becomes ``GuardedHFLM``.

    The device is the one in ``model_args``, else the policy's, else CUDA where there is one.

    Raises:
        UsageError: unknown model type, dtype or argument, with the nearest name; an argument that
            belongs to the run or that evalguard fixes; a config's value that no model can have.
        SettingError: config overrides for a model type that has no Hugging Face config.
        EvaluationError: no such folder, no model in it, damaged or pickled weights, an unknown
            architecture, a hub id that cannot be reached.
    """
    arguments = check_arguments(model_type, model_args, trust_remote_code=trust_remote_code)
    with explain_load_failures(model_type, model_args, config_overrides):
        if model_type in HF_TYPES:
            arguments["config_overrides"] = config_overrides
            arguments["rolling_bos"] = policy.rolling_bos
            arguments["softmax_dtype"] = policy.softmax_dtype
            arguments["sequences"] = policy.batch_size
            arguments["token_budget"] = policy.token_budget
            arguments["scorer"] = policy.scorer
            return _load_hf(arguments, policy, trust_remote_code, allow_pickle)
        if config_overrides:
            raise SettingError(
                f"config.{next(iter(config_overrides))} cannot be set: model type "
                f"'{model_type}' has no Hugging Face config that evalguard builds",
                hint="config.X settings work with model: hf",
                target=f"config.{next(iter(config_overrides))}",
            )
        return _load_registered(model_type, arguments, policy, trust_remote_code, allow_pickle)


def _load_hf(
    arguments: dict[str, Any], policy: ScoringPolicy, trust_remote_code: bool, allow_pickle: bool
) -> LM:
    from evalguard.models.hf.model import GuardedHFLM
    from evalguard.models.process_state import silence_libraries

    _check_hf_arguments(arguments, trust_remote_code, allow_pickle)
    arguments.setdefault("device", default_device(policy))
    # of generation, and of everything that lm-eval's own path scores
    arguments["batch_size"] = policy.batch_size or DEFAULT_BATCH_SIZE
    one_device = _is_on_one_device(arguments)
    if one_device:
        check_device(arguments["device"])
    try:
        with silence_libraries():
            lm = GuardedHFLM(
                **arguments, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle
            )
    except Exception as error:
        if isinstance(error, MisfitError) or not isinstance(error, EvalguardError):
            _refuse_unbuildable(arguments, trust_remote_code, error)
        raise
    if one_device:
        check_loaded_device(arguments["device"], lm.device)
    return lm


def _check_hf_arguments(
    arguments: Mapping[str, Any], trust_remote_code: bool, allow_pickle: bool
) -> None:
    if "pretrained" not in arguments:
        raise UsageError("model_args name no 'pretrained' model", hint="a folder or a hub id")
    for name, (module, package) in _NEEDED.items():
        if arguments.get(name):
            _require(module, package, f"model_args.{name}", target=f"model_args.{name}")
    check_folders(arguments, allow_pickle)
    check_dtypes(arguments)
    check_types(arguments)
    if not trust_remote_code:  # which may bring one of its own
        check_attention(arguments.get("attn_implementation"))
    check_placement(arguments)


def _is_on_one_device(arguments: Mapping[str, Any]) -> bool:
    return not (arguments.get("parallelize") or arguments.get("tp_plan"))


def check_unloaded(
    model_args: Mapping[str, Value],
    config_overrides: Mapping[str, Value],
    policy: ScoringPolicy,
    *,
    trust_remote_code: bool,
    allow_pickle: bool,
    elsewhere: bool,
) -> None:
    """Refuse what loading a Hugging Face model would, as far as that needs none of its weights.

    Args:
        elsewhere: it runs on another machine, which has other devices.

    Raises:
        EvalguardError: as ``load_lm``: arguments, folders and device, a config that cannot be
            read, an architecture that transformers does not know, code that may not run, an
            attention whose package is missing, no tokenizer.
    """
    arguments = check_arguments("hf", model_args, trust_remote_code=trust_remote_code)
    with explain_load_failures("hf", model_args, config_overrides):
        _check_hf_arguments(arguments, trust_remote_code, allow_pickle)
        device = arguments.get("device") or policy.device
        if device and not elsewhere and _is_on_one_device(arguments):
            check_device(device)
        if arguments.get("gguf_file"):  # whose config and tokenizer take as long as loading it
            file = find_gguf_file(arguments)
            if file is not None:
                check_gguf_header(file)
            return
        if trust_remote_code:
            return  # code of others runs in a process of its own
        config = read_effective_config(arguments, config_overrides)
        refuse_other_class(str(arguments["pretrained"]), config)
        folder = find_local_folder(str(arguments["pretrained"]))
        if folder is not None and not any(map(arguments.get, (*OTHER_WEIGHTS, "variant"))):
            check_weights(folder / str(arguments.get("subfolder") or ""))
        if arguments.get("attn_implementation") not in (None, "eager", "sdpa"):
            make_empty_model(config, arguments, trust_remote_code=False)
        load_tokenizer(arguments, trust_remote_code=False)


def _refuse_unbuildable(
    arguments: Mapping[str, Any], trust_remote_code: bool, error: Exception
) -> None:
    """Refuse a value of a config with which no model can be made of these weights, where one can
    without it.

    Both are tried with no weights, once loading has failed.

    Raises:
        UsageError: naming the field.
    """
    overrides = dict(arguments["config_overrides"])
    stored = _shapes(arguments, {}, trust_remote_code) if overrides else None
    if stored is None:
        return
    misfits = error.weights if isinstance(error, MisfitError) else ()
    kind = "" if misfits else f"no model can be made with it: {type(error).__name__}: "
    for path, value in overrides.items():
        shapes = _shapes(arguments, {path: value}, trust_remote_code)
        if shapes is None or any(shapes.get(weight) != stored.get(weight) for weight in misfits):
            raise UsageError(
                f"config.{path} cannot be {value!r}: {kind}{' '.join(str(error).split())[:240]}",
                target=f"config.{path}",
            ) from error


def _shapes(
    arguments: Mapping[str, Any], overrides: Mapping[str, Value], trust_remote_code: bool
) -> dict[str, tuple[int, ...]] | None:
    """Shapes of a model's weights by name, as its config says; None where none can be made."""
    try:
        config = read_effective_config(arguments, overrides, trust_remote_code=trust_remote_code)
        model = build_empty_model(config, arguments, trust_remote_code=trust_remote_code)
    except EvalguardError:
        return None
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def check_engine(model_type: str) -> None:
    """Refuse a type of lm-eval's that does not exist, or whose package is not here.

    Raises:
        UsageError: with the nearest type, or what installs the package.
    """
    from evalguard.models.process_state import silence_libraries

    with silence_libraries():
        check_model_type(model_type)
    if model_type in _ENGINES:
        _require(*_ENGINES[model_type], f"model type '{model_type}'")


def _require(module: str, packages: str, needed_by: str, *, target: str = "") -> None:
    if importlib.util.find_spec(module) is None:
        raise UsageError(
            f"{needed_by} needs {module}, which is not installed here",
            hint=f"pip install {packages}",
            target=target,
        )


def _load_registered(
    model_type: str,
    arguments: dict[str, Any],
    policy: ScoringPolicy,
    trust_remote_code: bool,
    allow_pickle: bool,
) -> LM:
    from evalguard.models.process_state import silence_libraries

    check_engine(model_type)
    with silence_libraries():
        loader = find_loader(model_type)
        folder = Path(str(arguments.get("pretrained") or arguments.get("model") or ""))
        if folder.name and folder.is_dir():
            check_model_folder(folder, allow_pickle=allow_pickle, needed=())
        taken = constructor_parameters(loader)
        shown = take_top_argument(arguments, loader)
        if trust_remote_code and "trust_remote_code" in taken:
            arguments["trust_remote_code"] = True
        device = arguments.pop("device", default_device(policy))
        refuse_unknown_arguments(model_type, arguments, taken)
        run = {"batch_size": policy.batch_size or _default_batch_size(loader), "device": device}
        accepted = {n: value for n, value in run.items() if n in taken and value is not None}
        lm = loader.create_from_arg_obj(arguments, accepted)
        if shown:
            ask_for_top_tokens(lm, shown)
        return lm


def _default_batch_size(loader: type[LM]) -> int | str | None:
    """The batch size of a model type where the user gives none; None: its own default.

    Servers are asked one prompt a call, and vllm and sglang cut batches themselves.
    """
    from lm_eval.models.api_models import TemplateAPI

    if issubclass(loader, TemplateAPI):
        return None
    own = {
        parameter.default
        for kind in loader.__mro__
        if (constructor := vars(kind).get("__init__")) is not None
        for name, parameter in inspect.signature(constructor).parameters.items()
        if name == "batch_size"
    }
    cuts_itself = "auto" in own or loader.__module__.endswith(".sglang_causallms")
    return "auto" if cuts_itself else DEFAULT_BATCH_SIZE


def default_device(policy: ScoringPolicy) -> str:
    import torch

    return policy.device or ("cuda" if torch.cuda.is_available() else "cpu")


def check_folders(arguments: Mapping[str, Any], allow_pickle: bool) -> None:
    folder = find_local_folder(str(arguments["pretrained"]))
    if folder is not None:
        subfolder = folder / str(arguments.get("subfolder") or "")
        needed = () if arguments.get("gguf_file") else ("config.json",)
        check_model_folder(subfolder, allow_pickle=allow_pickle, needed=needed)
    for name, needed in (("delta", ("config.json",)), ("peft", ("adapter_config.json",))):
        if arguments.get(name):
            inner = find_local_folder(str(arguments[name]))
            if inner is not None:
                check_model_folder(inner, allow_pickle=allow_pickle, needed=needed)
    if isinstance(arguments.get("tokenizer"), str):
        find_local_folder(arguments["tokenizer"])
    quantized = arguments.get("autogptq")
    if isinstance(quantized, str) and not quantized.endswith(".safetensors") and not allow_pickle:
        raise pickle_error(quantized)
