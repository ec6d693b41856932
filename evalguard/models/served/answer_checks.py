"""What a server's answers have to show before they count as scores, and seeds of repeats."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from evalguard.core.findings import Quote
from evalguard.core.scorer import Request
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.served.shown_logprobs import (
    LOGPROBS_HINT,
    PromptAnswer,
    TokenAnswer,
    check_fed,
    check_prompt,
    read_choices,
    read_completions,
    read_generate,
)

# What a server adds to the name that it was asked for: the date of a release, the kind of file.
_RELEASE_SUFFIX = re.compile(r"[-@:]([0-9]{4}[0-9-]*(-?v[0-9]+)?|latest)|\.gguf")
# The prompts of the request that is under way: of a generation, nothing else tells what was sent.
_SENT: ContextVar[Sequence[Any]] = ContextVar("_SENT", default=())


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


def is_chat(lm: Any) -> bool:
    """Whether a client asks a chat endpoint, of which no prompt has log-probabilities."""
    if method_module(lm, "_create_payload") != "openai_completions":
        return False
    from lm_eval.models.openai_completions import LocalChatCompletion

    return isinstance(lm, LocalChatCompletion)


def with_conversations(lm: Any, arguments: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Wrap conversations as the client's own ``apply_chat_template`` returns them.

    A client without tokenizer sends the conversation itself; requests are plain data, where its
    JSON is a text.

    Raises:
        UsageError: a chat endpoint is asked in plain prompts.
    """
    if getattr(lm, "tokenized_requests", True):
        return arguments
    from lm_eval.models.api_models import JsonChatStr

    chat = is_chat(lm)
    wrapped = []
    for context, *rest in arguments:
        talks = isinstance(context, str) and context.startswith('[{"role":')
        if chat and not talks:
            raise UsageError(
                "a chat endpoint needs conversations, and this task is asked in plain prompts",
                hint="--apply_chat_template makes conversations of them",
            )
        wrapped.append((JsonChatStr(context) if talks else context, *rest))
    return wrapped


READERS: dict[str, Callable[[Sequence[Any]], list[PromptAnswer]]] = {
    "openai_completions": read_completions,
    "sglang_generate_API": read_generate,
}
"""By the module of lm-eval that ``parse_logprobs`` comes from: how answers are read."""


@contextmanager
def check_answers(lm: Any) -> Iterator[None]:
    """Refuse a server's answers of another model, or that do not cover their prompts' tokens.

    lm-eval sums ``token_logprobs[ctxlen:-1]`` of an echoed prompt and one generated token: of a
    server that does not echo, that is an empty sum, a log-likelihood of 0 over no tokens. Type
    sglang-generate does the like. Log-likelihoods come as ``TokenAnswer``.

    Raises:
        EvaluationError: while ``lm`` is asked.
    """
    own: dict[str, Callable[..., Any]] = {}
    read = READERS.get(method_module(lm, "parse_logprobs"))
    if read is not None:
        own["parse_logprobs"] = _checked_logprobs(lm, read)
    if method_module(lm, "parse_generations") == "openai_completions":
        own["parse_generations"] = _checked_generations(lm)
    if own:
        own["model_call"] = _noting_prompts(lm.model_call)
        own["amodel_call"] = _noting_prompts_async(lm.amodel_call)
    for name, method in own.items():
        setattr(lm, name, method)
    try:
        yield
    finally:
        for name in own:
            delattr(lm, name)


def _noting_prompts(call: Callable[..., Any]) -> Callable[..., Any]:
    def noting(messages: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        _SENT.set(messages)
        return call(messages, *arguments, **options)

    return noting


def _noting_prompts_async(call: Callable[..., Any]) -> Callable[..., Any]:
    async def noting(
        session: Any, sem: Any, messages: Sequence[Any], *arguments: Any, **options: Any
    ) -> Any:
        _SENT.set(messages)  # every task has a context of its own
        return await call(session, sem, messages, *arguments, **options)

    return noting


def _as_list(outputs: Any) -> list[Any]:
    return outputs if isinstance(outputs, list) else [outputs]


def _checked_logprobs(
    lm: Any, read: Callable[[Sequence[Any]], list[PromptAnswer]]
) -> Callable[..., Any]:
    parse = lm.parse_logprobs

    def checking(outputs: Any, tokens: Any = None, ctxlens: Any = None, **more: Any) -> Any:
        answers = _as_list(outputs)
        check_name(answers, lm.model)
        contexts = list(ctxlens or ())
        prompt_answers = read(answers)
        check_prompts(lm, prompt_answers, _prompts(tokens), contexts)
        parsed = parse(outputs=outputs, tokens=tokens, ctxlens=ctxlens, **more)
        cut = [
            prompt_answer.cut(context)
            for prompt_answer, context in zip(prompt_answers, contexts, strict=True)
        ]
        names = getattr(lm, "token_names", None)
        return [
            TokenAnswer.of(
                answer, prompt_answer, None if names is None else names.identify(prompt_answer.tops)
            )
            for answer, prompt_answer in zip(parsed, cut, strict=True)
        ]

    return checking


def _prompts(tokens: Any) -> list[Sequence[int] | None]:
    prompts = list(tokens) if tokens is not None else []
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]
    return [prompt if isinstance(prompt, (list, tuple)) else None for prompt in prompts]


def check_prompts(
    lm: Any,
    found: Sequence[PromptAnswer],
    prompts: Sequence[Sequence[int] | None],
    contexts: Sequence[int],
) -> None:
    """Refuse answers that do not cover their prompts, or are those of other prompts.

    Args:
        lm: whose ``echoes_prompts`` says that what it echoes is what it was sent.
        prompts: the ids that were sent, None where texts were; ``contexts``: their tokens of
            context.

    Raises:
        EvaluationError: for the first such answer.
    """
    if len(found) != len(contexts):
        raise EvaluationError(
            f"the server gave {len(found)} answers to {len(contexts)} prompts", hint=LOGPROBS_HINT
        )
    given = [*prompts, *[None] * (len(contexts) - len(prompts))]
    for answer, ids, context in zip(found, given, contexts, strict=True):
        check_prompt(answer, ids, context)
        if ids is not None and getattr(lm, "echoes_prompts", False) and not echoes(lm, answer, ids):
            raise EvaluationError(
                "the server answered another prompt than it was sent: what it echoes is not its "
                "text",
                quotes=(Quote(what="prompt", text=" ".join(answer.text.split())[:60]),),
                hint="answers may be exchanged between requests: try --batch_size 1 and "
                "num_concurrent 1, or another version of the server",
            )


def echoes(lm: Any, answer: PromptAnswer, ids: Sequence[int]) -> bool:
    """Whether an answer's text holds that of the prompt, spaces aside.

    Servers write special tokens, as vLLM does, or leave them out. False as well where only the
    server could say what the text of a prompt is.
    """
    tokenizer: Any = getattr(lm, "tokenizer", None)
    if not hasattr(tokenizer, "decode") or getattr(lm, "tokenizer_backend", None) == "remote":
        return False
    echoed = "".join(answer.text.split())
    for skips in (True, False):
        try:
            text = tokenizer.decode(list(ids), skip_special_tokens=skips)
        except TypeError:  # one that knows no such option
            text = tokenizer.decode(list(ids))
        wanted = "".join(str(text).split())
        if wanted and wanted in echoed:
            return True
    return False


def check_name(answers: Sequence[Any], wanted: Any) -> None:
    """Refuse answers that another model signs; a server that names none is taken at its word.

    Raises:
        EvaluationError: with both names.
    """
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


def _checked_generations(lm: Any) -> Callable[..., Any]:
    parse = lm.parse_generations

    def checking(outputs: Any, *_: Any, **more: Any) -> Any:
        answers = _as_list(outputs)
        check_name(answers, lm.model)
        check_generations(answers, _SENT.get())
        return parse(outputs=outputs, **more)

    return checking


def check_generations(answers: Sequence[Any], sent: Sequence[Any]) -> None:
    """Refuse generations that are not one per prompt, or of prompts that were cut.

    Args:
        sent: the prompts, as token ids or texts; () where they are not known.

    Raises:
        EvaluationError: with what was found.
    """
    number = sum(len(read_choices(answer)) for answer in answers)
    if sent and number != len(sent):
        raise EvaluationError(
            f"the server gave {number} answers to {len(sent)} prompts",
            hint="--batch_size 1 asks one prompt at a time",
        )
    ids = [
        prompt
        for prompt in sent
        if isinstance(prompt, (list, tuple)) and prompt and _is_id(prompt[0])
    ]
    usage = answers[0].get("usage") if len(answers) == 1 else None
    if ids and len(ids) == len(sent) and isinstance(usage, dict):
        fed = usage.get("prompt_tokens")
        check_fed(fed if isinstance(fed, int) else None, [len(prompt) for prompt in ids])


def _is_id(value: Any) -> bool:
    return isinstance(value, int)
