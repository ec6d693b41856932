"""Whether a loaded model can share prefixes: read off it, and tried on a few tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from evalguard.errors import EvaluationError
from evalguard.models.answer_failures import explain_failures
from evalguard.models.hf.attention_reach import AttentionReach, read_attention_reach
from evalguard.models.hf.longrope import scales_with_length
from evalguard.models.hf.prefix_sharing import PrefixSharing
from evalguard.models.hf.prefix_tree import PrefixTree, build_prefix_tree
from evalguard.models.hf.scored_tokens import InputTokens
from evalguard.models.hf.sharing_check import compare_with_plain_batches
from evalguard.models.hf.tree_batch import build_tree_batch

# Of the trees that are made up: small, for huge models read them, too.
_CONTEXTS, _CONTINUATIONS, _TRUNK = (14, 9), (1, 3, 4), 5
_LONGEST_PROBED_WINDOW = 256  # a window beyond that is checked where a document reaches it
_PROBE_TEXT = (
    "The keeper of the lighthouse counted the bells again, wrote the hour into his book and went "
    "down to the harbour, where nobody had seen the boat since the fog came in."
)


def decide_sharing(lm: Any) -> None:
    """Let a ``PieceScoring`` model share prefixes if it can; ``lm.unshared`` says why it cannot.

    A few tokens are read as trees and in plain batches.
    """
    lm.unshared = _sharing_obstacle(lm)
    if lm.unshared:
        lm.sharing = None
    lm.gave_up = None  # what made-up tokens show is not a reason to give up anything but sharing


def _sharing_obstacle(lm: Any) -> str:
    if scales_with_length(lm.config, lm.max_length):
        return "rotary frequencies follow the longest sequence that was read"
    reach = read_attention_reach(lm.model)
    if isinstance(reach, str):
        return reach
    lm.sharing = PrefixSharing(reach)
    try:
        with explain_failures("reading a few tokens as a tree", ()):
            found = [_probe_trees(lm, trees, reach) for trees in _build_probe_trees(lm, reach)]
    except EvaluationError as error:
        return str(error)
    return next(filter(None, found), "")


def _probe_trees(lm: Any, trees: list[PrefixTree], reach: AttentionReach) -> str:
    pieces = [piece for tree in trees for piece in tree.pieces]
    return compare_with_plain_batches(lm, build_tree_batch(trees, reach), pieces)


def _build_probe_trees(lm: Any, reach: AttentionReach) -> Iterator[list[PrefixTree]]:
    """Trees of two widths; the same on a trunk; one beyond each window that is not too far."""
    ids = np.array(lm.tok_encode(_PROBE_TEXT, add_special_tokens=False) or [lm.prefix_token_id])
    random = np.random.default_rng(0)
    room = lm.max_length - max(_CONTINUATIONS)

    def pieces(length: int, start: Sequence[int] = ()) -> list[InputTokens]:
        context = [*start, *random.choice(ids, size=length).tolist()]
        context = context[: max(1, room)]
        ends = [random.choice(ids, size=size).tolist() for size in _CONTINUATIONS]
        fitting = [end for end in ends if len(end) <= lm.max_length]
        return [InputTokens(ids=(*context, *end), n_scored=len(end)) for end in fitting]

    yield [build_prefix_tree(pieces(length)) for length in _CONTEXTS]
    trunk = random.choice(ids, size=max(0, min(_TRUNK, room - 1))).tolist()
    together = [piece for length in _CONTEXTS for piece in pieces(length, trunk)]
    yield [build_prefix_tree(together, after=len(trunk))]
    for size in reach.borders:
        if _CONTEXTS[0] < size <= _LONGEST_PROBED_WINDOW:
            yield [build_prefix_tree(pieces(size + 4))]
