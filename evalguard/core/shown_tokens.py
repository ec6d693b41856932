"""Tokens that a model or a server shows: what it generated, and what that says about KL.

Let S be the tokens that both sides show at a position, p and q the probabilities of base and
candidate, and p_R = 1 - sum_S p, q_R = 1 - sum_S q what is left for all others together. Which
token comes next, with the others counted as one, is a function of which token comes next; by the
data-processing inequality (for a finite partition the log-sum inequality, Cover and Thomas,
theorem 2.7.1)

    KL(p || q) >= sum_S p log(p / q) + p_R log(p_R / q_R).

This holds whichever tokens are in S, so that leaving some out costs sharpness and not truth. From
above nothing follows: all of q's rest may lie on tokens where p has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.distribution_comparison import Figure
from evalguard.core.divergence import Reference
from evalguard.core.logprob_rows import Float
from evalguard.core.scores import NO_PROBABILITY

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
        "generated_ids": [None if answer is None else answer.ids.tolist() for answer in answers],
        "generated_margins": [
            None if answer is None else answer.margins.tolist() for answer in answers
        ],
        "generated_others": [
            None if answer is None else answer.others.tolist() for answer in answers
        ],
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
        if [len(column) for column in columns] != [n] * 3:
            raise ValueError(f"{n} answers, and tokens of {[len(column) for column in columns]}")
        return tuple(
            None if own is None else GeneratedTokens.of(own, *rest)
            for own, *rest in zip(*columns, strict=True)
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(f"generated tokens are damaged: {error}") from error


# Of each scored position: tokens by their texts (or "token_id:7"), with natural log-probabilities.
TopLogprobs = tuple[Mapping[str, float], ...]
# Names a token whose id is known; vLLM's own name, with return_tokens_as_token_ids.
ID_LABEL = "token_id:"
# Of one task: doc_id -> what a server showed for each of its requests, in their order.
ShownTokens = Mapping[int, tuple[TopLogprobs, ...]]
# Bytes that are no character of their own stand for many tokens, and so does no text at all.
_NO_NAME = "\ufffd"
# A rest below this is what rounding left of nothing. A larger q_R only makes the bound smaller.
_LEAST_REST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KlEstimate:
    """What servers' most probable tokens say about KL(base || candidate) on one task.

    Attributes:
        n: documents with a scored token; ``positions`` counts these tokens.
        tokens: how many tokens of a position both sides show, on average.
        kl_at_least: mean of the positions' lower bounds, in nats a token. Its interval is that of
            the mean bound; KL itself may be larger by any amount.
        mass_seen: share of the base's probability that lies on tokens that both show.
        confidence: of the intervals, over documents or clusters of them.
        failure: why there are no numbers, "" where there are.
        positions: scored tokens.
    """

    task: str
    n: int
    positions: int
    tokens: float | None = None
    kl_at_least: Figure = field(default_factory=Figure)
    mass_seen: Figure = field(default_factory=Figure)
    confidence: float
    failure: str = ""


def shown_tokens(kept: Reference) -> TopLogprobs:
    """The kept tokens and the scored one of each position, as a server shows them; by ids."""
    return tuple(
        {
            f"{ID_LABEL}{token}": float(value)
            for token, value in zip((*top, own), (*values, logprob), strict=True)
        }
        for top, values, own, logprob in zip(
            kept.top_ids.tolist(),
            kept.top_logprobs.tolist(),
            kept.token_ids.tolist(),
            kept.token_logprobs.tolist(),
            strict=True,
        )
    )


def bound_kl(base: TopLogprobs, candidate: TopLogprobs) -> tuple[Float, Float, Float]:
    """Lower bound of KL in nats, the base's mass on shared tokens, and their number, shape (T,).

    Sums beyond 1 by rounding are renormalised. Two sides that say the same have exactly 0.

    Args:
        base, candidate: of the same T positions.

    Raises:
        ValueError: for different numbers of positions.
    """
    if len(base) != len(candidate):
        raise ValueError(f"{len(base)} and {len(candidate)} positions")
    bounds = [_bound(ours, theirs) for ours, theirs in zip(base, candidate, strict=True)]
    columns = np.array(bounds, dtype=np.float64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _bound(base: Mapping[str, float], candidate: Mapping[str, float]) -> tuple[float, float, int]:
    pairs = [
        (base[label], candidate[label])
        for label in base.keys() & candidate.keys()
        if label and _NO_NAME not in label
    ]
    pairs = sorted(
        pair for pair in pairs if all(NO_PROBABILITY < value < math.inf for value in pair)
    )
    logs = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    (log_p, p_rest), (log_q, q_rest) = _with_rest(logs[:, 0]), _with_rest(logs[:, 1])
    p = np.exp(log_p)
    head = math.fsum((p * (log_p - log_q)).tolist())
    rest = p_rest * math.log(p_rest / max(q_rest, _LEAST_REST)) if p_rest > 0.0 else 0.0
    return max(head + rest, 0.0), min(math.fsum(p.tolist()), 1.0), len(pairs)


def _with_rest(logs: Float) -> tuple[Float, float]:
    """Log-probabilities, scaled to 1 where they sum to more, and what they leave to the others."""
    total = math.fsum(np.exp(logs).tolist())
    return (logs - math.log(total), 0.0) if total > 1.0 else (logs, 1.0 - total)
