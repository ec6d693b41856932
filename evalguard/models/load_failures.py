"""What libraries raise while a model loads, in one line that names the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.core.redaction import redacted_text
from evalguard.core.refused_writes import HF_HINT, unwritable
from evalguard.errors import EvalguardError, EvaluationError, UsageError
from evalguard.installation import extra_command
from evalguard.models.answer_failures import UNREACHABLE_HINT, is_unreachable
from evalguard.models.arguments import (
    TRANSFORMERS_ARGS,
    constructor_parameters,
    unknown_argument,
)

if TYPE_CHECKING:
    from evalguard.core.settings import Value


# model_args that name folders or hub ids
_LOCATION_ARGS = ("pretrained", "model", "tokenizer", "peft", "delta")


@contextmanager
def explain_load_failures(
    model_type: str, model_args: Mapping[str, Value], overrides: Mapping[str, Value]
) -> Iterator[None]:
    """Turn what libraries raise while loading into one line that names the model."""
    try:
        yield
    except EvalguardError:
        raise
    except TypeError as error:
        unknown = _unknown_argument(model_type, model_args, error)
        raise unknown or _load_error(model_type, model_args, overrides, error) from error
    except (Exception, SystemExit) as error:
        raise _load_error(model_type, model_args, overrides, error) from error


def _unknown_argument(
    model_type: str, model_args: Mapping[str, Value], error: TypeError
) -> UsageError | None:
    from lm_eval.api.registry import get_model

    message = str(error)
    unknown = [name for name in model_args if f"argument '{name}'" in message]
    if not unknown or "unexpected keyword" not in message:
        return None
    known = constructor_parameters(get_model(model_type)).keys() | TRANSFORMERS_ARGS
    return unknown_argument(model_type, unknown[0], known, hint=message)


def _load_error(
    model_type: str,
    model_args: Mapping[str, Value],
    overrides: Mapping[str, Value],
    error: BaseException,
) -> EvaluationError:
    text = " ".join(str(error).split())
    name = model_args.get("pretrained") or model_args.get("model") or model_type
    where = str(Path(str(name)))
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
    refused = unwritable(error, os.environ)
    if refused is not None:
        return EvaluationError(f"{where} cannot be loaded: {refused}", hint=HF_HINT)
    if "backend tokenizer" in text or "load tokenizer" in text:
        return EvaluationError(
            f"{model_args.get('tokenizer') or where} has no tokenizer that can be read: "
            f"{text[:200]}",
            hint="name the folder of its tokenizer: model_args.tokenizer",
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        return EvaluationError(
            f"model type '{model_type}' needs the package {error.name}, which is not installed",
            hint=f"pip install {error.name.partition('.')[0]}",
        )
    if isinstance(error, ModuleNotFoundError):  # as lm-eval raises it: with a text alone
        return EvaluationError(
            f"model type '{model_type}' needs packages that are not installed: {text[:200]}",
            hint=extra_command("api") if "[api]" in text else "install them",
        )
    if is_unreachable(error) and model_args.get("base_url"):
        return EvaluationError(
            f"no server answers at {redacted_text(str(model_args['base_url']))}",
            hint=UNREACHABLE_HINT,
        )
    if "connect to" in text or "offline" in text.lower() or "internet" in text:
        return _unreachable_error(where, model_args)
    if "safetensors" in text and isinstance(error, OSError):
        return EvaluationError(
            f"{where} has no safetensors weights",
            hint=f"pickled weights need allow_pickle: true for this model ({text[:200]})",
        )
    reason = f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__
    changed = ", ".join(f"config.{path} = {value!r}" for path, value in overrides.items())
    return EvaluationError(
        f"{where} cannot be loaded: {reason}",
        hint=f"it was loaded with {changed}" if changed else "",
    )


def _unreachable_error(where: str, model_args: Mapping[str, Value]) -> EvaluationError:
    """Name the part that is not a local folder: the model may be here and its tokenizer not."""
    parts = {name: str(model_args[name]) for name in _LOCATION_ARGS if model_args.get(name)}
    missing = next((name for name, text in parts.items() if not Path(text).is_dir()), None)
    if missing is None:
        return EvaluationError(
            f"{where} refers to files on the hub, which cannot be reached",
            hint="go online (HF_HUB_OFFLINE must not be set) and try again",
        )
    what = "model" if missing in ("pretrained", "model") else missing
    return EvaluationError(
        f"there is no folder {parts[missing]}, and no such {what} in the local Hugging Face "
        "cache; the hub cannot be reached",
        hint="give a path, or go online (HF_HUB_OFFLINE must not be set) and try again",
    )
