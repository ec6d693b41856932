"""A few requests to a server before it is asked for scores: what does it give, and is it sound?"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.chat import read_chat_request
from evalguard.core.findings import Finding, Quote, quote_message
from evalguard.core.redaction import redacted_text
from evalguard.core.scorer import LENGTH_NAMES, Request
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.models.arguments import CHAT_TYPES, check_shows_likelihoods
from evalguard.models.served.answer_checks import (
    READERS,
    check_generations,
    check_name,
    check_prompts,
    echoes,
    is_chat,
    method_module,
    with_conversations,
)
from evalguard.models.served.exchange import (
    BrokenStreamError,
    HttpAnswer,
    ask_server,
    explain_exchange,
    read_answer,
)
from evalguard.models.served.repeated_answers import (
    LONG_PROMPT,
    GreedyAnswer,
    ProbePrompts,
    check_repeated_prompts,
    check_repeated_texts,
    fit_length,
    make_prompts,
)
from evalguard.models.served.shown_logprobs import (
    LOGPROBS_HINT,
    TOP_ARGUMENT,
    PromptAnswer,
    choice_index,
    read_choices,
    read_generated_tokens,
)

# Enough to tell two prompts apart, and read in no time.
_PROMPT_TOKENS, _FEWEST_TOKENS = 16, 3
_GENERATED = 4
# Tokens of a greedy text that is compared with itself.
_COMPARED = 16
# Seconds between tries of a server that is busy; it may ask for another pause, within the longest.
_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
_BUSY = (408, 425, 429, 500, 502, 503, 504)
# A change of log-probabilities by which one cause is told from another, in nats.
_CHANGE = 0.25
_OF_PROMPTS = ("loglikelihood", "loglikelihood_rolling")
_TOOLS_HINT = (
    "start it so that it reads tool calls: vLLM with --enable-auto-tool-choice --tool-call-parser "
    "NAME, SGLang with --tool-call-parser NAME, llama.cpp with --jinja"
)
_URL_HINT = (
    "base_url must lead to the server's completions, e.g. http://127.0.0.1:8000/v1/completions, "
    "or /v1/chat/completions for chat"
)
# With which servers refuse what they do not know.
_NOT_KNOWN = (400, 404, 422, 500, 501)


class RefusedRequestError(EvaluationError):
    """A server refuses a request, with ``status``."""

    def __init__(
        self, message: str, *, status: int, hint: str = "", quotes: tuple[Quote, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint, quotes=quotes)
        self.status = status


def probe_server(lm: Any, requests: Sequence[Request]) -> tuple[Finding, ...]:
    """Ask a served model a handful of requests of the kinds that are to come, and look closely.

    Of prompts: is there one log-probability for each token; do they belong to it (the last token
    is changed, and nothing before it may move); does the prompt matter; is the answer the same in
    a batch and beside other requests; does what the server echoes show which prompt it has read
    (``lm.echoes_prompts``: then every answer has to). Of generations: one text for each prompt.
    Of both: is a prompt of several cache blocks answered alike whenever it is asked
    (``repeated_answers``)? Any other model is left alone, but for one that ``probe_caches`` itself.

    Args:
        requests: some of those that are to come.

    Returns:
        By how much answers vary, where that is no reason to refuse them.

    Raises:
        UsageError: the model type cannot do what is needed, whatever server there is.
        EvaluationError: the server does not answer, or not soundly; with what it lacks.
    """
    if hasattr(lm, "probe_caches"):
        return tuple(lm.probe_caches(requests))
    findings: list[Finding] = []
    of_prompts = [request for request in requests if request.kind in _OF_PROMPTS]
    generating = [request for request in requests if request.kind == "generate_until"]
    if of_prompts:
        _check_type(lm, of_prompts[0])
        # Reversed ids, sent as a text, would come back as other ones.
        as_ids = bool(getattr(lm, "tokenized_requests", True))
        if as_ids and method_module(lm, "parse_logprobs") in READERS:
            ids = _probe_ids(lm, of_prompts)
            if len(set(ids)) > 1:
                _probe_prompts(lm, ids)
                findings += _probe_long_prompts(lm, of_prompts)
    if generating and method_module(lm, "parse_generations") in READERS:
        _probe_generations(lm, generating)
        greedy = [request for request in generating if _is_greedy(request)]
        if greedy:
            findings += _probe_long_generations(lm, greedy)
    return tuple(findings)


def _check_type(lm: Any, request: Request) -> None:
    """Refuse a client that has no log-probabilities of prompts for any server."""
    model = str(getattr(lm, "model", ""))
    if is_chat(lm):
        check_shows_likelihoods(CHAT_TYPES[0], model, request.task)
    elif method_module(lm, "loglikelihood") == "openai_completions":
        check_shows_likelihoods("openai-completions", model, request.task)


def _probe_ids(lm: Any, requests: Sequence[Request]) -> list[int]:
    """The ids of a short prompt with at least two different tokens, from what is to be asked."""
    best: list[int] = []
    for request in requests:
        text = "".join(part for part in request.arguments if isinstance(part, str))
        ids = _shortened(lm.tok_encode(text))
        if all(isinstance(token, int) for token in ids) and len(set(ids)) > len(set(best)):
            best = ids
    return best


def _shortened(ids: Sequence[Any]) -> list[Any]:
    """The beginning of a prompt, so that it is none of those that are to come."""
    return list(ids)[: min(_PROMPT_TOKENS, max(len(ids) - 1, _FEWEST_TOKENS))]


def _probe_prompts(lm: Any, ids: Sequence[int]) -> None:
    """Put one prompt in several ways; see ``probe_server``."""
    prompt, mirrored = list(ids), list(reversed(ids))
    alone, mirrored_answer = (_ask(lm, [sequence])[0] for sequence in (prompt, mirrored))
    lm.echoes_prompts = all(
        echoes(lm, answer, own) and not (prompt != mirrored and echoes(lm, answer, another))
        for answer, own, another in ((alone, prompt, mirrored), (mirrored_answer, mirrored, prompt))
    )
    ours, theirs = _numbers(alone), _numbers(mirrored_answer)
    _check_informative(ours, theirs, same=prompt == mirrored)
    _check_places(lm, prompt, alone)
    if prompt == mirrored or np.array_equal(ours, theirs):
        return
    if int(getattr(lm, "_batch_size", 1)) > 1:
        both = [_numbers(answer) for answer in _ask(lm, [prompt, mirrored])]
        _check_own([ours, theirs], both, how="in one batch")
    if int(getattr(lm, "_concurrent", 1)) > 1:
        half = len(prompt) // 2
        rotated = [sequence[half:] + sequence[:half] for sequence in (prompt, mirrored)]
        prompts = [
            prompt,
            mirrored,
            *(sequence for sequence in rotated if sequence not in (prompt, mirrored)),
        ]
        alone_too = [_numbers(_ask(lm, [sequence])[0]) for sequence in prompts[2:]]
        with ThreadPoolExecutor(len(prompts)) as pool:
            concurrent = list(pool.map(lambda sequence: _numbers(_ask(lm, [sequence])[0]), prompts))
        _check_own([ours, theirs, *alone_too], concurrent, how="at the same time")


def _numbers(answer: PromptAnswer) -> NDArray[np.float64]:
    """Log-probabilities of all tokens but the first, which has nothing before it."""
    end = len(answer.logprobs) - answer.generated
    return np.array(answer.logprobs[1:end], dtype=np.float64)


def _ask(lm: Any, prompts: Sequence[Sequence[int]]) -> list[PromptAnswer]:
    """Ask for the log-probabilities of prompts, and check each answer as those to come are."""
    ids = [list(prompt) for prompt in prompts]
    payload = lm._create_payload(
        lm.create_message(ids), generate=False, gen_kwargs=None, seed=lm._seed, eos=lm.eos_string
    )
    answer = _post(lm, payload)
    answers = answer if isinstance(answer, list) else [answer]
    check_name(answers, lm.model)
    prompt_answers = READERS[method_module(lm, "parse_logprobs")](answers)
    check_prompts(lm, prompt_answers, ids, [1] * len(ids))
    return prompt_answers


def _check_informative(one: NDArray[np.float64], other: NDArray[np.float64], *, same: bool) -> None:
    values = np.concatenate([one, other])
    if values.size > 1 and np.ptp(values) == 0.0:
        raise EvaluationError(
            f"the server gives every token of two prompts the log-probability {values[0]:.6g}, "
            "which says nothing about the model",
            hint=LOGPROBS_HINT,
        )
    if not same and np.array_equal(one, other) and len(one) > 2:
        raise EvaluationError(
            "the server gives two different prompts the same log-probabilities: it answers "
            "without reading them, or from a cache that mixes them up",
            hint=LOGPROBS_HINT,
        )


def _check_places(lm: Any, prompt: Sequence[int], alone: PromptAnswer) -> None:
    """Change a prompt's last token: its own log-probability has to move, and none before it.

    Where the list is shifted by one, another place moves in its stead, by far more than rounding,
    which the other places show. That two tokens happen to have the same one is looked at again
    with a third.
    """
    before = _numbers(alone)
    alternatives = [token for token in dict.fromkeys(prompt) if token != prompt[-1]]
    for changed in alternatives[:2]:
        changed_answer = _ask(lm, [[*prompt[:-1], changed]])[0]
        moved = np.abs(_numbers(changed_answer) - before)
        earlier = moved[:-1]
        if earlier.size and np.isfinite(earlier).all():
            at, noise = int(np.argmax(earlier)), float(np.median(earlier))
            if earlier[at] > _CHANGE + 10.0 * noise:
                raise EvaluationError(
                    f"with another last token of {len(prompt)}, the server gives token {at + 2} a "
                    f"log-probability that differs by {earlier[at]:.3g} nats: its list is shifted, "
                    "or its tokens read what follows them",
                    hint=LOGPROBS_HINT,
                )
        if moved[-1] > 0.0 or len(alternatives) < 2 or not _generated_moved(alone, changed_answer):
            return
    raise EvaluationError(
        f"with another last token of {len(prompt)}, the server's log-probability of that token "
        "stays the same: its list is shifted, or lacks that token",
        hint=LOGPROBS_HINT,
    )


def _generated_moved(before: PromptAnswer, after: PromptAnswer) -> bool:
    """Whether the number of the generated token, which comes last, is another one."""
    if not before.generated:
        return True
    earlier, later = before.logprobs[-1], after.logprobs[-1]
    return earlier is not None and later is not None and abs(earlier - later) > _CHANGE


def _check_own(
    alone: Sequence[NDArray[np.float64]], told: Sequence[NDArray[np.float64]], *, how: str
) -> None:
    """Each of several prompts must have the answer that it has alone, and not another's."""
    for own, numbers in zip(alone, told, strict=True):
        if any(np.abs(numbers - own).sum() > np.abs(numbers - answer).sum() for answer in alone):
            raise EvaluationError(
                f"of {len(alone)} prompts {how}, the server gives one the answer to another",
                hint="try --batch_size 1 and num_concurrent 1, or another version of the server",
            )


def _probe_long_prompts(lm: Any, requests: Sequence[Request]) -> tuple[Finding, ...]:
    """Ask for prompts of several cache blocks; see ``repeated_answers``."""
    silent = copy.copy(lm)
    silent.echoes_prompts = False  # tokens in another order may have no text that comes back
    texts = ["".join(part for part in of.arguments if isinstance(part, str)) for of in requests]
    units, longest = _gather_units(texts, lm.tok_encode, str(lm.model))

    def ask(prompts: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        return [_numbers(answer) for answer in _ask(silent, prompts)]

    opened = _open_with(lm, units, longest, lm.max_length, lambda first: ask([first])[0])
    if opened is None:
        return ()
    prompts, first = opened
    batches = int(getattr(lm, "_batch_size", 1)) > 1
    return check_repeated_prompts(prompts, ask, batches=batches, first=first).findings()


def _gather_units(
    texts: Sequence[str], encode: Callable[[str], Any], name: str
) -> tuple[list[Any], int]:
    """Enough tokens or words of what is to be asked, and the length of the longest of it."""
    units: list[Any] = []
    longest = 0
    for text in texts:
        own = list(encode(text))
        longest = max(longest, len(own))
        units += own
        if len(units) >= LONG_PROMPT:
            break
    # Two models of one server get prompts of their own, so that the first answer is in no cache.
    turn = sum(name.encode()) % max(1, len(units))
    return [*units[turn:], *units[:turn]], longest


T = TypeVar("T")


def _open_with(
    lm: Any, units: Sequence[Any], longest: int, room: int, ask: Callable[[Sequence[Any]], T]
) -> tuple[ProbePrompts, T] | None:
    """Make prompts of several blocks, or as long as the server reads, and ask for the first one.

    Where nobody says how much it reads, or in words, it may refuse them: then of what is to be
    asked anyway.

    Returns:
        The prompts, and the answer to the first; None where none can be made.
    """
    lengths = [fit_length(room)]
    as_texts = not getattr(lm, "tokenized_requests", True)
    # What is known is a number of tokens, and words may have many.
    if as_texts or not getattr(lm, "context_known", False):
        lengths.append(fit_length(min(room, longest)))
    for length in dict.fromkeys(lengths):
        prompts = make_prompts(units, length)
        if prompts is None:
            return None
        try:
            return prompts, ask(prompts.first)
        except EvaluationError:
            if length == lengths[-1]:
                raise
    return None


def _probe_generations(lm: Any, requests: Sequence[Request]) -> None:
    """Ask for a few tokens; of chat requests also one with tools, and one of another format.

    Raises:
        EvaluationError: the server does not answer, or refuses what the requests ask for.
    """
    chats = [
        (request, asked) for request in requests if (asked := read_chat_request(request.arguments))
    ]
    first = _without_fields(chats[0][0]) if chats else requests[0]
    try:
        _probe_generation(lm, first)
    except RefusedRequestError as error:
        if error.status not in _NOT_KNOWN or not getattr(lm, "shows_generated", False):
            raise
        lm.shows_generated = False
        _probe_generation(lm, first)
        raise EvaluationError(
            f"{_shown(lm.base_url)}: the server refuses to show log-probabilities of what it "
            f"writes, and answers without: {error}",
            quotes=error.quotes,
            hint=f"leave model_args.{TOP_ARGUMENT} out, and limits on where answers first differ, "
            "or compare another server",
        ) from error
    for what, hint, having in (
        ("tools", _TOOLS_HINT, [request for request, asked in chats if asked.tools]),
        ("response_format", "", [request for request, asked in chats if asked.response_format]),
    ):
        if not having:
            continue
        try:
            _probe_generation(lm, having[0])
        except RefusedRequestError as error:
            if error.status not in _NOT_KNOWN:
                raise
            _probe_generation(lm, _without_fields(having[0]))  # else it refuses more than these
            raise EvaluationError(
                f"{_shown(lm.base_url)}: the server refuses requests with {what}, and answers "
                f"without: {error}",
                quotes=error.quotes,
                hint=hint or f"leave {what} out of the requests, or compare another server",
            ) from error


def _without_fields(request: Request) -> Request:
    """A chat request's conversation alone."""
    return replace(request, arguments=(request.arguments[0], {"until": []}))


def _probe_generation(lm: Any, request: Request) -> None:
    """Ask for a few tokens."""
    (context, given), *_ = with_conversations(lm, [request.arguments])
    message = [context]
    if getattr(lm, "tokenized_requests", False):
        ids = list(lm.tok_encode(context, add_special_tokens=lm.add_bos_token))
        message = [_shortened(ids)]
    _generate(lm, message, _without_length(given), _GENERATED)


def _without_length(given: Any) -> dict[str, Any]:
    options = given if isinstance(given, dict) else {}
    return {name: value for name, value in options.items() if name not in LENGTH_NAMES}


def _generate(
    lm: Any,
    message: Sequence[Any],
    options: Mapping[str, Any],
    number: int,
    more: Mapping[str, Any] | None = None,
) -> tuple[list[Any], list[str | None]]:
    """Ask for so many tokens after each prompt; the answers as they came, and their texts."""
    payload = lm._create_payload(
        lm.create_message(message, generate=True),
        generate=True,
        gen_kwargs={**copy.deepcopy(dict(options)), "max_gen_toks": number},
        seed=lm._seed,
        eos=lm.eos_string,
    )
    answer = _post(lm, {**payload, **(more or {})})
    answers = answer if isinstance(answer, list) else [answer]
    check_name(answers, lm.model)
    if method_module(lm, "parse_generations") == "openai_completions":
        check_generations(answers, message)
    return answers, list(lm.parse_generations(outputs=answers))


def _is_greedy(request: Request) -> bool:
    options = request.arguments[1] if len(request.arguments) > 1 else None
    given = options if isinstance(options, Mapping) else {}
    return given.get("do_sample") is False or not float(given.get("temperature") or 0.0) > 0.0  # type: ignore[arg-type]


def _probe_long_generations(lm: Any, requests: Sequence[Request]) -> tuple[Finding, ...]:
    """Ask for greedy texts after prompts of several cache blocks; see ``repeated_answers``."""
    wrapped = with_conversations(lm, [request.arguments for request in requests])
    as_ids = bool(getattr(lm, "tokenized_requests", False))
    talks = isinstance(wrapped[0][0], tuple)
    texts = [str(request.arguments[0]) for request in requests]
    if talks:
        texts = [_said(text) for text in texts]
    encode = (
        (lambda text: lm.tok_encode(text, add_special_tokens=lm.add_bos_token))
        if as_ids
        else str.split
    )
    units, longest = _gather_units(texts, encode, str(lm.model))
    # A stop sequence would leave fewer tokens to compare; penalties are not in the numbers.
    given = wrapped[0][1] if isinstance(wrapped[0][1], dict) else {}
    options = {name: given[name] for name in ("temperature", "do_sample") if name in given}
    with_tokens = _asks_for_tokens(lm)

    def ask(prompts: Sequence[Sequence[Any]]) -> list[GreedyAnswer]:
        nonlocal with_tokens
        message = [
            list(prompt) if as_ids else _as_sent(lm, " ".join(prompt), talks=talks)
            for prompt in prompts
        ]
        try:
            answers, texts = _generate(lm, message, options, _COMPARED, with_tokens)
        except EvaluationError:
            if not with_tokens:
                raise
            with_tokens = {}  # it knows no such parameter
            answers, texts = _generate(lm, message, options, _COMPARED)
        shown = [read_generated_tokens(choice) for choice in _choices_of(answers)]
        return [
            GreedyAnswer(text=text or "", tokens=tokens, logprobs=logprobs)
            for text, (tokens, logprobs) in zip(texts, shown, strict=True)
        ]

    def ask_at_once(prompts: Sequence[Sequence[Any]]) -> list[GreedyAnswer]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: ask([prompt])[0], prompts))

    def ask_anew(prompts: Sequence[Sequence[Any]]) -> list[float]:
        """Log-probability of the token that follows each prompt, asked with those of the prompt.

        vLLM takes nothing from its cache then. [] where the server gives none.
        """
        silent = copy.copy(lm)
        silent.echoes_prompts = False
        try:
            answers = [_ask(silent, [prompt])[0] for prompt in prompts]
        except EvaluationError:
            return []
        last = [answer.logprobs[-1] if answer.generated else None for answer in answers]
        return [float(logprob) for logprob in last if logprob is not None]

    # A word has two or three tokens where it has many.
    room = (lm.max_length - _COMPARED) // (1 if as_ids else 3)
    opened = _open_with(lm, units, longest, room, lambda first: ask([first])[0])
    if opened is None:
        return ()
    prompts, first = opened
    echoes_ids = as_ids and method_module(lm, "parse_logprobs") == "openai_completions"
    return check_repeated_texts(
        prompts,
        ask,
        ask_at_once,
        ask_anew if echoes_ids and with_tokens else None,
        batches=int(getattr(lm, "_batch_size", 1)) > 1,
        concurrent=int(getattr(lm, "_concurrent", 1)) > 1,
        first=first,
    ).findings()


def _choices_of(answers: Sequence[Any]) -> list[Any]:
    """What was generated after each prompt: choices of completions, or sglang's answers."""
    several = isinstance(answers[0], dict) and "choices" in answers[0]
    if not several:
        return list(answers)
    return [
        choice for answer in answers for choice in sorted(read_choices(answer), key=choice_index)
    ]


def _said(conversation: str) -> str:
    """All that is said in a conversation."""
    messages = json.loads(conversation)
    return " ".join(
        str(message.get("content", "")) for message in messages if isinstance(message, dict)
    )


def _as_sent(lm: Any, text: str, *, talks: bool) -> Any:
    if not talks:
        return text
    conversation = json.dumps([{"role": "user", "content": text}])
    ((message, *_),) = with_conversations(lm, [(conversation,)])
    return message


def _asks_for_tokens(lm: Any) -> dict[str, Any]:
    """What a request has to say for the tokens of a text to come with their log-probabilities."""
    if is_chat(lm):
        return {}  # some of these endpoints refuse what they do not know only now and then
    if method_module(lm, "parse_generations") == "sglang_generate_API":
        return {"return_logprob": True}
    return {"logprobs": 1}


def _post(lm: Any, payload: Mapping[str, Any]) -> Any:
    """Send a request; again, as often as the client does, where the server is busy.

    Raises:
        EvaluationError: no answer, or none that is JSON.
    """
    tries = max(1, int(getattr(lm, "max_retries", 1)))
    for number in range(tries):
        last = number == tries - 1
        pause = min(_PAUSE * 2.0**number, _LONGEST_PAUSE)
        try:
            answer = ask_server(lm, lm.base_url, payload=payload, seconds=lm.timeout)
        except EvalguardError:
            raise  # it would be the same again
        except Exception as error:
            if last:
                explanation = explain_exchange(error, seconds=lm.timeout)
                raise EvaluationError(
                    f"{_shown(lm.base_url)}: {redacted_text(str(explanation))}",
                    hint=explanation.hint,
                ) from error
        else:
            if last or not (answer.status in _BUSY or _is_cut(answer)):
                return _read_json(lm, answer)
            asked = answer.headers.get("Retry-After", "")
            pause = min(float(asked), _LONGEST_PAUSE) if asked.isdecimal() else pause
        time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _is_cut(answer: HttpAnswer) -> bool:
    """Whether an answer begins as JSON and does not end as such, as of a server that was busy."""
    if not answer.ok or not answer.text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(answer.text)
    except RecursionError:
        return False
    except ValueError:
        return True
    return False


def _read_json(lm: Any, response: HttpAnswer) -> Any:
    status = response.status
    if 300 <= status < 400:
        target = redacted_text(str(response.headers.get("Location", "elsewhere")))
        raise EvaluationError(
            f"the server sends requests on from {_shown(lm.base_url)} to {target} (HTTP {status}), "
            "where they would arrive without what they ask",
            hint=f"set base_url to where it leads; {_URL_HINT}",
        )
    text = _shown(response.text)
    if status in (401, 403):
        raise EvaluationError(
            f"the server refuses the request (HTTP {status})",
            quotes=quote_message(text),
            hint="set OPENAI_API_KEY in the environment, or header: in model_args",
        )
    if status != 200:
        busy = f", asked {lm.max_retries} times" if status in _BUSY else ""
        raise RefusedRequestError(
            f"the server answers with HTTP {status}{busy}",
            status=status,
            quotes=quote_message(text),
            hint="try fewer requests at a time (num_concurrent), or max_retries"
            if status == 429
            else f"look at the server's log; {_URL_HINT}",
        )
    try:
        return read_answer(response.text)
    except RecursionError as error:
        raise explain_exchange(error, seconds=lm.timeout) from None
    except BrokenStreamError as error:
        raise EvaluationError(
            str(error), hint="look at the server's log", quotes=error.quotes
        ) from None
    except ValueError:
        kind = response.headers.get("Content-Type", "no content type")
        raise EvaluationError(
            f"the server's answer is not JSON ({kind})", hint=_URL_HINT, quotes=quote_message(text)
        ) from None


def _shown(text: Any) -> str:
    """The beginning of a text, on one line, without secrets."""
    return redacted_text(" ".join(str(text).split())[:160])
