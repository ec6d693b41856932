"""How many tokens of each distribution a server is asked to show: of prompts, and of its texts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from evalguard.core.shown_tokens import ID_LABEL, TopLogprobs
from evalguard.errors import UsageError

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
        texts = tokenizer.batch_decode([[one] for one in ids], clean_up_tokenization_spaces=False)
        spaced = [piece.replace("▁", " ") for piece in pieces]
        found: dict[str, int] = {}
        for names in (pieces, texts, spaced):
            for one, name in zip(ids, names, strict=True):
                found[name] = one if found.setdefault(name, one) == one else -1
        return found

    def identify(self, tops: Sequence[Mapping[str, float]]) -> TopLogprobs:
        """The same log-probabilities, by ids where these are known."""
        return tuple(
            {self._label(name): value for name, value in one.items() if self._ids.get(name) != -1}
            for one in tops
        )

    def id_of(self, name: str) -> int | None:
        """The one token of this name; None where there is none, or several."""
        found = self._ids.get(name, -1)
        return found if found >= 0 else None

    def _label(self, name: str) -> str:
        found = self._ids.get(name)
        return name if found is None else f"{ID_LABEL}{found}"
