"""What a model raises while it answers, in one line that says what was asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from evalguard.core.reports.findings import Quote, quote_message
from evalguard.core.scorer import Request
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.models.hf.scored_tokens import UnscorablePairError
from evalguard.models.hf.smaller_batches import BatchTooLargeError

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
