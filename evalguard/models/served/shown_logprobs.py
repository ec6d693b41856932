"""Log-probabilities that servers show of prompts and of what they generated, in all their forms.

Completions show ``{tokens, token_logprobs, top_logprobs: [{text: value}]}`` (OpenAI, vLLM); chat
completions, and llama.cpp for both, ``{content: [{token, logprob, top_logprobs: [...]}]}``; SGLang
``output_token_logprobs`` and ``output_top_logprobs`` of (value, id, text).
"""

from __future__ import annotations

import functools
import inspect
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.findings import Quote, quote_message
from evalguard.core.redaction import redacted_text
from evalguard.core.shown_tokens import ID_LABEL, UNKNOWN_TOKEN, GeneratedTokens, TopLogprobs
from evalguard.errors import EvaluationError, UsageError

LOGPROBS_HINT = (
    "evalguard needs the log-probability of every prompt token (completions with echo=True "
    "and logprobs=1), for the token ids it sends: vLLM and llama-cpp-python give them, SGLang as "
    "sglang-generate:URL, llama.cpp's server as llama_server:URL; TGI and chat endpoints do not; "
    "or name the model's folder or GGUF file in place of the address"
)
_EXTRA_TOKEN_HINT = (
    "send token ids (not tokenized_requests: false), start the server so that it adds no BOS to "
    "them, and give BOS with the ids where the model is to read it: model_args: "
    "{add_bos_token: true}"
)
# Half precision and servers' rounding leave a log-probability of 0 this far above it.
_ABOVE_ZERO = 1e-3
# bfloat16 leaves the sum of a distribution a few per cent off 1; logarithms to base 10 far more.
_MOST_MASS = 1.1
# bfloat16 keeps 8 bits: one token's number, written twice, may differ by so much.
_SAME_NUMBER = 0.05


class TokenAnswer(tuple[float, bool]):
    """lm-eval's (log-likelihood, is greedy) of a server, with the tokens that it is the sum of.

    Attributes:
        token_logprobs: natural log, float64, shape (n_scored,).
        top_logprobs: what the server shows of each position's distribution, where it was asked
            for more than lm-eval needs.
    """

    token_logprobs: NDArray[np.float64]
    top_logprobs: TopLogprobs | None

    @classmethod
    def of(
        cls, answer: Sequence[Any], scored: PromptAnswer, shown: TopLogprobs | None
    ) -> TokenAnswer:
        """lm-eval's own answer, with what ``PromptAnswer.cut`` left of the prompt's tokens.

        Greedy is what is nowhere less probable than the most probable token beside it: as in
        lm-eval, but for its type sglang-generate, which (0.4.13) calls the opposite greedy.
        """
        loglikelihood, is_greedy = answer
        if scored.tops and all(scored.tops) and len(scored.tops) == len(scored.logprobs):
            pairs = zip(scored.logprobs, scored.tops, strict=True)
            is_greedy = all(logprob >= max(top.values()) for logprob, top in pairs)
        made = cls((loglikelihood, is_greedy))
        made.token_logprobs = np.array(scored.logprobs, dtype=np.float64)
        made.top_logprobs = shown
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAnswer:
    """What an answer holds, as it was given: nothing of it is checked yet.

    Attributes:
        logprobs: of each token; a list where the server does what it is asked. Of a server that
            answers as for a chat, those of generated tokens alone.
        tops: the tokens that it shows of each position, by label; {} where it shows none.
        ids: the tokens that it says it has read; None where it does not show them.
        text: what it echoes, "" where it does not.
        generated: how many of the tokens come after the prompt.
        fed: how many tokens it counts in the prompt; None where it does not say.
    """

    logprobs: Any
    tops: Sequence[Mapping[str, float]]
    ids: tuple[int, ...] | None
    text: str
    generated: int
    fed: int | None

    def cut(self, context: int) -> PromptAnswer:
        """The tokens after the context, without what was generated."""
        end = len(self.logprobs) - self.generated
        return PromptAnswer(
            logprobs=self.logprobs[context:end],
            tops=self.tops[context:end],
            ids=self.ids,
            text=self.text,
            generated=0,
            fed=self.fed,
        )


def read_completions(answers: Sequence[Any]) -> list[PromptAnswer]:
    """Read OpenAI's completions, in the order of their prompts.

    Raises:
        EvaluationError: one has no choices.
    """
    parsed = []
    for answer in answers:
        choices = read_choices(answer)
        usage = answer.get("usage") if len(choices) == 1 else None
        fed = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        for choice in sorted(choices, key=choice_index):
            logprobs = choice.get("logprobs")
            logprobs = logprobs if isinstance(logprobs, dict) else {}
            ids = choice.get("prompt_token_ids") or (
                answer.get("prompt_token_ids") if len(choices) == 1 else None
            )
            tokens = logprobs.get("tokens")
            parsed.append(
                PromptAnswer(
                    logprobs=logprobs.get("token_logprobs", _of_content(logprobs)),
                    tops=_read_tops(logprobs.get("top_logprobs")),
                    ids=_ids(ids) or _labelled_ids(tokens),
                    text=str(choice.get("text") or "") or _joined(tokens),
                    generated=1,
                    fed=fed if _is_count(fed) else None,
                )
            )
    return parsed


def read_choices(answer: Any) -> list[dict[str, Any]]:
    """The choices of a completion.

    Raises:
        EvaluationError: it has none, or two of one prompt.
    """
    listed: Any = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(listed, list) or not listed or not all(isinstance(c, dict) for c in listed):
        raise EvaluationError(
            "the server's answer has no choices",
            quotes=_error_quotes(answer),
            hint="base_url must lead to the server's completions, e.g. "
            "http://127.0.0.1:8000/v1/completions",
        )
    numbers = sorted(map(choice_index, listed))
    if numbers != list(range(len(listed))):
        raise EvaluationError(
            f"the server's {len(listed)} choices are numbered {numbers}: which prompt each belongs "
            "to is not known",
            hint="--batch_size 1 asks one prompt at a time",
        )
    return listed


def _error_quotes(answer: Any) -> tuple[Quote, ...]:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return quote_message(redacted_text(" ".join(str(message).split())[:200]) if message else "")


def choice_index(choice: Mapping[str, Any]) -> int:
    """The number of the prompt that a choice belongs to; -1: none that could be."""
    index = choice.get("index", 0)
    return index if isinstance(index, int) else -1


def read_generate(answers: Sequence[Any]) -> list[PromptAnswer]:
    """Read sglang's own answers: (log-probability, id, text) of each token of a prompt."""
    parsed = []
    for answer in answers:
        about = answer.get("meta_info") if isinstance(answer, dict) else None
        about = about if isinstance(about, dict) else {}
        tokens: Any = about.get("input_token_logprobs")
        tops: Any = about.get("input_top_logprobs")
        triples = isinstance(tokens, list) and all(_is_triple(token) for token in tokens)
        fed = about.get("prompt_tokens")
        parsed.append(
            PromptAnswer(
                logprobs=[token[0] for token in tokens] if triples else None,
                tops=[_id_tops(position) for position in tops] if isinstance(tops, list) else (),
                ids=_ids([token[1] for token in tokens]) if triples else None,
                text="",
                generated=0,
                fed=fed if _is_count(fed) else None,
            )
        )
    return parsed


def read_generated_tokens(answer: Any) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The tokens of a generated text and their log-probabilities; two empty ones if not shown.

    Args:
        answer: a choice of OpenAI's completions, or sglang's own answer.
    """
    if not isinstance(answer, dict):
        return (), ()
    shown = answer.get("logprobs")
    if isinstance(shown, dict):
        names: Any = shown.get("tokens")
        values: Any = shown.get("token_logprobs")
        if names is None and isinstance(shown.get("content"), list):  # chat's form
            content = [entry for entry in shown["content"] if isinstance(entry, dict)]
            names = [entry.get("token") for entry in content]
            values = [entry.get("logprob") for entry in content]
    else:  # sglang's
        about = answer.get("meta_info")
        triples = about.get("output_token_logprobs") if isinstance(about, dict) else None
        triples = triples if isinstance(triples, list) and all(map(_is_triple, triples)) else []
        names, values = [triple[1] for triple in triples], [triple[0] for triple in triples]
    sound = (
        isinstance(names, list)
        and isinstance(values, list)
        and len(names) == len(values)
        and all(_is_number(value) and not math.isnan(value) for value in values)
    )
    return (tuple(map(str, names)), tuple(map(float, values))) if sound else ((), ())


def _of_content(logprobs: Mapping[str, Any]) -> Any:
    """Chat's form, which llama.cpp's server gives completions too: of generated tokens alone."""
    content = logprobs.get("content")
    if not isinstance(content, list):
        return None
    return [entry.get("logprob") if isinstance(entry, dict) else None for entry in content]


def _is_triple(one: Any) -> bool:
    return isinstance(one, (list, tuple)) and len(one) >= 2


def _id_tops(position: Any) -> dict[str, float]:
    entries = position if isinstance(position, list) else []
    return {
        f"{ID_LABEL}{entry[1]}": float(entry[0])
        for entry in entries
        if _is_triple(entry) and _is_number(entry[0])
    }


def _read_tops(given: Any) -> tuple[dict[str, float], ...]:
    if not isinstance(given, list):
        return ()
    return tuple(
        {str(label): float(value) for label, value in top.items() if _is_number(value)}
        if isinstance(top, dict)
        else {}
        for top in given
    )


def _ids(given: Any) -> tuple[int, ...] | None:
    if (
        not isinstance(given, list)
        or not given
        or not all(_is_count(token_id) for token_id in given)
    ):
        return None
    return tuple(given)


def _labelled_ids(tokens: Any) -> tuple[int, ...] | None:
    """Ids that a server writes in place of texts; the last one is generated."""
    if not isinstance(tokens, list) or len(tokens) < 2:
        return None
    texts = [str(token) for token in tokens[:-1]]
    if not all(text.startswith(ID_LABEL) and text[len(ID_LABEL) :].isdigit() for text in texts):
        return None
    return tuple(int(text[len(ID_LABEL) :]) for text in texts)


def _joined(tokens: Any) -> str:
    return "".join(map(str, tokens)) if isinstance(tokens, list) else ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_prompt(answer: PromptAnswer, ids: Sequence[int] | None, context: int) -> None:
    """Refuse an answer that does not cover the tokens of its prompt, or is no distribution's.

    Args:
        ids: what was sent; None where only its ``context`` is known, in tokens.

    Raises:
        EvaluationError: with what was found, and which servers give what is missing.
    """
    _check_ids(answer, ids)
    expected = len(ids) if ids is not None else context + 1
    given = answer.logprobs if isinstance(answer.logprobs, list) else []
    total = expected + answer.generated
    if len(given) < total or (ids is not None and len(given) != total):
        raise EvaluationError(
            f"the server gave {len(given)} log-probabilities for a prompt of {expected} tokens"
            + (" and one generated token" if answer.generated else "")
            + _count_reason(answer, given, total),
            hint=_EXTRA_TOKEN_HINT if len(given) > total else LOGPROBS_HINT,
        )
    scored = answer.cut(context)
    check_numbers(scored.logprobs)
    _check_tops(scored)


def _count_reason(answer: PromptAnswer, given: Sequence[Any], total: int) -> str:
    if not isinstance(answer.logprobs, list):
        what = "none" if answer.logprobs is None else f"{type(answer.logprobs).__name__}"
        shown = ", only top_logprobs" if any(answer.tops) else ""
        return f": token_logprobs is {what}{shown}"
    if len(given) == 1:
        return ": it ignores echo, and gives those of generated tokens only"
    if len(given) == total + 1:
        return ": it reads a token of its own, BOS say"
    return ": it has read something else than it was sent, or cut it"


def _check_ids(answer: PromptAnswer, ids: Sequence[int] | None) -> None:
    """Compare the prompt that a server says it has read with the one that it was sent."""
    if ids is None:
        return
    if answer.ids is not None and answer.ids != tuple(ids):
        if answer.ids[1:] == tuple(ids):
            raise EvaluationError(
                f"the server read token {answer.ids[0]} before the {len(ids)} tokens that it was "
                "sent",
                hint=_EXTRA_TOKEN_HINT,
            )
        at = next((n for n, (a, b) in enumerate(zip(answer.ids, ids, strict=False)) if a != b), -1)
        where = f"from position {at} on" if at >= 0 else f"{len(answer.ids)} and {len(ids)} tokens"
        raise EvaluationError(
            "the server answered another prompt than it was sent: their token ids differ "
            f"({where})",
            hint="answers may be exchanged between requests: try --batch_size 1 and num_concurrent "
            "1, or another version of the server",
        )
    check_fed(answer.fed, [len(ids)])


def check_fed(fed: int | None, sent: Sequence[int]) -> None:
    """Compare the tokens that a server counts in one request with those that it was sent.

    Fewer are only refused for a single prompt: of several, some servers count the first alone.

    Raises:
        EvaluationError: it has read more, or fewer.
    """
    total = sum(sent)
    if not fed or fed == total or (fed < total and len(sent) > 1):
        return
    if fed > total:
        raise EvaluationError(
            f"the server read {fed} tokens (usage.prompt_tokens) where {total} were sent: it adds "
            "some of its own, BOS say",
            hint=_EXTRA_TOKEN_HINT,
        )
    raise EvaluationError(
        f"the server read {fed} tokens (usage.prompt_tokens) of the {total} that were sent: it "
        "cuts prompts without saying so",
        hint="start it with a longer context, or set model_args: {max_length: ...} to what it "
        "reads, for base and candidate",
    )


def check_numbers(scored: Sequence[Any]) -> None:
    """Refuse what is no log-probability.

    Raises:
        EvaluationError: no number, NaN, or one above 0.
    """
    if not all(_is_number(logprob) for logprob in scored):
        raise EvaluationError(
            "the server gave no log-probability for a token of the continuation",
            hint=LOGPROBS_HINT,
        )
    if any(math.isnan(logprob) for logprob in scored):
        raise EvaluationError(
            "the server gave NaN as log-probability of a token",
            hint="its model overflows or is damaged: look at its log, or try another dtype",
        )
    if max(scored, default=0.0) > _ABOVE_ZERO:
        raise EvaluationError(
            f"the server gave a log-probability of {max(scored):.6g}, which is above 0: a "
            "probability above 1",
            hint="are these logits? " + LOGPROBS_HINT,
        )


def _check_tops(scored: PromptAnswer) -> None:
    """Whether a continuation is the most probable one is read from these."""
    if len(scored.tops) != len(scored.logprobs) or not all(scored.tops):
        raise EvaluationError(
            "the server does not give the most probable token beside a token of the continuation "
            "(top_logprobs)",
            hint=LOGPROBS_HINT,
        )
    for own, shown in zip(scored.logprobs, scored.tops, strict=True):
        mass = sum(math.exp(min(value, 700.0)) for value in shown.values())
        if not mass <= _MOST_MASS:
            raise EvaluationError(
                f"the probabilities of {len(shown)} tokens that the server shows add up to "
                f"{mass:.3g}: they are not natural logarithms, or not of one distribution",
                hint=LOGPROBS_HINT,
            )
        if own > max(shown.values()) + _SAME_NUMBER:
            raise EvaluationError(
                f"the server gives a token a log-probability of {own:.6g}, and its most probable "
                f"one {max(shown.values()):.6g}: they are not of the same position",
                hint=LOGPROBS_HINT,
            )


TOP_ARGUMENT = "top_logprobs"
"""The model's argument: a number of tokens; lm-eval itself asks for 1."""
# By the kind of a client (``_kind_of``): the name of the number in a request; and what else has to
# be said where texts are generated.
_TOP_NAMES = {
    "openai_completions": "logprobs",
    "sglang_generate_API": "top_logprobs_num",
    "chat": "top_logprobs",
}
_SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "sglang_generate_API": {"return_logprob": True},
    "chat": {"logprobs": True},
}


def take_top_argument(arguments: dict[str, Any], client: type) -> int:
    """Take the number of tokens to show out of a model's arguments.

    0 where none is given, or the client itself takes it.

    Raises:
        UsageError: it is not a number of tokens, or no client of completions could ask for it.
    """
    if TOP_ARGUMENT not in arguments:
        return 0
    number = arguments[TOP_ARGUMENT]
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UsageError(
            f"model_args.{TOP_ARGUMENT}: {number!r} is not a number of tokens",
            target=f"model_args.{TOP_ARGUMENT}",
        )
    if TOP_ARGUMENT in inspect.signature(client).parameters:  # llama_server asks for it itself
        return 0
    if _kind_of(client) not in _TOP_NAMES:
        raise UsageError(
            f"model_args.{TOP_ARGUMENT} has no use with this model type",
            hint="model types of completions and chat completions, sglang-generate and "
            "llama_server ask servers for it",
            target=f"model_args.{TOP_ARGUMENT}",
        )
    return int(arguments.pop(TOP_ARGUMENT))


def ask_for_top_tokens(lm: Any, number: int) -> None:
    """Let a client ask for so many tokens of each position; its scores stay what they are.

    Of what is generated two are shown at least: the token, and the most probable other one.
    """
    kind = _kind_of(lm)
    name = _TOP_NAMES[kind]
    create = lm._create_payload

    @functools.wraps(create)
    def creating(*arguments: Any, **options: Any) -> Any:
        payload = create(*arguments, **options)
        if not options.get("generate"):
            return {**payload, name: number} if name in payload else payload
        if not lm.shows_generated:
            return payload
        return {**payload, **_SWITCHES.get(kind, {}), name: max(2, number)}

    lm._create_payload = creating
    lm.shows_generated = True
    lm.token_names = TokenNames(lm)


def _kind_of(client: Any) -> str:
    """How a client asks: what module its answers are read in, and whether it is a chat's."""
    parse = getattr(client, "parse_generations", None)
    module = str(getattr(parse, "__module__", "")).rpartition(".")[2]
    chat = module == "openai_completions" and "Chat" in str(getattr(parse, "__qualname__", ""))
    return "chat" if chat else module


class TokenNames:
    """Which token a server means by a text.

    It writes a token as its text or as the piece of the vocabulary ("▁the"). A name that may be
    any of several tokens is left out: what two servers mean by it may differ. One that the client's
    tokenizer does not know stays what it is.
    """

    def __init__(self, lm: Any) -> None:
        self._lm = lm

    @functools.cached_property
    def _ids(self) -> Mapping[str, int]:
        """The id of each name, -1 where there are several."""
        tokenizer: Any = getattr(self._lm, "tokenizer", None)
        if not hasattr(tokenizer, "convert_ids_to_tokens"):
            return {}
        ids = list(range(len(tokenizer)))
        pieces = [piece or "" for piece in tokenizer.convert_ids_to_tokens(ids)]
        texts = tokenizer.batch_decode(
            [[token_id] for token_id in ids], clean_up_tokenization_spaces=False
        )
        spaced = [piece.replace("▁", " ") for piece in pieces]
        ids_by_name: dict[str, int] = {}
        for names in (pieces, texts, spaced):
            for token_id, name in zip(ids, names, strict=True):
                ids_by_name[name] = (
                    token_id if ids_by_name.setdefault(name, token_id) == token_id else -1
                )
        return ids_by_name

    def identify(self, tops: Sequence[Mapping[str, float]]) -> TopLogprobs:
        """The same log-probabilities, by ids where these are known."""
        return tuple(
            {self._label(name): value for name, value in top.items() if self._ids.get(name) != -1}
            for top in tops
        )

    def id_of(self, name: str) -> int | None:
        """The one token of this name; None where there is none, or several."""
        token_id = self._ids.get(name, -1)
        return token_id if token_id >= 0 else None

    def _label(self, name: str) -> str:
        token_id = self._ids.get(name)
        return name if token_id is None else f"{ID_LABEL}{token_id}"


_NAMES = 2**31 - 2
_Shown = tuple[int, float, Mapping[int, float]]  # a token, its value, and those shown beside it


def read_generated(choice: Any, names: TokenNames | None) -> GeneratedTokens | None:
    """The tokens of one generated text; None where the server does not show them.

    Args:
        choice: of an answer; SGLang's whole answer.
        names: which token of the client's tokenizer a text is; None: there is no tokenizer.
    """
    try:
        tokens = [*_shown_tokens(choice, names)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None  # a form that nobody knows says nothing
    if not tokens:
        return None
    margins, runners_up = [], []
    for token, value, shown in tokens:
        rest = {name: of for name, of in shown.items() if name != token}
        runner_up = max(rest, key=lambda name: rest[name]) if rest else UNKNOWN_TOKEN
        runners_up.append(runner_up)
        margins.append(value - rest[runner_up] if rest else float("nan"))
    return GeneratedTokens.of([token for token, _, _ in tokens], margins, runners_up)


def _shown_tokens(choice: Mapping[str, Any], names: TokenNames | None) -> Iterator[_Shown]:
    shown = choice.get("logprobs")
    about = choice.get("meta_info")
    if isinstance(about, Mapping):
        tops = about.get("output_top_logprobs") or []
        for index, (value, token, *_) in enumerate(about.get("output_token_logprobs") or []):
            beside = tops[index] if index < len(tops) and tops[index] else []
            yield (
                int(token),
                float(value),
                {int(token_id): float(of) for of, token_id, *_ in beside},
            )
    elif not isinstance(shown, Mapping):
        return
    elif isinstance(shown.get("content"), list):
        for entry in shown["content"]:
            beside = {
                _token_of(top, names): float(top["logprob"])
                for top in entry.get("top_logprobs") or ()
            }
            yield _token_of(entry, names), float(entry["logprob"]), beside
    elif isinstance(shown.get("tokens"), list):
        tops = shown.get("top_logprobs") or [None] * len(shown["tokens"])
        for text, value, beside in zip(shown["tokens"], shown["token_logprobs"], tops, strict=True):
            named = {_name_of(label, names): float(of) for label, of in (beside or {}).items()}
            yield _name_of(text, names), float(value), named


def _token_of(shown: Mapping[str, Any], names: TokenNames | None) -> int:
    """The id of a token that llama.cpp shows; else that of its text, or of its bytes."""
    if isinstance(shown.get("id"), int):
        return int(shown["id"])
    text, data = str(shown.get("token")), shown.get("bytes")
    if not isinstance(data, Sequence) or not data:
        return _name_of(text, names)
    known = UNKNOWN_TOKEN if "\ufffd" in text else _name_of(text, names)  # a part of a character
    return known if known >= 0 else _name_bytes(bytes(data))


def _name_of(text: str, names: TokenNames | None) -> int:
    """A token's id; where no one id has this text, a number below -1 that stands for the text."""
    if text.startswith(ID_LABEL):
        return int(text[len(ID_LABEL) :])
    known = names.id_of(text) if names is not None else None
    return _name_bytes(text.encode("utf-8", "surrogatepass")) if known is None else known


def _name_bytes(data: bytes) -> int:
    return -2 - zlib.crc32(data) % _NAMES
