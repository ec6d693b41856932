"""Whether a server answers a prompt alike whenever it is asked: prefix caches, and noise.

Prefix caches keep blocks of 16 to 256 tokens, and answer the beginning of a prompt by what was
computed for another one. So the prompts here are of several blocks and a part of one. Beside the
first there are three that differ from it in a few tokens: at the beginning (a cache has nothing in
common with them), in the middle (it has the first blocks) and at the end (it has all whole blocks).

**Noise** is measured: the first prompt is asked twice running. Numbers are compared over windows of
16 tokens, the smallest block, by the mean of the differences in nats a token. Beyond ``LARGEST``
they are no rounding: half precision leaves 0.01 to 0.05, routed experts up to 0.2, while one wrong
block changes what follows by nats. With other prompts between, the first one has to come back
within ten times the noise and ``EXACT``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.findings import Finding
from evalguard.errors import EvaluationError

Values = NDArray[np.float64]
LONG_PROMPT = 647
"""Tokens: 40 blocks of 16 and 2 of 256, and a part of one."""
WINDOW = 16
EXACT, LARGEST = 0.05, 0.25
"""Nats a token."""
_TOLD = 1e-4  # nats a token: less is the rounding of single precision
_SURE = -0.01  # nats: of what a model is sure of, numbers say little
_SAME = 1e-9
# Tokens behind a change by which is seen that a model looks back: the next one is left out.
_REACH = 3
_TELLING = 16  # characters of a text that is no other prompt's by chance
_HINT = (
    "start the server without prefix caching (vLLM: --no-enable-prefix-caching, SGLang: "
    "--disable-radix-cache), or with another version of it; --batch_size 1 and num_concurrent 1 "
    "where it is batches"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredPrompt:
    """A prompt like the first one, but for the units (tokens or words) from start to end."""

    units: list[Any]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePrompts:
    """The first prompt, and those that differ from it at the beginning, in the middle, at the end.

    All have the same length.
    """

    first: list[Any]
    others: tuple[AlteredPrompt, ...]

    @property
    def all(self) -> list[list[Any]]:
        """The first one, and the others."""
        return [self.first, *(prompt.units for prompt in self.others)]

    def turned(self) -> list[list[Any]]:
        """Prompts that begin as the first one and go on with its tokens in another order.

        Two share one block of 16 with it, the third one of 256. All end in other ways.
        """
        prompts = []
        for part, begin in ((1, 20), (2, 20), (3, 300)):
            shared = min(begin, len(self.first) // 2)
            head, rest = self.first[:shared], self.first[shared:]
            step = len(rest) * part // 4
            prompts.append([*head, *rest[step:], *rest[:step]])
        return prompts


def fit_length(room: int) -> int:
    """The length of probe prompts where so many tokens are read: a part of a block is left over."""
    part = LONG_PROMPT % WINDOW
    return min(LONG_PROMPT, room if room < part + WINDOW else room - (room - part) % WINDOW)


def make_prompts(units: Sequence[Any], length: int) -> ProbePrompts | None:
    """Make prompts of some length out of what is to be asked.

    Args:
        units: token ids or words; repeated where there are too few.

    Returns:
        None where there are no two different units, or no place for three changes.
    """
    known = list(dict.fromkeys(units))
    if len(known) < 2 or length < 8:
        return None
    first = [units[n % len(units)] for n in range(length)]
    some, middle = max(1, min(8, length // 6)), length // 2
    # Behind the last change are tokens that no block of 16 or more holds: they show how far it
    # reaches, whatever is cached.
    last = length - 1 - min(_REACH, length // 4)
    places = [(1, 1 + some), (middle, middle + some), (last - min(3, some), last)]
    return ProbePrompts(
        first=first,
        others=tuple(_altered(first, known, start, end) for start, end in places),
    )


def _altered(first: Sequence[Any], known: Sequence[Any], start: int, end: int) -> AlteredPrompt:
    index = {unit: n for n, unit in enumerate(known)}
    units = list(first)
    for position in range(start, end):
        step = 1 + position % (len(known) - 1)
        units[position] = known[(index[units[position]] + step) % len(known)]
    return AlteredPrompt(units=units, start=start, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """The window of tokens in which two lists of log-probabilities differ most.

    Attributes:
        mean: of the absolute differences in it, nats a token; ``largest``: of any one token.
        start, end: of the window, counted from 0.
    """

    mean: float = 0.0
    largest: float = 0.0
    start: int = 0
    end: int = 0


def measure_distance(one: Values, other: Values) -> Distance:
    """Compare log-probabilities of the same tokens, shape (n,); minus infinity equals itself."""
    if not len(one):
        return Distance()
    differences = np.zeros(len(one))
    unequal = one != other
    with np.errstate(invalid="ignore"):
        differences[unequal] = np.abs(one[unequal] - other[unequal])
    differences = np.minimum(np.nan_to_num(differences, nan=1e3, posinf=1e3), 1e3)
    width = min(WINDOW, len(differences))
    means = np.convolve(differences, np.full(width, 1.0 / width), mode="valid")
    at = int(np.argmax(means))
    return Distance(
        mean=float(means[at]), largest=float(differences.max()), start=at, end=at + width
    )


def allowed_change(noise: float) -> float:
    """Nats a token by which a prompt may differ that is asked again after others."""
    return min(LARGEST, EXACT + 10.0 * noise)


How = Literal[
    "asked again",
    "asked again after others",
    "asked with its log-probabilities",
    "in one batch",
    "at the same time",
]


@dataclass(slots=True)
class AnswerSpread:
    """The largest difference between two answers to one prompt, that is no reason to refuse.

    Attributes:
        texts: of greedy texts that differ, where two tokens are (nearly) as probable.
    """

    distance: Distance = field(default_factory=Distance)
    how: How = "asked again"
    texts: int = 0

    def add(self, distance: Distance, how: How) -> None:
        """Remember a difference, if it is the largest one."""
        if distance.mean > self.distance.mean:
            self.distance, self.how = distance, how

    def findings(self) -> tuple[Finding, ...]:
        """What every reader has to know; nothing of a server that repeats itself."""
        variations = []
        mean, largest = self.distance.mean, self.distance.largest
        if mean > _TOLD:
            variations.append(
                Finding(
                    kind="server_varies",
                    text=f"the server gives one prompt, {self.how}, log-probabilities that differ "
                    f"by {mean:.2g} nats a token (of one token {largest:.2g})",
                    values={"how": self.how, "nats_per_token": mean, "largest": largest},
                )
            )
        if self.texts:
            variations.append(
                Finding(
                    kind="server_varies",
                    text="the server gives one prompt more than one greedy text "
                    f"({self.texts} of the probe's)",
                    values={"how": "greedy texts", "texts": self.texts},
                )
            )
        return tuple(variations)


def check_repeated_prompts(
    prompts: ProbePrompts,
    ask: Callable[[Sequence[Sequence[int]]], list[Values]],
    *,
    batches: bool,
    first: Values,
) -> AnswerSpread:
    """Ask for one prompt again, with others between and, in a batch, beside it.

    Args:
        ask: the numbers of all tokens but the first of each prompt, asked in one request.
        first: what ``ask`` has given the first prompt, which nobody had asked before.

    Raises:
        EvaluationError: a cache gives a prompt what is another's, or the server's answers vary by
            more than rounding.
    """
    spread = AnswerSpread()
    (again,) = ask([prompts.first])
    noise = measure_distance(first, again)
    if noise.mean > LARGEST:
        raise EvaluationError(
            f"asked the same prompt of {len(prompts.first)} tokens twice, the server gives "
            f"log-probabilities that differ by {noise.mean:.2g} nats a token ({_place(noise)}): "
            "its cache gives other numbers than it was filled with, or it computes at random",
            hint=_HINT,
        )
    spread.add(noise, "asked again")
    alone = [first]
    for prompt in prompts.others:
        (answer,) = ask([prompt.units])
        _check_altered(prompt, answer, first, noise)
        alone.append(answer)
    _check_reach(prompts, alone, noise)
    (last,) = ask([prompts.first])
    distance = min(
        (measure_distance(earlier, last) for earlier in (first, again)),
        key=lambda earlier: earlier.mean,
    )
    if distance.mean > allowed_change(noise.mean):
        raise EvaluationError(
            f"asked for the same prompt of {len(prompts.first)} tokens after others, the server "
            f"gives log-probabilities that differ by {distance.mean:.2g} nats a token "
            f"({_place(distance)}; by {noise.mean:.2g} when it is asked twice running): its prefix "
            "cache is stale, or mixes prompts up",
            hint=_HINT,
        )
    spread.add(distance, "asked again after others")
    if batches:
        two = [0, 2]
        beside = ask([prompts.all[n] for n in two])
        _check_beside([alone[n] for n in two], beside, "in one batch", spread)
    return spread


def _check_altered(other: AlteredPrompt, told: Values, first: Values, noise: Distance) -> None:
    """Compare the answer to another prompt with the first one's, before the change and in it."""
    start, end = other.start - 1, other.end - 1  # the first token has no number
    before = measure_distance(told[:start], first[:start])
    if before.mean > LARGEST:
        raise EvaluationError(
            f"two prompts share their first {other.start} tokens, and the server gives these "
            f"log-probabilities that differ by {before.mean:.2g} nats a token ({_place(before)}): "
            "its prefix cache is stale, or mixes prompts up",
            hint=_HINT,
        )
    changed = np.abs(_finite(told[start:end]) - _finite(first[start:end]))
    # Of a single token, two may have the same number by chance where numbers are rounded.
    if len(changed) > 1 and float(changed.mean()) <= _SAME + noise.mean:
        raise EvaluationError(
            f"two prompts differ in tokens {other.start + 1} to {other.end} of {len(first) + 1}, "
            "and the server gives these the same log-probabilities: its prefix cache mixes "
            "prompts up",
            hint=_HINT,
        )


def _check_reach(prompts: ProbePrompts, told: Sequence[Values], noise: Distance) -> None:
    """Compare how far changes reach: as far as the last one, which no cached block follows.

    A model that looks at the token before and no further shows no effect of any of them.
    """
    first, *altered = told
    effects = []
    for prompt, numbers in zip(prompts.others, altered, strict=True):
        behind = slice(prompt.end, prompt.end + WINDOW)  # in numbers: one token left out
        effects.append(measure_distance(numbers[behind], first[behind]).largest)
    *early, last = effects
    for prompt, effect in zip(prompts.others, early, strict=False):
        if last > 10.0 * noise.largest + _SAME and effect <= 2.0 * noise.largest + _SAME:
            raise EvaluationError(
                f"with other tokens {prompt.start + 1} to {prompt.end}, those that follow have the "
                f"log-probabilities of the first prompt, and a change near its end moves them by "
                f"{last:.2g} nats: the server's prefix cache mixes prompts up",
                hint=_HINT,
            )


def _finite(values: Values) -> Values:
    return np.maximum(values, -1e3)


def _check_beside(
    alone: Sequence[Values], told: Sequence[Values], how: How, spread: AnswerSpread
) -> None:
    for own, answer in zip(alone, told, strict=True):
        distance = measure_distance(own, answer)
        if distance.mean > LARGEST:
            raise EvaluationError(
                f"of {len(alone)} prompts of {len(own) + 1} tokens {how}, the server gives one "
                f"log-probabilities that differ from its own by {distance.mean:.2g} nats a token "
                f"({_place(distance)})",
                hint=_HINT,
            )
        spread.add(distance, how)


def _place(distance: Distance) -> str:
    return f"tokens {distance.start + 2} to {distance.end + 1}"


def check_cached_prompts(
    prompts: ProbePrompts, ask: Callable[[Sequence[int], bool], Values]
) -> AnswerSpread:
    """Compare the answers of a server that computes without its cache where it is told to.

    Args:
        ask: what it says of the tokens that follow a prompt; whether from its cache.

    Raises:
        EvaluationError: the two differ by more than rounding.
    """
    spread = AnswerSpread()
    asked = [prompts.first, *prompts.all, prompts.first]
    cached = [ask(ids, True) for ids in asked]
    known = {tuple(ids): ask(ids, False) for ids in prompts.all}
    for prompt, answer in zip(asked, cached, strict=True):
        distance = measure_distance(known[tuple(prompt)], answer)
        if distance.mean > LARGEST:
            raise EvaluationError(
                f"after a prompt of {len(prompt)} tokens, the server's log-probabilities differ by "
                f"{distance.mean:.2g} nats a token from those that it computes without its cache "
                "(cache_prompt: false): the cache is stale, or mixes prompts up",
                hint="another version of llama.cpp, or other flags (--cache-reuse 0, --parallel 1)",
            )
        spread.add(distance, "asked again after others")
    return spread


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyAnswer:
    """A text, and its tokens with their log-probabilities where the server shows them."""

    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()

    def has_tokens(self) -> bool:
        """Whether every token has its number."""
        return bool(self.tokens) and len(self.tokens) == len(self.logprobs)


def check_repeated_texts(
    prompts: ProbePrompts,
    ask: Callable[[Sequence[Sequence[Any]]], list[GreedyAnswer]],
    ask_at_once: Callable[[Sequence[Sequence[Any]]], list[GreedyAnswer]],
    ask_anew: Callable[[Sequence[Sequence[Any]]], list[float]] | None,
    *,
    batches: bool,
    concurrent: bool,
    first: GreedyAnswer,
) -> AnswerSpread:
    """Ask for greedy texts again and again, with others between and beside them.

    Args:
        ask: the answers to prompts of one request; ``ask_at_once``: of a request each, that are in
            flight together.
        ask_anew: the log-probability of each text's first token in the way in which those of
            prompts are asked for, [] where there are none; None: it cannot be asked.
        first: what ``ask`` has given the first prompt.

    Raises:
        EvaluationError: a prompt has another's answer, or other texts from one asking to the next
            where no two tokens were as probable as each other.
    """
    spread = AnswerSpread()
    (again,) = ask([prompts.first])
    _check_text(first, again, "asked again", LARGEST, spread)
    noise = spread.distance.mean
    altered_answers = [ask([prompt.units])[0] for prompt in prompts.others]
    for altered, altered_answer in zip(prompts.others, altered_answers, strict=True):
        _refuse_same_tokens(altered, altered_answer, first)
    (last,) = ask([prompts.first])
    if last.text != first.text and _is_anothers(last, altered_answers):
        raise EvaluationError(
            f"asked for the same prompt after others, the server answers with the text of another "
            f"one ({_shown(last.text)})",
            hint=_HINT,
        )
    allowed = allowed_change(noise)
    _check_text(again, last, "asked again after others", allowed, spread)
    if spread.texts and not (first.has_tokens() and last.has_tokens()):
        _look_closer(first, again, last, [ask([prompts.first])[0] for _ in range(3)])
    turned = prompts.turned()  # what ends otherwise has another text, as a rule
    alone = [first, *(ask([units])[0] for units in turned)]
    if ask_anew is not None and all(answer.has_tokens() for answer in (*alone, *altered_answers)):
        numbers = [answer.logprobs[0] for answer in (*altered_answers, *alone)]
        asked = [*(prompt.units for prompt in prompts.others), prompts.first, *turned]
        _check_anew(numbers, ask_anew(asked), len(prompts.first), allowed, spread)
    if batches:
        _check_texts_beside(alone[:2], ask([prompts.first, turned[0]]), "in one batch", spread)
    if concurrent:
        beside = ask_at_once([prompts.first, *turned])
        _check_texts_beside(alone, beside, "at the same time", spread)
    return spread


def _check_anew(
    told: Sequence[float],
    anew: Sequence[float],
    length: int,
    allowed: float,
    spread: AnswerSpread,
) -> None:
    """Compare first tokens with what a server says that computes the whole prompt."""
    if len(anew) != len(told):
        return
    distance = measure_distance(np.array(told), np.array(anew))
    if distance.mean > allowed:
        raise EvaluationError(
            f"after {len(told)} prompts of {length} tokens, the first tokens of greedy texts have "
            f"log-probabilities that differ by {distance.mean:.2g} nats from those that come with "
            "the prompts' own: texts are generated from a prefix cache that is stale, or mixes "
            "prompts up",
            hint=_HINT,
        )
    spread.add(distance, "asked with its log-probabilities")


def _check_texts_beside(
    alone: Sequence[GreedyAnswer], told: Sequence[GreedyAnswer], how: How, spread: AnswerSpread
) -> None:
    for own, answer in zip(alone, told, strict=True):
        if answer.text != own.text and _is_anothers(answer, alone):
            raise EvaluationError(
                f"of {len(alone)} prompts {how}, the server gives one the answer to another",
                hint="try --batch_size 1 and num_concurrent 1, or another version of the server",
            )
        _check_text(own, answer, how, LARGEST, spread)


def _check_text(
    one: GreedyAnswer, other: GreedyAnswer, how: How, allowed: float, spread: AnswerSpread
) -> None:
    """Compare two greedy answers to one prompt, as far as they say which tokens they chose."""
    if one.text == other.text and not (one.has_tokens() and other.has_tokens()):
        return
    if not (one.has_tokens() and other.has_tokens()):
        spread.texts += 1
        return
    pairs = list(zip(one.tokens, other.tokens, strict=False))
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
    end = min(at + 1, len(pairs))  # the first that differs has a number of its own on each side
    distance = measure_distance(np.array(one.logprobs[:end]), np.array(other.logprobs[:end]))
    if distance.mean > allowed:
        raise EvaluationError(
            f"a greedy text of one prompt, {how}, has log-probabilities that differ by "
            f"{distance.mean:.2g} nats a token ({_shown(one.text)} and {_shown(other.text)}): "
            "the server's cache is stale or mixes prompts up, or it samples at temperature 0",
            hint=_HINT,
        )
    if at < len(pairs):
        gap = abs(one.logprobs[at] - other.logprobs[at])
        most = max(one.logprobs[at], other.logprobs[at])
        if gap > LARGEST or most > np.log(0.5) + LARGEST:
            raise EvaluationError(
                f"a greedy text of one prompt, {how}, is another one ({_shown(one.text)} and "
                f"{_shown(other.text)}), and not for two tokens that are as probable: the "
                "server's cache is stale or mixes prompts up, or it samples at temperature 0",
                hint=_HINT,
            )
        spread.texts += 1
    elif one.text != other.text:  # one of them ends earlier
        spread.texts += 1
    spread.add(distance, how)


def _is_anothers(answer: GreedyAnswer, others: Sequence[GreedyAnswer]) -> bool:
    """Whether a text is another prompt's; short ones may be equal by chance."""
    return len(answer.text) >= _TELLING and answer.text in {candidate.text for candidate in others}


def _refuse_same_tokens(other: AlteredPrompt, told: GreedyAnswer, first: GreedyAnswer) -> None:
    same = (told.tokens, told.logprobs) == (first.tokens, first.logprobs)
    unsure = sum(logprob < _SURE for logprob in first.logprobs)
    if same and first.has_tokens() and unsure >= 4:
        raise EvaluationError(
            f"two prompts differ in places {other.start + 1} to {other.end} of "
            f"{len(other.units)}, and the server gives both the same text with the same "
            "log-probabilities: its prefix cache mixes prompts up",
            hint=_HINT,
        )


def _look_closer(
    first: GreedyAnswer, again: GreedyAnswer, last: GreedyAnswer, more: Sequence[GreedyAnswer]
) -> None:
    """Of texts without numbers: two that change places are a tie, as rounding makes them."""
    texts = [answer.text for answer in (first, again, last, *more)]
    later = {last.text, *(answer.text for answer in more)}
    if len(set(texts)) > 2:
        raise EvaluationError(
            f"asked {len(texts)} times for the greedy text of one prompt, the server gives "
            f"{len(set(texts))} ({_shown(texts[0])} ...): it samples at temperature 0, or answers "
            "from a cache that mixes prompts up",
            hint=_HINT,
        )
    if first.text == again.text and len(later) == 1:
        raise EvaluationError(
            "before and after other prompts, the server gives the greedy text of one prompt "
            f"differently ({_shown(first.text)} and {_shown(last.text)}), each time it is asked: "
            "its prefix cache is stale, or mixes prompts up",
            hint=_HINT,
        )


def _shown(text: str) -> str:
    return repr(" ".join(text.split())[:40])
