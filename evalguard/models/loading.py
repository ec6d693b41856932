"""Load an lm-eval model by type and model_args, with errors that say what is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.errors import EvalguardError, EvaluationError, SettingError, UsageError, nearest
from evalguard.models.weights import check_model_folder, local_folder, refuse_pickle

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from evalguard.scorer import ScoringPolicy
    from evalguard.settings import Value

HF_TYPES = ("hf", "hf-auto", "huggingface")
# what evalguard fixes for every model, because anything else compares unfairly or wrongly
_FIXED = {"softmax_dtype": "float32", "logits_cache": False}
_FIXED_REASONS = {
    "softmax_dtype": "log-softmax in a narrow dtype moves documents by more than a conversion does",
    "logits_cache": "it gives two splits of one token sequence the same log-likelihood",
}
# constructor arguments of GuardedHFLM that no guard file may write
_OURS = frozenset({"config_overrides", "allow_pickle", "rolling_bos"})
_POLICY_ARGS = ("batch_size", "max_batch_size")


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
    arguments = _checked_arguments(model_type, model_args, trust_remote_code=trust_remote_code)
    with _load_failures(model_type, model_args):
        if model_type in HF_TYPES:
            arguments["config_overrides"] = config_overrides
            arguments["rolling_bos"] = policy.rolling_bos
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
    from evalguard.models.hf import GuardedHFLM
    from evalguard.models.quiet import quiet

    if "pretrained" not in arguments:
        raise UsageError("model_args name no 'pretrained' model", hint="a folder or a hub id")
    _check_folders(arguments, allow_pickle)
    _check_dtypes(arguments)
    arguments.setdefault("device", _device(policy))
    arguments["batch_size"] = policy.batch_size
    with quiet():
        return GuardedHFLM(
            **arguments, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle
        )


def _load_registered(
    model_type: str,
    arguments: dict[str, Any],
    policy: ScoringPolicy,
    trust_remote_code: bool,
    allow_pickle: bool,
) -> LM:
    from evalguard.models.quiet import quiet

    with quiet():
        import lm_eval.models  # noqa: F401  registers every model type; must come first
        from lm_eval.api.registry import get_model, model_registry

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
        taken = _parameters(loader)
        if trust_remote_code and "trust_remote_code" in taken:
            arguments["trust_remote_code"] = True
        run = {"batch_size": policy.batch_size, "device": arguments.pop("device", _device(policy))}
        accepted = {name: value for name, value in run.items() if name in taken}
        return loader.create_from_arg_obj(arguments, accepted)


def _device(policy: ScoringPolicy) -> str:
    import torch

    return policy.device or ("cuda" if torch.cuda.is_available() else "cpu")


def _checked_arguments(
    model_type: str, model_args: Mapping[str, Value], *, trust_remote_code: bool
) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(model_args)
    for name in _POLICY_ARGS:
        if name in arguments:
            raise UsageError(
                f"model_args.{name} belongs to the run: base and candidate need the same batches",
                hint="use --batch_size",
            )
    if arguments.pop("trust_remote_code", False) and not trust_remote_code:
        raise UsageError(
            "model_args.trust_remote_code is set, but this model is not allowed to run remote code",
            hint="set trust_remote_code: true beside model_args, or use --trust_remote_code",
        )
    if model_type in HF_TYPES:
        for name in _OURS & arguments.keys():
            raise UsageError(f"model type '{model_type}' takes no argument '{name}'")
        for name, value in _FIXED.items():
            if arguments.pop(name, value) not in (value, None):
                raise UsageError(
                    f"model_args.{name} is always {value} here: {_FIXED_REASONS[name]}"
                )
    return arguments


def _check_folders(arguments: Mapping[str, Any], allow_pickle: bool) -> None:
    folder = local_folder(str(arguments["pretrained"]))
    if folder is not None:
        subfolder = folder / str(arguments.get("subfolder") or "")
        needed = () if arguments.get("gguf_file") else ("config.json",)
        check_model_folder(subfolder, allow_pickle=allow_pickle, needed=needed)
    for name, needed in (("delta", ("config.json",)), ("peft", ("adapter_config.json",))):
        if arguments.get(name):
            inner = local_folder(str(arguments[name]))
            if inner is not None:
                check_model_folder(inner, allow_pickle=allow_pickle, needed=needed)
    if isinstance(arguments.get("tokenizer"), str):
        local_folder(arguments["tokenizer"])
    quantized = arguments.get("autogptq")
    if isinstance(quantized, str) and not quantized.endswith(".safetensors") and not allow_pickle:
        raise refuse_pickle(quantized)


def _check_dtypes(arguments: Mapping[str, Any]) -> None:
    import torch

    names = [name for name, value in vars(torch).items() if isinstance(value, torch.dtype)]
    for argument in ("dtype", "mixed_precision_dtype"):
        value = arguments.get(argument)
        if value is None or (argument == "dtype" and value == "auto"):
            continue
        if not isinstance(value, str) or value not in names:
            raise UsageError(
                f"model_args.{argument}: {value!r} is no dtype{nearest(str(value), names)}",
                hint="e.g. float32, bfloat16, float16",
            )


def _parameters(loader: type[LM]) -> set[str]:
    """Names of a constructor's parameters, those of its bases where it passes them on."""
    names: set[str] = set()
    for kind in loader.__mro__:
        constructor = vars(kind).get("__init__")
        if constructor is None or kind is object:
            continue
        parameters = inspect.signature(constructor).parameters.values()
        names |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names - {"self"}


@contextmanager
def _load_failures(model_type: str, model_args: Mapping[str, Value]) -> Iterator[None]:
    """Turn what libraries raise while loading into one line that names the model."""
    name = model_args.get("pretrained") or model_args.get("model") or model_type
    try:
        yield
    except EvalguardError:
        raise
    except TypeError as error:
        raise _unknown_argument(model_type, model_args, error) or _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _unknown_argument(
    model_type: str, model_args: Mapping[str, Value], error: TypeError
) -> UsageError | None:
    from lm_eval.api.registry import get_model

    message = str(error)
    unknown = [name for name in model_args if f"argument '{name}'" in message]
    if not unknown or "unexpected keyword" not in message:
        return None
    return UsageError(
        f"model type '{model_type}' takes no argument '{unknown[0]}'"
        f"{nearest(unknown[0], _parameters(get_model(model_type)))}",
        hint=message,
    )


def _failed(name: Value, error: BaseException) -> EvaluationError:
    text = " ".join(str(error).split())
    where = f"{Path(str(name))}" if name else "the model"
    if "does not recognize this architecture" in text or "Unrecognized model" in text:
        return EvaluationError(
            f"{where}: this transformers does not know the architecture: {text[:200]}",
            hint="install a transformers that has it; or, if the folder brings its own code and "
            "you trust it, set trust_remote_code: true for this model",
        )
    if "trust_remote_code" in text:
        return EvaluationError(
            f"{where} brings its own Python code, which is not allowed to run",
            hint="if you trust it, set trust_remote_code: true for this model",
        )
    if "connect to" in text or "offline" in text.lower() or "internet" in text:
        return EvaluationError(
            f"there is no folder {where}, and no such model in the local Hugging Face cache; "
            "the hub cannot be reached",
            hint="give a path, or go online (HF_HUB_OFFLINE must not be set) and try again",
        )
    if "safetensors" in text and isinstance(error, OSError):
        return EvaluationError(
            f"{where} has no safetensors weights",
            hint=f"pickled weights need allow_pickle: true for this model ({text[:200]})",
        )
    reason = f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__
    return EvaluationError(f"{where} cannot be loaded: {reason}")
