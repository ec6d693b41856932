"""Requests that are token ids and no text: the windows of a llama.cpp logits file.

lm-eval's arguments of such a request are ("", "", what is read): prompt and target of its sample
files have to be texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from evalguard.core.scorer import Request
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError

# Of neighbouring tokens, so many come back when a window's text is encoded once more. Its ends,
# and a tokenizer that normalises, lose some; of another tokenizer's ids hardly any pair does.
_FEWEST_KEPT = 0.8
_CHECKED = 4  # windows of a block


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWindow:
    """Tokens that are read, of which those after the first ``given`` are scored.

    Attributes:
        source: what the ids are from, for messages and digests.
    """

    ids: tuple[int, ...]
    given: int
    source: str

    @property
    def arguments(self) -> tuple[Value, ...]:
        """What lm-eval is given for it."""
        return "", "", {"ids": list(self.ids), "given": self.given, "source": self.source}

    @classmethod
    def of(cls, arguments: Sequence[object]) -> TokenWindow | None:
        """The window that arguments of a request hold; None for texts."""
        held = arguments[-1] if len(arguments) == 3 else None
        if not isinstance(held, dict):
            return None
        ids, given = cast("list[int]", held["ids"]), cast(int, held["given"])
        return cls(ids=tuple(ids), given=given, source=str(held["source"]))

    def pair(self, bos: int | None, longest: int | None) -> tuple[list[int], list[int]]:
        """Return what is given and what is scored.

        llama.cpp reads BOS in the place of a window's first token where the model's tokenizer adds
        it (tools/perplexity/perplexity.cpp).

        Args:
            bos: that token; None where the tokenizer adds none.
            longest: tokens that the model can read; None where that is not known.

        Raises:
            EvaluationError: the window is longer.
        """
        if longest is not None and len(self.ids) - 1 > longest:
            raise EvaluationError(
                f"{self.source} holds windows of {len(self.ids):,} tokens, and the model reads "
                f"{longest:,}",
                hint="make the file with a smaller context (llama-perplexity -c N)",
            )
        first = self.ids[0] if bos is None else bos
        return [first, *self.ids[1 : self.given]], list(self.ids[self.given :])


def is_token_window(request: Request) -> bool:
    """Whether a request is of token ids."""
    return TokenWindow.of(request.arguments) is not None


def check_tokenizer(
    windows: Sequence[TokenWindow],
    decode: Callable[[Sequence[int]], str],
    encode: Callable[[str], Sequence[int]],
) -> None:
    """Refuse a tokenizer that would not have made these ids.

    Args:
        encode: of a text, without special tokens.

    Raises:
        EvaluationError: decoded and encoded once more, another sequence comes out.
    """
    pairs: Counter[tuple[int, int]] = Counter()
    again: Counter[tuple[int, int]] = Counter()
    for window in windows[:_CHECKED]:
        ids = window.ids[1:]
        try:
            text = decode(ids)
        except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise _other_tokenizer(window.source, "they cannot be decoded") from error
        pairs.update(pairwise(ids))
        again.update(pairwise(encode(text)))
    kept = (pairs & again).total() / max(1, pairs.total())
    if kept < _FEWEST_KEPT:
        said = f"of its text only {kept:.0%} of neighbouring tokens come back"
        raise _other_tokenizer(windows[0].source, said)


def _other_tokenizer(source: str, said: str) -> EvaluationError:
    return EvaluationError(
        f"the token ids of {source} are not those of the model's tokenizer: {said}",
        hint="compare with a file that was made with this tokenizer",
    )
