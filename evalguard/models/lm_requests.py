"""A block of requests, put to an lm-eval model as lm-eval does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evalguard.core.early_end import without_early_end
from evalguard.core.scorer import (
    LENGTH_NAMES,
    Request,
    RequestKind,
)
from evalguard.errors import EvaluationError
from evalguard.models.generated_texts import record_endings
from evalguard.models.served.answer_checks import check_answers
from evalguard.models.served.calls import run_method

if TYPE_CHECKING:
    pass


def get_request_kind(requests: Sequence[Request]) -> RequestKind:
    """Return the one kind of all requests of a block.

    Raises:
        EvaluationError: they are of several.
    """
    kinds = sorted({request.kind for request in requests})
    if len(kinds) > 1:
        raise EvaluationError(f"one block asks for {' and '.join(kinds)}; one kind is allowed")
    return kinds[0]


def build_arguments(request: Request, most_tokens: int | None) -> tuple[Any, ...]:
    """lm-eval's arguments of a request; no more than ``most_tokens`` are generated.

    What ends a text early is none of them (core/early_end.py): a model that does not know of it
    writes the whole text.
    """
    if request.kind != "generate_until":
        return request.arguments
    context, options = request.arguments
    options = without_early_end(options) if isinstance(options, dict) else {}
    if most_tokens is not None:
        given = [name for name in LENGTH_NAMES if options.get(name) is not None]
        for name in given or LENGTH_NAMES[:1]:
            options[name] = min(int(options.get(name, most_tokens)), most_tokens)  # type: ignore[arg-type]
    return (context, options)


def send_requests(
    lm: Any, kind: str, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Answer requests of one kind by the model's own method, in the order asked."""
    with check_answers(lm), record_endings(lm):
        return run_method(lm, kind, requests, arguments)
