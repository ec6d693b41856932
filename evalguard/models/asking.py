"""A block of requests, put to an lm-eval model as lm-eval does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def _is_completions_client(lm: Any) -> bool:
    return any(kind.__module__ == "lm_eval.models.openai_completions" for kind in type(lm).__mro__)


def _with_own_seeds(
    requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]], *, seed: int
) -> list[tuple[Any, ...]]:
    """Give the repeats of a request seeds of their own: by one seed, a server repeats its answer.

    The first keeps the seed that lm-eval sends, or that the task gives.
    """
    seen: dict[tuple[str, int, str], int] = {}
    seeded = []
    for request, (context, options) in zip(requests, arguments, strict=True):
        key = (request.task, request.doc_id, str(request.arguments))
        repeat = seen[key] = seen.get(key, -1) + 1
        if repeat:
            options = {**options, "seed": int(options.get("seed", seed)) + repeat}
        seeded.append((context, options))
    return seeded


@contextmanager
def checked_logprobs(lm: Any) -> Iterator[None]:
    """Refuse a completions server's answers that do not cover the tokens of their prompts.

    lm-eval sums ``token_logprobs[ctxlen:-1]`` of an echoed prompt and one generated token: of a
    server that does not echo, that is an empty sum, a log-likelihood of 0 over no tokens.

    Raises:
        EvaluationError: while ``lm`` is asked.
    """
    parse = getattr(lm, "parse_logprobs", None)
    if parse is None or "openai_completions" not in getattr(parse, "__module__", ""):
        yield
        return

    def checking(outputs: Any, tokens: Any = None, ctxlens: Any = None, **more: Any) -> Any:
        _check_logprobs(outputs, tokens, ctxlens)
        return parse(outputs=outputs, tokens=tokens, ctxlens=ctxlens, **more)

    lm.parse_logprobs = checking
    try:
        yield
    finally:
        del lm.parse_logprobs


def _check_logprobs(outputs: Any, tokens: Any, ctxlens: Any) -> None:
    hint = (
        "evalguard needs the log-probability of every prompt token (completions with echo=True "
        "and logprobs=1), for the token ids it sends: vLLM and llama-cpp-python give them; "
        "or compare the model itself with --model hf"
    )
    answers = outputs if isinstance(outputs, list) else [outputs]
    choices = []
    for answer in answers:
        found = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise EvaluationError("the server's answer has no list of choices", hint=hint)
        choices += sorted(found, key=lambda one: one.get("index", 0))
    prompts = list(tokens) if tokens is not None else []
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]
    if len(choices) != len(ctxlens):
        raise EvaluationError(
            f"the server gave {len(choices)} answers to {len(ctxlens)} prompts", hint=hint
        )
    for number, (choice, context) in enumerate(zip(choices, ctxlens, strict=True)):
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        given = len(logprobs) if isinstance(logprobs, list) else 0
        ids = prompts[number] if number < len(prompts) else None
        expected = len(ids) if isinstance(ids, (list, tuple)) else context + 1
        # One more, for the token that was generated.
        exact = isinstance(ids, (list, tuple))
        if given < expected + 1 or (exact and given != expected + 1):
            raise EvaluationError(
                f"the server gave {given} log-probabilities for a prompt of {expected} tokens and "
                "one generated token",
                hint=hint,
            )
        scored = (logprobs or [])[context:-1]
        if not all(isinstance(one, (int, float)) for one in scored):
            raise EvaluationError(
                "the server gave no log-probability for a token of the continuation", hint=hint
            )


def ask(
    lm: Any, kind: str, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Answer requests of one kind by the model's own method, in the order asked."""
    from lm_eval.api.instance import Instance

    if kind == "generate_until" and _is_completions_client(lm):
        arguments = _with_own_seeds(requests, arguments, seed=lm._seed)

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
    with checked_logprobs(lm):
        return list(
            method(instances, **({"disable_tqdm": True} if "disable_tqdm" in known else {}))
        )
