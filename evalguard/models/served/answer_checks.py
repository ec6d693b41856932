"""What a server's answers have to show before they count as scores, and seeds of repeats."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evalguard.core.scorer import Request
from evalguard.errors import EvaluationError

_LOGPROBS_HINT = (
    "evalguard needs the log-probability of every prompt token (completions with echo=True "
    "and logprobs=1), for the token ids it sends: vLLM and llama-cpp-python give them; "
    "or compare the model itself with --model hf"
)
# What a server adds to the name that it was asked for: the date of a release, the kind of file.
_RELEASE_SUFFIX = re.compile(r"[-@:]([0-9]{4}[0-9-]*(-?v[0-9]+)?|latest)|\.gguf")


def method_module(lm: Any, method: str) -> str:
    """The module of lm-eval that a model's method comes from, by its last name; "" if none."""
    return str(getattr(getattr(lm, method, None), "__module__", "")).rpartition(".")[2]


def with_own_seeds(
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
def check_answers(lm: Any) -> Iterator[None]:
    """Refuse a server's answers of another model, or that do not cover their prompts' tokens.

    lm-eval sums ``token_logprobs[ctxlen:-1]`` of an echoed prompt and one generated token: of a
    server that does not echo, that is an empty sum, a log-likelihood of 0 over no tokens. Types
    gguf and sglang-generate do the like.

    Raises:
        EvaluationError: while ``lm`` is asked.
    """
    own: dict[str, Callable[..., Any]] = {}
    logprobs = {"openai_completions": _check_logprobs, "sglang_generate_API": _check_sglang}
    check = logprobs.get(method_module(lm, "parse_logprobs"))
    if check is not None:
        own["parse_logprobs"] = _with_check(lm.parse_logprobs, check, lm)
    if method_module(lm, "parse_generations") == "openai_completions":
        own["parse_generations"] = _with_check(lm.parse_generations, None, lm)
    if method_module(lm, "gguf_completion") == "gguf":
        own["gguf_completion"] = _with_gguf_check(lm.gguf_completion)
    for name, method in own.items():
        setattr(lm, name, method)
    try:
        yield
    finally:
        for name in own:
            delattr(lm, name)


_AnswerCheck = Callable[[Sequence[Any], Any, Any], None]


def _with_check(
    parse: Callable[..., Any], check: _AnswerCheck | None, lm: Any
) -> Callable[..., Any]:
    def checking(outputs: Any, tokens: Any = None, ctxlens: Any = None, **more: Any) -> Any:
        answers = outputs if isinstance(outputs, list) else [outputs]
        _check_name(answers, lm.model)
        if check is None:
            return parse(outputs=outputs, **more)
        check(answers, tokens, ctxlens)
        return parse(outputs=outputs, tokens=tokens, ctxlens=ctxlens, **more)

    return checking


def _check_name(answers: Sequence[Any], wanted: Any) -> None:
    """Refuse answers that another model signs; a server that names none is taken at its word."""
    for answer in answers:
        name = answer.get("model") if isinstance(answer, dict) else None
        if isinstance(name, str) and name and not _is_same_model(name, str(wanted)):
            raise EvaluationError(
                f"the server was asked for model '{wanted}' and answers as '{name}'",
                hint="start the server with the model that is meant, or give the name that it "
                "answers with (model_args: {model: NAME, tokenizer: FOLDER}); /v1/models lists "
                "its models",
            )


def _is_same_model(name: str, wanted: str) -> bool:
    """Whether two names differ at most in folder, organisation, case, and a release of one."""
    short, long = sorted((_last_part(name), _last_part(wanted)), key=len)
    return long.startswith(short) and bool(_RELEASE_SUFFIX.fullmatch(long[len(short) :] or "-0000"))


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _check_logprobs(answers: Sequence[Any], tokens: Any, ctxlens: Any) -> None:
    """Of completions: those of the prompt, and of the token that was generated."""
    choices = []
    for answer in answers:
        found = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise EvaluationError("the server's answer has no list of choices", hint=_LOGPROBS_HINT)
        choices += sorted(found, key=lambda one: one.get("index", 0))
    given = [(choice.get("logprobs") or {}).get("token_logprobs") for choice in choices]
    _check_counts(given, tokens, ctxlens, generated=1)


def _check_sglang(answers: Sequence[Any], tokens: Any, ctxlens: Any) -> None:
    """Of sglang's own endpoint: (log-probability, id, text) of each token of the prompt."""
    given = []
    for answer in answers:
        about = answer.get("meta_info") if isinstance(answer, dict) else None
        found = about.get("input_token_logprobs") if isinstance(about, dict) else None
        given.append([one[0] for one in found] if isinstance(found, list) else None)
    _check_counts(given, tokens, ctxlens, generated=0)


def _check_counts(given: Sequence[Any], tokens: Any, ctxlens: Any, *, generated: int) -> None:
    """Compare log-probabilities of each prompt with its tokens.

    Args:
        given: a list of each prompt's, as a server gave it.
        tokens: the prompts' ids, or texts; ``ctxlens``: how many of them are context.
        generated: how many more a server gives than the prompt has tokens.
    """
    prompts = list(tokens) if tokens is not None else []
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]
    if len(given) != len(ctxlens):
        raise EvaluationError(
            f"the server gave {len(given)} answers to {len(ctxlens)} prompts", hint=_LOGPROBS_HINT
        )
    for number, (logprobs, context) in enumerate(zip(given, ctxlens, strict=True)):
        found = logprobs if isinstance(logprobs, list) else []
        ids = prompts[number] if number < len(prompts) else None
        exact = isinstance(ids, (list, tuple))
        expected = len(ids) if isinstance(ids, (list, tuple)) else context + 1
        if len(found) < expected + generated or (exact and len(found) != expected + generated):
            raise EvaluationError(
                f"the server gave {len(found)} log-probabilities for a prompt of {expected} tokens"
                + (" and one generated token" if generated else ""),
                hint=_LOGPROBS_HINT,
            )
        scored = found[context : len(found) - generated]
        if not all(isinstance(one, (int, float)) for one in scored):
            raise EvaluationError(
                "the server gave no log-probability for a token of the continuation",
                hint=_LOGPROBS_HINT,
            )


def _with_gguf_check(complete: Callable[..., Any]) -> Callable[..., Any]:
    """A gguf server's completions, refused where no token of the continuation has a number."""

    def checking(context: str, continuation: str | None = None, **more: Any) -> Any:
        answer = complete(context=context, continuation=continuation, **more)
        if not continuation:
            return answer
        choices = answer.get("choices") if isinstance(answer, dict) else None
        logprobs = (choices[0].get("logprobs") if choices else None) or {}
        given = list(logprobs.get("token_logprobs") or [])[:-1]
        offsets = list(logprobs.get("text_offset") or [])
        end = len(context) + len(continuation)
        scored = [one for one, at in zip(given, offsets, strict=False) if len(context) <= at < end]
        echoed = bool(offsets) and (offsets[0] < len(context) or not context)
        if not (echoed and scored and all(isinstance(one, (int, float)) for one in scored)):
            raise EvaluationError(
                "the server gave no log-probabilities for the tokens of a continuation",
                hint=_LOGPROBS_HINT,
            )
        return answer

    return checking
