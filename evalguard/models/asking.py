"""A block of requests, put to an lm-eval model as lm-eval does."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from evalguard.errors import EvaluationError
from evalguard.models.generated_length import LENGTH_NAMES
from evalguard.scorer import Request, RequestKind


def kind_of(requests: Sequence[Request]) -> RequestKind:
    """Return the one kind of all requests of a block.

    Raises:
        EvaluationError: they are of several.
    """
    kinds = sorted({request.kind for request in requests})
    if len(kinds) > 1:
        raise EvaluationError(f"one block asks for {' and '.join(kinds)}; one kind is allowed")
    return kinds[0]


def arguments_of(request: Request, most_tokens: int | None) -> tuple[Any, ...]:
    """lm-eval's arguments of a request; no more than ``most_tokens`` are generated."""
    if request.kind != "generate_until":
        return request.arguments
    context, options = request.arguments
    options = dict(options) if isinstance(options, dict) else {}
    if most_tokens is not None:
        given = [name for name in LENGTH_NAMES if options.get(name) is not None]
        for name in given or LENGTH_NAMES[:1]:
            options[name] = min(int(options.get(name, most_tokens)), most_tokens)  # type: ignore[arg-type]
    return (context, options)


def ask(
    lm: Any, kind: str, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Answer requests of one kind by the model's own method, in the order asked."""
    from lm_eval.api.instance import Instance

    instances = [
        Instance(
            request_type=request.kind,
            doc={},
            arguments=asked,
            idx=request.index,
            metadata=(request.task, request.doc_id, 1),
        )
        for request, asked in zip(requests, arguments, strict=True)
    ]
    method = getattr(lm, kind)
    known = inspect.signature(method).parameters
    return list(method(instances, **({"disable_tqdm": True} if "disable_tqdm" in known else {})))
