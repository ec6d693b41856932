"""What libraries raise while a model loads, in one line that names the model."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.redaction import redacted_text
from evalguard.core.refused_writes import HF_HINT, unwritable
from evalguard.core.scorer import Request
from evalguard.errors import EvalguardError, EvaluationError, UsageError, nearest
from evalguard.models.arguments import TRANSFORMERS_ARGS, constructor_parameters
from evalguard.models.hf.batch_cuts import BatchTooLargeError
from evalguard.models.hf.scored_tokens import UnscorablePairError

if TYPE_CHECKING:
    from evalguard.core.settings import Value, Variant


# arguments of transformers 4, which lm-eval's users write
_BITSANDBYTES = ("load_in_4bit", "load_in_8bit")
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
    bits = [name for name in unknown if name in _BITSANDBYTES]
    if bits:
        return UsageError(
            f"model_args.{bits[0]}: transformers takes no such argument any more",
            hint=f"quantization_config: {{quant_method: bitsandbytes, {bits[0]}: true}}",
        )
    return UsageError(
        f"model type '{model_type}' takes no argument '{unknown[0]}'"
        f"{nearest(unknown[0], constructor_parameters(get_model(model_type)) | TRANSFORMERS_ARGS)}",
        hint=message,
    )


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
            hint="pip install 'lm-evalguard[api]'" if "[api]" in text else "install them",
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


# Assigned: what a scorer is told of the assignment that its model carries.


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedModel:
    """The settings of a loaded model, as they were read back.

    Attributes:
        effective: setting name -> value read back.
        provenance: digests of weights and code; None where one of them cannot be proven, so that
            scores must not be cached.
        revision: by which the user vouches for a served model; "": nobody does.
        threads: CPU threads that torch computes with; 0: as many as it uses at the time.
        caveats: what a report has to say of it.
        on_smaller_budget: takes the token budget that is left where memory ran out.
    """

    effective: Mapping[str, Value] = field(default_factory=dict)
    provenance: Mapping[str, Value] | None = None
    revision: str = ""
    threads: int = 0
    caveats: tuple[str, ...] = ()
    on_smaller_budget: Callable[[int], None] = lambda _: None


# Lets the loaded model carry a variant's assignment instead of the one it carries; None: it cannot.
Reassigner = Callable[["Variant"], AssignedModel | None]


# How a loaded model cuts its batches, and by which path it comes to its scores.


def read_batching(lm: Any) -> dict[str, Value]:
    """Return batch_size, token_budget, scorer and shares_prefixes, read back from an lm-eval model.

    None for what it does not show, or has not.
    """
    size = getattr(lm, "batch_size", None)
    told: dict[str, Value] = {
        "batch_size": size if isinstance(size, (int, str)) else None,
        "token_budget": None,
        "scorer": None,
        "shares_prefixes": None,
    }
    if not hasattr(lm, "score_pairs"):
        return told
    if not lm.own_path:
        return {**told, "scorer": "harness", "shares_prefixes": False}
    by_tokens = lm.sequences is None
    return {
        "batch_size": lm.sequences,
        "token_budget": lm.token_budget if by_tokens else None,
        "scorer": "fast" if lm.only_scored_positions else "full logits",
        "shares_prefixes": lm.sharing is not None,
    }


# A conversation as text, by a model's own chat template.


def format_chat(
    lm: Any, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
) -> str:
    """Apply a model's chat template to a conversation.

    Raises:
        EvaluationError: the model has none.
    """
    history = [dict(message) for message in messages]
    try:
        made = lm.apply_chat_template(history, add_generation_prompt=add_generation_prompt)
        # Clients of chat endpoints send the conversation itself: they wrap its JSON.
        return str(getattr(made, "prompt", made))
    except Exception as error:
        raise EvaluationError(
            f"the model's chat template cannot be applied: {format_error(error)}",
            hint="run without --apply_chat_template, or give the tokenizer a chat template",
        ) from error


# What a model raises while it answers, in one line that says what was asked of it.


# How torch names a place that a model has no position for, be they embedded, biases or masks.
_TOO_LONG = ("out of bounds", "out of range", "must match the existing size", "match the size of")

# How requests, aiohttp and lm-eval's clients say that no server answers.
_NO_SERVER = (
    "connection refused", "connectionerror", "cannot connect", "clientconnector",
    "serverdisconnected", "valid response after", "connection aborted", "connection reset",
    "service unavailable", "bad gateway", "gateway time",
)  # fmt: skip
UNREACHABLE_HINT = (
    "is the server running, and does base_url lead to it? Look at its log, start it again, and "
    "run the same command: what was answered is kept"
)


@contextmanager
def explain_failures(doing: str, requests: Sequence[Request]) -> Iterator[None]:
    """Turn whatever a model raises into one line that says what was asked of it.

    Raises:
        EvaluationError: naming the task, and the document where that is known.
        NoRoomError: as it is: smaller batches may do.
    """
    try:
        yield
    except UnscorablePairError as error:
        raise EvaluationError(
            f"{_request_name(error, requests)}: {error}", hint=error.hint
        ) from error
    except (EvalguardError, BatchTooLargeError):
        raise
    except (Exception, SystemExit) as error:
        tasks = ", ".join(sorted({request.task for request in requests}))
        what = f"{doing} of {tasks}" if tasks else doing
        raise EvaluationError(
            f"the model failed in {what}: {format_error(error)}", hint=_failure_hint(error)
        ) from error


def is_unreachable(error: BaseException) -> bool:
    """Whether a server did not answer, or stopped answering."""
    text = f"{type(error).__name__}: {error}".lower()
    return isinstance(error, ConnectionError) or any(part in text for part in _NO_SERVER)


def _failure_hint(error: BaseException) -> str:
    message = str(error).lower()
    if is_unreachable(error):
        return UNREACHABLE_HINT
    if "memory" in message:
        return "try a smaller --batch_size"
    if any(part in message for part in _TOO_LONG):
        return (
            "if a text is longer than the model reads, whatever its config says: "
            "model_args.max_length, the same for base and candidate"
        )
    return ""


def format_error(error: BaseException) -> str:
    """An exception's class and message, without line breaks and not too long."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _request_name(error: UnscorablePairError, requests: Sequence[Request]) -> str:
    """The task, and the document where the pairs of a call are its requests one by one."""
    request = requests[0]
    if request.kind != "loglikelihood":
        return f"task '{request.task}'"
    request = requests[error.position]
    return f"task '{request.task}', document {request.doc_id}"


# Keep libraries off stdout, which belongs to results, and their progress bars off the screen.


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """Send what libraries print to stderr, without their progress bars.

    Several threads may ask for it at the same time: the last one to leave puts all back.
    """
    with _silencing:
        if not _silent:
            stack = contextlib.ExitStack()
            stack.enter_context(_silence())
        else:
            stack = _silent[0]
        _silent.append(stack)
    try:
        yield
    finally:
        with _silencing:
            _silent.pop()
            if not _silent:
                stack.close()


_silencing = threading.Lock()
_silent: list[contextlib.ExitStack] = []  # once for each that wants it


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    from tqdm import tqdm  # type: ignore[import-untyped]
    from transformers.utils import logging

    shown, start = logging.is_progress_bar_enabled(), tqdm.__init__
    logging.disable_progress_bar()
    # lm-eval's model types show bars of their own, and have no switch that all of them know.
    tqdm.__init__ = partialmethod(start, disable=True)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        tqdm.__init__ = start
        if shown:
            logging.enable_progress_bar()
