"""Whether a loaded model can share prefixes: read off it, and tried on a few tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from evalguard.errors import EvaluationError
from evalguard.models.agreement import disagreement
from evalguard.models.attention_reach import AttentionReach, attention_reach
from evalguard.models.failures import failures
from evalguard.models.prefix_sharing import PrefixSharing
from evalguard.models.prefix_tree import PrefixTree, prefix_tree
from evalguard.models.rope import scales_with_length
from evalguard.models.scored_tokens import FedTokens
from evalguard.models.tree_batch import tree_batch

# Of the trees that are made up: small, for huge models read them, too.
_CONTEXTS, _CONTINUATIONS, _TRUNK = (14, 9), (1, 3, 4), 5
_FARTHEST = 256  # a window beyond that is checked where a document reaches it
_TEXT = (
    "The keeper of the lighthouse counted the bells again, wrote the hour into his book and went "
    "down to the harbour, where nobody had seen the boat since the fog came in."
)


def settle_sharing(lm: Any) -> None:
    """Let a ``PieceScoring`` model share prefixes if it can; ``lm.unshared`` says why it cannot.

    A few tokens are read as trees and in plain batches.
    """
    lm.unshared = _hindrance(lm)
    if lm.unshared:
        lm.sharing = None
    lm.gave_up = None  # what made-up tokens show is no reason to give up anything but sharing


def _hindrance(lm: Any) -> str:
    if scales_with_length(lm.config, lm.max_length):
        return "rotary frequencies follow the longest sequence that was read"
    reach = attention_reach(lm.model)
    if isinstance(reach, str):
        return reach
    lm.sharing = PrefixSharing(reach)
    try:
        with failures("reading a few tokens as a tree", ()):
            found = [_tried(lm, trees, reach) for trees in _made_up(lm, reach)]
    except EvaluationError as error:
        return str(error)
    return next(filter(None, found), "")


def _tried(lm: Any, trees: list[PrefixTree], reach: AttentionReach) -> str:
    pieces = [piece for tree in trees for piece in tree.pieces]
    return disagreement(lm, tree_batch(trees, reach), pieces)


def _made_up(lm: Any, reach: AttentionReach) -> Iterator[list[PrefixTree]]:
    """Trees of two widths; the same on a trunk; one beyond each window that is not too far."""
    ids = np.array(lm.tok_encode(_TEXT, add_special_tokens=False) or [lm.prefix_token_id])
    random = np.random.default_rng(0)
    room = lm.max_length - max(_CONTINUATIONS)

    def pieces(length: int, start: Sequence[int] = ()) -> list[FedTokens]:
        context = [*start, *random.choice(ids, size=length).tolist()]
        context = context[: max(1, room)]
        ends = [random.choice(ids, size=size).tolist() for size in _CONTINUATIONS]
        fitting = [end for end in ends if len(end) <= lm.max_length]
        return [FedTokens(ids=(*context, *end), n_scored=len(end)) for end in fitting]

    yield [prefix_tree(pieces(length)) for length in _CONTEXTS]
    trunk = random.choice(ids, size=max(0, min(_TRUNK, room - 1))).tolist()
    together = [piece for length in _CONTEXTS for piece in pieces(length, trunk)]
    yield [prefix_tree(together, after=len(trunk))]
    for size in reach.borders:
        if _CONTEXTS[0] < size <= _FARTHEST:
            yield [prefix_tree(pieces(size + 4))]
