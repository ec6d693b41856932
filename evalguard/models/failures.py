"""Failures of libraries in a line, while loading or answering; those that a smaller batch mends."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from evalguard.core.findings import Quote, quote_message
from evalguard.core.redaction import HF_HINT, redacted_text, unwritable
from evalguard.core.scorer import Request
from evalguard.errors import EvalguardError, EvaluationError, FallbackError, UsageError
from evalguard.installation import extra_command
from evalguard.models.arguments import TRANSFORMERS_ARGS, constructor_parameters, unknown_argument
from evalguard.models.scored_tokens import UnscorablePairError

if TYPE_CHECKING:
    from evalguard.core.settings import Value

_Result = TypeVar("_Result")
OUT_OF_MEMORY = "memory ran out"


class BatchTooLargeError(Exception):
    """A batch of several sequences is too large for the memory; a smaller one may not be.

    ``tokens`` and ``sequences`` are those of the batch; ``shared``: whether they share prefixes.
    """

    def __init__(self, message: str, *, tokens: int, sequences: int, shared: bool) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.sequences = sequences
        self.shared = shared


class BatchCutter(Protocol):
    """Something that cuts batches."""

    def make_room(self, found: BatchTooLargeError) -> bool:
        """Cut smaller batches from now on; return whether that can be."""


def retry_with_smaller_batches(
    scorers: Sequence[BatchCutter], attempt: Callable[[], _Result]
) -> _Result:
    """Do something, and anew with smaller batches of all scorers until there is room for it.

    All of it is done anew, so that its scores are those of the smaller batches throughout.

    Raises:
        FallbackError: batches are as small as they can be, with prefixes that are shared.
        EvaluationError: they are, and share none.
    """
    while True:
        try:
            return attempt()
        except BatchTooLargeError as error:
            # without the traceback, whose frames hold the memory
            failure = error.with_traceback(None)
        _release_memory()
        smaller = [scorer.make_room(failure) for scorer in scorers]
        if not any(smaller) and failure.shared:
            raise FallbackError(
                f"{OUT_OF_MEMORY} on one tree of prefixes: {failure}",
                giving_up="share_prefixes",
                hint="run: {share_prefixes: false}",
            )
        if not any(smaller):
            raise EvaluationError(
                f"{OUT_OF_MEMORY} on the smallest batch there is: {failure}",
                hint="a model of a narrower dtype, a smaller model_args.max_length or another "
                "machine",
            )


def _release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
            f"the model failed in {what}: {type(error).__name__}",
            quotes=quote_error(error),
            hint=_failure_hint(error),
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


def quote_error(error: BaseException) -> tuple[Quote, ...]:
    """What an exception of foreign code says while it has documents: it may repeat their words."""
    return quote_message(" ".join(str(error).split())[:300])


def _request_name(error: UnscorablePairError, requests: Sequence[Request]) -> str:
    """The task, and the document where the pairs of a call are its requests one by one."""
    request = requests[0]
    if request.kind != "loglikelihood":
        return f"task '{request.task}'"
    request = requests[error.position]
    return f"task '{request.task}', document {request.doc_id}"


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


class RecordingLoader:
    """Stands in for an auto class while it loads, and keeps what transformers reports."""

    def __init__(self, loader: Any, reports: list[dict[str, Any]]) -> None:
        self._loader = loader
        self._reports = reports

    def from_pretrained(self, *names: Any, **arguments: Any) -> Any:
        """Load, and keep the report: missing, unexpected and mismatched keys."""
        # Mismatched shapes are refused with their names; transformers would not name them.
        arguments["ignore_mismatched_sizes"] = True
        model, report = self._loader.from_pretrained(*names, **arguments, output_loading_info=True)
        self._reports.append(report)
        return model


class MisfitError(EvaluationError):
    """Weights of a model are not in its checkpoint, or in another shape: ``weights``, by name."""

    def __init__(self, message: str, *, hint: str, weights: Sequence[str]) -> None:
        super().__init__(message, hint=hint)
        self.weights = tuple(weights)


def refuse_random_weights(pretrained: str, report: Mapping[str, Any]) -> None:
    """Refuse a model with weights that its checkpoint does not have.

    transformers only warns, and fills them with random numbers.

    Raises:
        MisfitError: naming the first of them, and what usually makes such tensors missing.
    """
    mismatched = report.get("mismatched_keys") or ()
    other_shapes = sorted(_describe_key(key) for key in mismatched)
    if other_shapes:
        raise MisfitError(
            f"{pretrained} has other shapes for {len(other_shapes)} of the model's weights "
            f"({_name_some(other_shapes)})",
            hint="the sizes in config.json do not fit these weights",
            weights=[key if isinstance(key, str) else key[0] for key in mismatched],
        )
    missing = sorted(str(key) for key in report.get("missing_keys") or ())
    if missing:
        left_over = sorted(str(key) for key in report.get("unexpected_keys") or ())
        raise MisfitError(
            f"{pretrained} lacks {len(missing)} of the model's weights ({_name_some(missing)})",
            hint=_explain_missing(missing, left_over),
            weights=missing,
        )


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


_LAYER = re.compile(r"(?:^|\.)(\d+)\.")
_HEADS = ("lm_head", "embed_out", "output", "score")  # as modelling files call an output layer


def _explain_missing(missing: Sequence[str], left_over: Sequence[str]) -> str:
    """Say what tensors that a checkpoint does not hold usually mean.

    Args:
        missing: names that the model wants. left_over: names in the files that it does not want.
    """
    prefixes = _compare_prefixes(missing, left_over)
    if prefixes:
        stored, wanted = prefixes
        return (
            f"the files hold tensors of these names, but with {stored} where the model has "
            f"{wanted}: rename them, or save the checkpoint again from the model's own class"
        )
    if left_over:
        return (
            f"the files hold {len(left_over)} tensors that the model does not have "
            f"({_name_some(left_over)}): tensors were renamed, or the architecture in config.json "
            "is another one"
        )
    if all(name.split(".")[-2:-1] and name.split(".")[-2] in _HEADS for name in missing):
        return (
            "the output layer is missing from the files: one that is tied to the embedding is not "
            "saved, and then config.json has to say tie_word_embeddings: true; else save it too"
        )
    layers = {int(match[1]) for name in missing if (match := _LAYER.search(name))}
    whole = all(_LAYER.search(name) for name in missing)
    if whole and len(missing) > 4 * len(layers):
        first, last = min(layers), max(layers)
        shown = f"layer {first}" if first == last else f"layers {first} to {last}"
        return (
            f"all of {shown} is missing from the files: a shard was left out of the checkpoint or "
            "of its index, or config.json counts more layers than there are"
        )
    return (
        "the files hold no such tensors: they were lost when the checkpoint was written (a shard "
        "left out, a filter on names); write it again with all tensors"
    )


def _compare_prefixes(missing: Sequence[str], left_over: Sequence[str]) -> tuple[str, str] | None:
    """Where one renamed beginning explains most missing names: as stored, and as wanted."""
    stored = set(left_over)
    for name in missing:
        parts = name.split(".")
        for cut in range(len(parts) - 1):
            end, own = ".".join(parts[cut:]), ".".join(parts[:cut])
            for stored_name in left_over:
                if stored_name != end and not stored_name.endswith(f".{end}"):
                    continue
                theirs = stored_name.removesuffix(end).removesuffix(".")
                renamed = sum(
                    _with_prefix(wanted_name, own, theirs) in stored
                    for wanted_name in missing
                    if own == "" or wanted_name.startswith(f"{own}.")
                )
                if theirs != own and 2 * renamed > len(missing):
                    return tuple(f"'{path}.'" if path else "no prefix" for path in (theirs, own))  # type: ignore[return-value]
    return None


def _with_prefix(name: str, own: str, other: str) -> str:
    rest = name.removeprefix(f"{own}.") if own else name
    return f"{other}.{rest}" if other else rest


def _describe_key(key: Any) -> str:
    """A missing key's name; a mismatched one's with both shapes."""
    if isinstance(key, str):
        return key
    name, stored, wanted = key
    return f"{name}: {list(stored)} stored, {list(wanted)} in the model"
