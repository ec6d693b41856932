"""Where two models' answers first differ, and whether the base was undecided there.

Up to there both have written the same tokens, so both distributions stand on the same text, and
the two tokens' log-odds on either side say how far the candidate has moved them: from the base's
margin for its own token to the candidate's margin for the other one.

**Near tie.** Neither side, as far as its margins are known, prefers its own token to the most
probable other one by more than ``NEAR_TIE`` = 0.25 nats (1.28 times as probable), and on at least
one side that other token is the other model's. Where it is on neither side, several tokens are
about equal, and the odds of these two are not shown: not known. A quarter is two steps of bfloat16
at the logits of large models: it has 8 significant bits, so that logits from 16 to 32 are multiples
of 1/8, and one rounding of each of the two tokens moves their difference by 2/8. Both sides count,
because a fault moves the log-odds by a shift s wherever it acts: where that changes the token, the
base's margin lies anywhere between 0 and s, while the larger of the two margins is at least s/2.

Measured on two trained models (benchmarks/results/first_differences.md): of the first differences
between float32 and bfloat16 or float16 none was beyond near ties, of int8 at most 1 in 50; of those
that a wrong rotary base, exchanged heads or attention scaled by 1.5 makes 53% to 86%. A fault that
moves log-odds less than bfloat16 does cannot be told from rounding by one token; its number of
differences can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from evalguard.core.generation_comparison import FirstDifference
from evalguard.core.scorer import Ending
from evalguard.core.shown_tokens import UNKNOWN_TOKEN, GeneratedTokens

NEAR_TIE = 0.25  # nats
# Of greedy decoding no margin is below zero; a server's rounded log-probabilities may be, a little.
_SAMPLED = -1e-3


def find_first_difference(
    base_text: str,
    candidate_text: str,
    base: GeneratedTokens | None,
    candidate: GeneratedTokens | None,
    *,
    greedy: bool = False,
    ended: tuple[Ending, Ending] = ("", ""),
) -> FirstDifference | None:
    """Return where a candidate's answer first differs from the base's; None: it is the same text.

    Ids are compared, so both models must have the same tokens. Where all tokens are the same and
    the texts are not, one was damaged after it was written (a piece lost from its middle, sent
    twice, decoded otherwise): no tie makes that.

    Args:
        base, candidate: the texts' tokens; without those of either the position is unknown.
        greedy: both were to take the most probable token each time: one that takes a less probable
            one was not drawn, and is as far from a tie as its odds are.
        ended: why either ended. One that ended by itself chose to, though its end is no token that
            is shown: no tie where the other one clearly preferred to go on.
    """
    if base_text == candidate_text:
        return None
    if base is None or candidate is None:
        return FirstDifference()
    most = min(len(base), len(candidate))
    named = (base.ids[:most] >= 0) == (candidate.ids[:most] >= 0)  # by id, or by text
    unequal = np.flatnonzero((base.ids[:most] != candidate.ids[:most]) | ~named)
    if not len(unequal) and abs(len(base) - len(candidate)) <= 1:  # an end may not be shown
        if not _may_be_whole(base_text, candidate_text, base):
            return FirstDifference(near_tie=False)
        if len(base) == len(candidate):
            return FirstDifference()
    if len(unequal) and not named[unequal[0]]:
        return FirstDifference()  # whether these are one token nobody knows
    position = int(unequal[0]) if len(unequal) else most
    ours, theirs = _token_at(base, position), _token_at(candidate, position)
    there = ours != UNKNOWN_TOKEN and theirs != UNKNOWN_TOKEN
    margin = float(base.margins[position]) if there else math.nan
    candidate_margin = float(candidate.margins[position]) if there else math.nan
    exact = (
        there and int(base.others[position]) == theirs,
        there and int(candidate.others[position]) == ours,
    )
    sampled = not greedy and (_is_sampled(base) or _is_sampled(candidate))
    near_tie = None if sampled else _is_near_tie((margin, candidate_margin), exact)
    if not (sampled or there):
        ours_over = _goes_on(base_text, ended[0], candidate_text, candidate, position)
        over = ours_over or _goes_on(candidate_text, ended[1], base_text, base, position)
        near_tie = False if over else near_tie
    return FirstDifference(
        position=position,
        base_token=ours if ours >= 0 else None,
        candidate_token=theirs if theirs >= 0 else None,
        base_margin=_or_none(margin),
        base_margin_exact=exact[0],
        candidate_margin=_or_none(candidate_margin),
        candidate_margin_exact=exact[1],
        near_tie=near_tie,
    )


def _goes_on(
    text: str, ended: Ending, longer_text: str, longer: GeneratedTokens, position: int
) -> bool:
    """Whether a text ended by itself where the other one clearly goes on."""
    shorter, further = ("".join(side.split()) for side in (text, longer_text))
    return (
        ended == "stop"
        and position < len(longer)
        and len(further) > len(shorter)
        and further.startswith(shorter)
        and abs(float(longer.margins[position])) > NEAR_TIE
    )


# So many ids in a row are not the same by chance where two tokenizers give them to other tokens.
_FEWEST_IDS = 4


def _may_be_whole(base_text: str, candidate_text: str, tokens: GeneratedTokens) -> bool:
    """Whether two texts of the same tokens may differ without damage to either.

    By white space alone, as two decoders write it; by their ends, as two rules for stops cut them;
    as a few ids of two tokenizers.
    """
    ours, theirs = ("".join(text.split()) for text in (base_text, candidate_text))
    cut = ours.startswith(theirs) or theirs.startswith(ours)
    return cut or (len(tokens) < _FEWEST_IDS and bool((tokens.ids >= 0).any()))


Shown = Sequence[GeneratedTokens | None]


def shows_odds(*sides: Shown) -> bool:
    """Whether the margins of any token are shown of each side's answers."""
    return all(
        any(answer is not None and bool(np.isfinite(answer.margins).any()) for answer in tokens)
        for tokens in sides
    )


def is_against_odds(tokens: GeneratedTokens) -> bool:
    """Whether any token was clearly less probable than another one, by the model's own numbers."""
    return bool((tokens.margins < -NEAR_TIE).any())


def judged_documents(
    beyond: Mapping[int, float | None], odds: Mapping[int, bool]
) -> dict[int, float]:
    """The share of each document's answers beyond near ties, where it is known.

    Answers that are the same are no share of those that differ: where none of these shows its odds,
    only they would count, and nothing is known of any.

    Args:
        beyond: by document; None where a difference cannot be judged.
        odds: of documents whose answers differ, whether both sides ``shows_odds``.
    """
    known = {doc_id: value for doc_id, value in beyond.items() if value is not None}
    judged = not odds or any(odds.values()) or any(known.values())
    return known if judged else {}


def _token_at(tokens: GeneratedTokens, position: int) -> int:
    """A token, or unknown where the text was over: cut, or its end is not shown."""
    return int(tokens.ids[position]) if position < len(tokens) else UNKNOWN_TOKEN


def _is_sampled(tokens: GeneratedTokens) -> bool:
    """Whether any token was not the most probable one: what was drawn is no question of ties."""
    return bool((tokens.margins < _SAMPLED).any())


def _is_near_tie(margins: Sequence[float], exact: Sequence[bool]) -> bool | None:
    """Whether neither side was decided; None where that is not known.

    Args:
        margins: base's and candidate's to their most probable other token, NaN where unknown;
            ``exact``: whether that is the other side's token.
    """
    if any(abs(margin) > NEAR_TIE for margin in margins):  # NaN is not
        return False
    known = [fits and not math.isnan(margin) for margin, fits in zip(margins, exact, strict=True)]
    return True if any(known) else None


def _or_none(margin: float) -> float | None:
    return None if math.isnan(margin) else margin
