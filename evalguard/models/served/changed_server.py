"""Whether a server still answers as it did: prompts that it answered before are asked once more.

Numbers of prompts: half precision and batches of other sizes leave up to ``EXACT`` nats a token.
Texts: rounding changes which of two tokens as probable is chosen, in some 0.3% of all tokens, and
so more long texts than short ones. A server that varies by more than that shows it when it is asked
twice now, and is held to what it shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.scorer import Response
from evalguard.models.served.repeated_answers import EXACT, LARGEST, WINDOW

# Of tokens, how many rounding turns into others, with what is behind them.
_TURNED = 0.003
_CHARACTERS = 4.0  # of a token, where a server shows none
_LARGEST_OF_TOKEN = 5.0  # nats: one token tells no more
# Chance that so many texts differ of a server that is the same: a run must not end for nothing.
SURE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChange:
    """How a server's answers differ from those that it gave to the same prompts before.

    Attributes:
        nats_per_token: mean difference of log-probabilities; None of texts.
        texts: how many are others; ``prompts``: of so many.
    """

    prompts: int
    texts: int = 0
    nats_per_token: float | None = None

    @property
    def words(self) -> str:
        """The difference, to follow "asked again"."""
        if self.nats_per_token is None:
            return f"{self.texts} of {self.prompts} prompts have another answer"
        return (
            f"{self.prompts} prompts have log-probabilities that differ by "
            f"{self.nats_per_token:.2g} nats a token"
        )


def find_change(
    before: Sequence[Response],
    again: Sequence[Response],
    ask: Callable[[], Sequence[Response]],
    *,
    spread: float,
    chance: float = SURE,
) -> AnswerChange | None:
    """Compare a server's answers with those before; None where it may be the same server.

    Args:
        before, again: answers to the same requests, all of one kind.
        ask: asks the same once more, which tells how the server varies now; only called where the
            answers differ by more than they should.
        spread: nats a token by which the server was seen to vary.
        chance: of texts, that a server which is the same is taken for another one.
    """
    if before[0].text is None:
        return _find_other_numbers(before, again, ask, spread)
    return _find_other_texts(before, again, ask, chance)


def _find_other_numbers(
    before: Sequence[Response],
    again: Sequence[Response],
    ask: Callable[[], Sequence[Response]],
    spread: float,
) -> AnswerChange | None:
    differences = _differences(before, again)
    mean = float(differences.mean()) if len(differences) else 0.0
    # A mean of few tokens is less sure; of a window, half precision leaves no more than this.
    rounding = EXACT * math.sqrt(max(1.0, WINDOW / max(len(differences), 1)))
    allowed = min(LARGEST, rounding + 3.0 * spread)
    if mean <= allowed:
        return None
    third = ask()
    noise = float(_differences(again, third).mean())
    nearest = min(mean, float(_differences(before, third).mean()))
    if nearest <= min(LARGEST, max(allowed, 3.0 * noise)):
        return None
    return AnswerChange(prompts=len(before), nats_per_token=nearest)


def _differences(one: Sequence[Response], other: Sequence[Response]) -> NDArray[np.float64]:
    """Absolute differences of all scored tokens' log-probabilities, in nats."""
    distances = []
    for ours, theirs in zip(map(_numbers, one), map(_numbers, other), strict=True):
        if len(ours) != len(theirs):  # other tokens: another tokenizer
            distances.append(np.full(max(len(ours), len(theirs)), _LARGEST_OF_TOKEN))
            continue
        with np.errstate(invalid="ignore"):
            apart = np.where(ours == theirs, 0.0, np.abs(ours - theirs))
        apart = np.nan_to_num(apart, nan=_LARGEST_OF_TOKEN, posinf=_LARGEST_OF_TOKEN)
        distances.append(np.minimum(apart, _LARGEST_OF_TOKEN))
    return np.concatenate(distances) if distances else np.zeros(0)


def _numbers(response: Response) -> NDArray[np.float64]:
    if response.token_logprobs is not None:
        return response.token_logprobs
    return np.array([response.loglikelihood], dtype=np.float64)


def _find_other_texts(
    before: Sequence[Response],
    again: Sequence[Response],
    ask: Callable[[], Sequence[Response]],
    chance: float,
) -> AnswerChange | None:
    first, second = ([_answer(response) for response in answers] for answers in (before, again))
    changes = [earlier != two for earlier, two in zip(first, second, strict=True)]
    turned = [1.0 - (1.0 - _TURNED) ** max(_length(response), 1.0) for response in before]
    rate = sum(turned) / len(turned)
    if _tail(sum(changes), len(changes), rate) >= chance:
        return None
    third = [_answer(response) for response in ask()]
    noise = sum(earlier != two for earlier, two in zip(second, third, strict=True)) / len(third)
    changed = sum(
        differs and earlier != two
        for differs, earlier, two in zip(changes, first, third, strict=True)
    )
    if _tail(changed, len(changes), max(rate, noise)) >= chance:
        return None
    return AnswerChange(prompts=len(before), texts=changed)


def _answer(response: Response) -> tuple[str, str]:
    """The text, and what came beside it but for ids, which are drawn anew each time."""
    try:
        beside = json.loads(response.message) if response.message else {}
    except ValueError:
        beside = response.message
    return response.text or "", json.dumps(_without_ids(beside), sort_keys=True)


def _without_ids(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_ids(part) for name, part in value.items() if name != "id"}
    return [_without_ids(part) for part in value] if isinstance(value, list) else value


def _length(response: Response) -> float:
    """Tokens of an answer, about."""
    return len("".join(_answer(response))) / _CHARACTERS


def _tail(count: int, n: int, rate: float) -> float:
    """Chance that ``count`` of n or more happen, each with this rate."""
    if count <= 0 or rate >= 1.0:
        return 1.0
    return sum(math.comb(n, k) * rate**k * (1.0 - rate) ** (n - k) for k in range(count, n + 1))
