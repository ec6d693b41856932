"""GeneratedTokens: the tokens that a model wrote, and how sure it was of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GeneratedTokens:
    """Tokens of one generated text, in the order in which they were written.

    The token that ended the text is among them; padding is not.

    Attributes:
        ids: int32, shape (n,): token ids; of a server that shows a token's text alone, a number
            below -1 that stands for the text.
        margins: float32, shape (n,): ln p(token) - ln p(most probable other token), in nats, of
            the distribution that the token was chosen from: after repetition penalties and other
            processors of scores, before temperature. Negative where a less probable token was
            sampled; infinite where every other token was forbidden; NaN where unknown.
        others: int32, shape (n,): that other token; -1 where unknown.
    """

    ids: NDArray[np.int32]
    margins: NDArray[np.float32]
    others: NDArray[np.int32]

    def __post_init__(self) -> None:
        if not self.ids.shape == self.margins.shape == self.others.shape or self.ids.ndim != 1:
            shapes = self.ids.shape, self.margins.shape, self.others.shape
            raise ValueError(f"ids, margins and others have the shapes {shapes}")

    @classmethod
    def of(
        cls,
        ids: Sequence[int],
        margins: Sequence[float] | None = None,
        others: Sequence[int] | None = None,
    ) -> GeneratedTokens:
        """Make it of plain numbers; margins and others that nobody knows are unknown.

        Raises:
            ValueError: for different lengths.
            OverflowError: for an id beyond 32 bits.
        """
        n = len(ids)
        return cls(
            ids=np.array(ids, dtype=np.int32),
            margins=np.full(n, np.nan, np.float32)
            if margins is None
            else np.array(margins, dtype=np.float32),
            others=np.full(n, UNKNOWN_TOKEN, np.int32)
            if others is None
            else np.array(others, dtype=np.int32),
        )

    def __len__(self) -> int:
        """How many tokens were generated."""
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        """Whether all numbers are the same; an unknown margin is as another one."""
        if not isinstance(other, GeneratedTokens):
            return NotImplemented
        return (
            np.array_equal(self.ids, other.ids)
            and np.array_equal(self.margins, other.margins, equal_nan=True)
            and np.array_equal(self.others, other.others)
        )

    def __hash__(self) -> int:
        """Of the tokens."""
        return hash(self.ids.tobytes())


SAMPLE_COLUMNS = ("generated_ids", "generated_margins", "generated_others")
"""Of a document's samples: a list for each request, None where its tokens are not known."""


def sample_columns(answers: Sequence[GeneratedTokens | None]) -> dict[str, list[Any]]:
    """What the samples keep of the tokens of a document's answers, ``SAMPLE_COLUMNS``."""
    return {
        "generated_ids": [None if one is None else one.ids.tolist() for one in answers],
        "generated_margins": [None if one is None else one.margins.tolist() for one in answers],
        "generated_others": [None if one is None else one.others.tolist() for one in answers],
    }


def read_sample(
    ids: object, margins: object, others: object, n: int
) -> tuple[GeneratedTokens | None, ...]:
    """Read the columns of one document back.

    Args:
        ids, margins, others: a list per request each; None of a run that kept no tokens.
        n: answers that the document has.

    Raises:
        ValueError: they are not what was written.
    """
    if ids is None:
        return (None,) * n
    columns: list[Any] = [ids, margins, others]
    try:
        if [len(one) for one in columns] != [n] * 3:
            raise ValueError(f"{n} answers, and tokens of {[len(one) for one in columns]}")
        return tuple(
            None if own is None else GeneratedTokens.of(own, *rest)
            for own, *rest in zip(*columns, strict=True)
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(f"generated tokens are damaged: {error}") from error
