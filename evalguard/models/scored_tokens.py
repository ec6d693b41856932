"""What a model was fed for one scored piece of text, and what it answered token by token."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.scorer import LENGTH_NAMES
from evalguard.core.shown_tokens import TopLogprobs
from evalguard.errors import EvaluationError

# Generated one after the other before they are kept: a few minutes of a large model, or less.
TOKENS_OF_A_PART = 4096


def generated_length(options: Mapping[str, Any], default: int) -> int:
    """Return the largest number of tokens to generate."""
    given = [options[name] for name in LENGTH_NAMES if options.get(name) is not None]
    return int(given[0] if given else default)


def refuse_without_room(longest: int, max_length: int, *, hint: str) -> None:
    """Refuse to generate so many tokens that a prompt would be cut to nothing.

    Raises:
        EvaluationError: ``longest`` tokens leave none of ``max_length`` for a prompt.
    """
    if longest >= max_length:
        raise EvaluationError(
            f"{longest} tokens are to be generated, which leaves no room for a context in the "
            f"model's {max_length}",
            hint=hint,
        )


class UnscorablePairError(EvaluationError):
    """One (context, continuation) pair cannot be scored; ``position`` is its place in the call."""

    def __init__(self, message: str, *, position: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.position = position


def refuse_empty_side(
    context: Sequence[int], continuation: Sequence[int], *, position: int
) -> None:
    """Refuse a pair of which one side encodes to nothing.

    Raises:
        UnscorablePairError: naming the side.
    """
    if context and continuation:
        return
    empty = "continuation (a target, or one of the choices)" if context else "context"
    raise UnscorablePairError(
        f"a request encodes to {len(context)} context and {len(continuation)} continuation tokens; "
        "both need at least one",
        position=position,
        hint=f"the document's {empty} is empty, or holds only what the tokenizer drops",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTokens:
    """Token ids fed for one request or window: context and continuation, after truncation.

    The last ``n_scored`` of ``ids`` are the continuation.
    """

    ids: tuple[int, ...]
    n_scored: int
    truncated: bool = False
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hash the ids once: pieces are looked up many times."""
        object.__setattr__(self, "_hash", hash((self.ids, self.n_scored, self.truncated)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of_pair(
        cls, context: Sequence[int], continuation: Sequence[int], max_length: int | None
    ) -> InputTokens:
        """Cut a pair from the left as lm-eval does: max_length inputs predict max_length tokens."""
        ids = (*context, *continuation)
        truncated = max_length is not None and len(ids) > max_length + 1
        if truncated and max_length is not None:
            ids = ids[-(max_length + 1) :]
        return cls(ids=ids, n_scored=len(continuation), truncated=truncated)

    @property
    def scored_ids(self) -> NDArray[np.int64]:
        """The tokens that are scored, shape (n_scored,)."""
        return np.array(self.ids[len(self.ids) - self.n_scored :], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokens:
    """A model's answer for one piece: natural log-probabilities, float64, shape (n_scored,).

    ``top_logprobs``: what a server shows of the same positions' distributions, where it was asked.
    """

    fed: InputTokens
    logprobs: NDArray[np.float64]
    is_greedy: bool
    top_logprobs: TopLogprobs | None = None


def pair_answer(piece: ScoredTokens) -> tuple[float, bool]:
    """lm-eval's answer to a (context, continuation) pair."""
    return float(piece.logprobs.sum()), piece.is_greedy


def text_answer(windows: Sequence[ScoredTokens]) -> float:
    """lm-eval's answer to a whole text, of its windows."""
    return sum(float(window.logprobs.sum()) for window in windows)


def hash_input_tokens(pieces: Sequence[InputTokens]) -> str:
    """Hash of the ids of one request's pieces and of where each continuation begins."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(np.array([len(piece.ids), piece.n_scored, *piece.ids], dtype="<i8").tobytes())
    return digest.hexdigest()[:16]
