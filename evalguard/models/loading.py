"""Load an lm-eval model by type and model_args, with errors that say what is wrong."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.scorer import DEFAULT_BATCH_SIZE, ScoringPolicy
from evalguard.errors import EvaluationError, SettingError, UsageError, nearest
from evalguard.models.arguments import (
    HF_TYPES,
    check_arguments,
    check_device,
    check_dtypes,
    check_loaded_device,
    check_types,
    constructor_parameters,
)
from evalguard.models.checkpoint_files import check_model_folder, find_local_folder, pickle_error
from evalguard.models.config_overrides import apply_overrides, override_config
from evalguard.models.load_failures import explain_load_failures, silence_libraries
from evalguard.models.served.prompt_logprobs import ask_for_top_tokens, take_top_argument

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from transformers import PretrainedConfig, PreTrainedModel

    from evalguard.core.settings import Value


__all__ = ["HF_TYPES", "load_lm"]


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
            belongs to the run or that evalguard fixes.
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
            )
        return _load_registered(model_type, arguments, policy, trust_remote_code, allow_pickle)


def _load_hf(
    arguments: dict[str, Any], policy: ScoringPolicy, trust_remote_code: bool, allow_pickle: bool
) -> LM:
    from evalguard.models.hf.model import GuardedHFLM
    from evalguard.models.load_failures import silence_libraries

    if "pretrained" not in arguments:
        raise UsageError("model_args name no 'pretrained' model", hint="a folder or a hub id")
    _check_folders(arguments, allow_pickle)
    check_dtypes(arguments)
    check_types(arguments)
    arguments.setdefault("device", _default_device(policy))
    # of generation, and of everything that lm-eval's own path scores
    arguments["batch_size"] = policy.batch_size or DEFAULT_BATCH_SIZE
    one_device = not (arguments.get("parallelize") or arguments.get("tp_plan"))
    if one_device:
        check_device(arguments["device"])
    with silence_libraries():
        lm = GuardedHFLM(
            **arguments, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle
        )
    if one_device:
        check_loaded_device(arguments["device"], lm.device)
    return lm


def _load_registered(
    model_type: str,
    arguments: dict[str, Any],
    policy: ScoringPolicy,
    trust_remote_code: bool,
    allow_pickle: bool,
) -> LM:
    from evalguard.models.load_failures import silence_libraries

    with silence_libraries():
        import lm_eval.models  # noqa: F401  registers every model type; must come first
        from lm_eval.api.registry import get_model, model_registry

        import evalguard.models.served.llama_server  # noqa: F401  registers one more

        if model_type not in model_registry:
            names = sorted(model_registry.keys())
            raise UsageError(
                f"there is no model type '{model_type}'{nearest(model_type, names)}",
                hint=f"lm-eval's model types: {', '.join(names)}",
            )
        folder = Path(str(arguments.get("pretrained") or arguments.get("model") or ""))
        if folder.name and folder.is_dir():
            check_model_folder(folder, allow_pickle=allow_pickle, needed=())
        loader = get_model(model_type)
        taken = constructor_parameters(loader)
        shown = take_top_argument(arguments, loader)
        if trust_remote_code and "trust_remote_code" in taken:
            arguments["trust_remote_code"] = True
        device = arguments.pop("device", _default_device(policy))
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


def _default_device(policy: ScoringPolicy) -> str:
    import torch

    return policy.device or ("cuda" if torch.cuda.is_available() else "cpu")


def _check_folders(arguments: Mapping[str, Any], allow_pickle: bool) -> None:
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


# What a model is made of, known from its config: no weights are read and no memory is taken.


# model_args of reading a config, with lm-eval's defaults
_CONFIG_LOCATION: Mapping[str, Value] = {"revision": "main", "gguf_file": None, "subfolder": ""}


def read_effective_config(
    model_args: Mapping[str, Value],
    overrides: Mapping[str, Value],
    *,
    trust_remote_code: bool = False,
) -> PretrainedConfig:
    """Read a config as loading these model_args does, with all that is laid over it.

    Raises:
        SettingError: an override names nothing in the config.
        EvaluationError: there is no such config.
    """
    from transformers import AutoConfig

    pretrained = str(model_args["pretrained"])
    where: dict[str, Any] = {n: model_args.get(n) or value for n, value in _CONFIG_LOCATION.items()}
    with explain_load_failures("hf", model_args, overrides), silence_libraries():
        config = AutoConfig.from_pretrained(
            pretrained, trust_remote_code=trust_remote_code, **where
        )
        apply_overrides(config, overrides, pretrained, **where)
        for name, value in config_model_args(config, model_args).items():
            override_config(config, {name: value})
    return config


def config_model_args(
    config: PretrainedConfig, model_args: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the model_args that transformers takes for attributes of the config."""
    from evalguard.models.hf.model import LOADER_ARGUMENTS, GuardedHFLM

    known = constructor_parameters(GuardedHFLM) | LOADER_ARGUMENTS
    return {n: v for n, v in model_args.items() if n not in known and hasattr(config, n)}


def build_empty_model(
    config: PretrainedConfig,
    model_args: Mapping[str, Value],
    *,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Make the modules that these model_args and this config lead to, on the meta device.

    The config is copied; the model's own says which attention implementation it resolves to.

    Raises:
        EvaluationError: the architecture cannot be made without its weights.
    """
    import torch

    asked = {n: v for n, v in model_args.items() if n == "attn_implementation" and v is not None}
    try:
        with torch.device("meta"), silence_libraries():
            made: PreTrainedModel = _auto_class(config, model_args).from_config(
                copy.deepcopy(config), trust_remote_code=trust_remote_code, **asked
            )
            return made
    except Exception as error:
        raise EvaluationError(
            f"the modules of {model_args['pretrained']} cannot be listed without its weights: "
            f"{' '.join(str(error).split())}",
        ) from error


def _auto_class(config: PretrainedConfig, model_args: Mapping[str, Value]) -> Any:
    """The auto class with which lm-eval loads a model of this type."""
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as WITH_ENCODER,
    )

    backend = model_args.get("backend") or "default"
    encoder = backend == "seq2seq" or (backend == "default" and config.model_type in WITH_ENCODER)
    return transformers.AutoModelForSeq2SeqLM if encoder else transformers.AutoModelForCausalLM


# A checkpoint of another class than a language model's: an encoder of text, sound or images.


def loads_as_language_model(
    model_args: Mapping[str, Value],
    overrides: Mapping[str, Value],
    *,
    trust_remote_code: bool = False,
) -> bool:
    """Whether lm-eval's classes hold what a checkpoint has: its config names one of them, or none.

    Raises:
        EvaluationError: there is no such config.
    """
    from transformers.models.auto import modeling_auto as auto

    config = read_effective_config(model_args, overrides, trust_remote_code=trust_remote_code)
    declared = list(getattr(config, "architectures", None) or [])
    known = {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(),
        *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values(),
    }
    return not declared or declared[0] in known or _declared_class(declared[0]) is None


def _declared_class(name: str) -> Any:
    import transformers

    return getattr(transformers, name, None)


def load_declared_class(
    model_args: Mapping[str, Value],
    overrides: Mapping[str, Value],
    *,
    device: str = "",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> PreTrainedModel:
    """Load a checkpoint as the class that its config names, in evaluation mode.

    Raises:
        UsageError: an argument that only language models have.
        EvaluationError: the weights are damaged, pickled, or not all there.
    """
    from evalguard.models.checkpoint_files import RecordingLoader, refuse_random_weights

    taken = {"pretrained", "revision", "subfolder", "dtype", "attn_implementation", "device"}
    for name, value in model_args.items():
        if name not in taken | {"tokenizer", "add_bos_token", "max_length"} and value is not None:
            raise UsageError(
                f"model_args.{name} is of language models, and this checkpoint is another model's"
            )
    arguments = dict(model_args)
    _check_folders(arguments, allow_pickle)
    check_dtypes(arguments)
    config = read_effective_config(model_args, overrides, trust_remote_code=trust_remote_code)
    kind = _declared_class(next(iter(config.architectures)))
    options = {
        name: arguments[name]
        for name in ("revision", "subfolder", "attn_implementation")
        if arguments.get(name) is not None
    }
    wanted = str(arguments.get("device") or _default_device(ScoringPolicy(device=device)))
    check_device(wanted)
    pretrained = str(arguments["pretrained"])
    reports: list[dict[str, Any]] = []
    loader = RecordingLoader(kind, reports)
    with explain_load_failures("hf", model_args, overrides), silence_libraries():
        model: PreTrainedModel = loader.from_pretrained(
            pretrained,
            config=config,
            dtype=arguments.get("dtype") or "auto",
            use_safetensors=None if allow_pickle else True,
            **options,
        )
    for report in reports:
        refuse_random_weights(pretrained, report)
    return model.to(wanted).eval()
