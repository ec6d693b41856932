"""What a line of a samples file shows: the requests, and what a model answered to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

import orjson

from evalguard.core.document_statistics import chosen_option, needs_lengths, request_hash
from evalguard.core.scores import NO_PROBABILITY, restore_infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """What a results file records of it.

    Attributes:
        output_type: lm-eval's name of it, "" where it is not recorded.
        own_rules: whether the task has a ``process_results`` of its own.
        delimiter: what lm-eval puts before each option.
        doubled: whether the options are asked once more, without their context.
    """

    output_type: str
    own_rules: bool
    delimiter: str
    doubled: bool

    @property
    def asks_likelihoods(self) -> bool:
        """Whether log-likelihoods of given texts are asked."""
        return "likelihood" in self.output_type or self.output_type == "multiple_choice"

    @property
    def shows_options(self) -> bool:
        """Whether a run shows what is chosen from, and by which rule."""
        return self.output_type == "multiple_choice" and not self.own_rules


def read_requests(arguments: Any) -> list[list[Any]]:
    """The arguments of each request; [] where the run does not show them all.

    They stand as {"gen_args_0": {"arg_0": ...}}, before 0.4.3 as a list of lists.
    """
    requests = arguments.values() if isinstance(arguments, dict) else arguments
    if not isinstance(arguments, (dict, list)):
        return []
    texts = []
    for request in requests:
        if type(request) is dict:
            texts.append([*request.values()])
        elif type(request) is list:
            texts.append(request)
        else:
            return []
    return texts


def find_prompt(requests: Sequence[Sequence[Any]]) -> str | None:
    """The first context, or whole text."""
    for asked in requests:
        if asked and isinstance(asked[0], str):
            return asked[0]
    return None


def hash_requests(requests: Sequence[Sequence[Any]]) -> str:
    """``request_hash`` of them, by a faster writer of JSON where both give the same."""
    texts = [[text for text in asked if isinstance(text, str)] for asked in requests]
    if len(texts) > 1 and any(first == second for first, second in pairwise(texts)):
        return request_hash(requests)
    try:
        written = orjson.dumps(texts)
    except orjson.JSONEncodeError:  # halves of characters
        return request_hash(requests)
    return sha256(written).hexdigest()[:16]


def only_scored_text(requests: Sequence[Sequence[Any]], prompt: str | None) -> str | None:
    """The text of the only request that was scored; None of several, or where it is not shown."""
    texts = {_scored_text(shortened(asked, prompt), prompt) for asked in requests}
    return texts.pop() if len(texts) == 1 else None


def shortened(asked: Sequence[Any], prompt: str | None) -> Sequence[Any]:
    """The arguments of a request, a context that is the prompt as None."""
    return (None, *asked[1:]) if asked and asked[0] == prompt else asked


def _scored_text(asked: Sequence[Any] | None, prompt: str | None) -> str | None:
    """The text of a request that is scored: its continuation, or the whole text, the prompt."""
    text = (prompt if asked[-1] is None else asked[-1]) if asked else None
    return text if isinstance(text, str) else None


@dataclass(slots=True)
class Answered:
    """What was answered: a value per request, None where there is none.

    Attributes:
        sound: False where the model gave no number for a continuation: an accuracy hides that.
        several: whether one request, made repeatedly, has different answers.
        checked: the log-likelihoods alone, () where any is missing or none are asked.
    """

    likelihoods: Sequence[float | None]
    greedy: Sequence[bool | None]
    texts: Sequence[str | None]
    sound: bool
    several: bool
    checked: Sequence[float]


def read_answers(
    responses: Any, requests: Sequence[Sequence[Any]], prompt: str | None, choosing: Choosing
) -> Answered:
    """Read a line's ``resps``; lm-eval writes numbers as text or as they are.

    A request for a text that was answered nothing (null: a server's content, or that of an empty
    list of repeats) has an empty text.
    """
    generates = choosing.output_type == "generate_until"
    replies = responses if isinstance(responses, list) else []
    if replies and len(requests) <= len(replies):  # as lm-eval writes nearly all of them
        none = [None] * len(replies)
        if not choosing.asks_likelihoods and _is_texts(replies, requests):
            return Answered(none, none, [reply[0] for reply in replies], True, False, ())
        likely = _read_pairs(replies)
        if likely is not None:
            checked = likely[0] if choosing.asks_likelihoods else ()
            return Answered(*likely, none, True, False, checked)
    answers = [
        _answer(
            shortened(requests[n], prompt) if n < len(requests) else None,
            replies[n] if n < len(replies) else None,
            prompt=prompt,
        )
        for n in range(max(len(requests), len(replies), int(generates)))
    ]
    if generates and holds_nothing(responses):
        answers = [(*_NOTHING[:2], "")] * len(answers)
    elif generates:
        answers = [
            (*answer[:2], "")
            if answer[2] is None and n < len(replies) and holds_nothing(replies[n])
            else answer
            for n, answer in enumerate(answers)
        ]
    return Answered(
        [answer[0] for answer in answers],
        [answer[1] for answer in answers],
        [answer[2] for answer in answers],
        not _holds_nan(responses),
        _count_answers(responses) > 1,
        _loglikelihoods(replies, requests, prompt) if choosing.asks_likelihoods else (),
    )


def _read_pairs(responses: Sequence[Any]) -> tuple[list[float], list[bool]] | None:
    """Log-likelihoods and whether they are greedy, of [[number, flag]] alone.

    None where a request has another answer, or a number that is no log-likelihood of a model.
    """
    values, greedy = [], []
    for response in responses:
        if type(response) is not list or len(response) != 1 or type(response[0]) is not list:
            return None
        try:
            number, flag = response[0]
            value = float(number)
        except (TypeError, ValueError):
            return None
        if not value > NO_PROBABILITY:
            return None
        values.append(value)
        if flag == "False" or flag is False:
            greedy.append(False)
        elif flag == "True" or flag is True:
            greedy.append(True)
        else:
            return None
    return values, greedy


def _is_texts(responses: Sequence[Any], requests: Sequence[Sequence[Any]]) -> bool:
    """Whether every answer is one generated text: [text]."""
    for response in responses:
        if type(response) is not list or len(response) != 1 or type(response[0]) is not str:
            return False
    return 1 not in map(len, requests)


def holds_nothing(value: Any) -> bool:
    """Whether JSON holds nothing: null, NaN, an empty list, or lists of these alone."""
    if isinstance(value, list):
        return all(map(holds_nothing, value))
    return value is None or (isinstance(value, float) and value != value)


Answer = tuple[float | None, bool | None, str | None]
_NOTHING: Answer = (None, None, None)


def _answer(asked: Any, response: Any, *, prompt: str | None) -> Answer:
    """The first of a request's answers; lm-eval writes numbers as text or as they are."""
    first = response[0] if isinstance(response, list) and response else response
    if isinstance(first, list) and len(first) == 2:
        return _likelihood(first[0], _scored_text(asked, prompt)), str(first[1]) == "True", None
    if asked is not None and len(asked) == 1:  # a whole text: its log-likelihood alone
        return _likelihood(first, _scored_text(asked, prompt)), None, None
    return (None, None, first) if isinstance(first, str) else _NOTHING


def _loglikelihoods(
    responses: Sequence[Any], requests: Sequence[Sequence[Any]], prompt: str | None
) -> Sequence[float]:
    """Of each request, in nats; () where the run shows none (generated answers, edits)."""
    loglikelihoods: list[float] = []
    for number, response in enumerate(responses):
        while isinstance(response, list) and len(response) == 1:  # repeats of one request
            response = response[0]
        if isinstance(response, list) and len(response) == 2:
            if str(response[1]) not in ("True", "False"):
                return ()
            response = response[0]
        asked = shortened(requests[number], prompt) if number < len(requests) else ()
        value = _likelihood(response, _scored_text(asked, prompt))
        if value is None:
            return ()
        loglikelihoods.append(value)
    return loglikelihoods


def _likelihood(value: Any, text: str | None) -> float | None:
    """In nats; None where it is no number."""
    try:
        return restore_infinity(float(value), text=text)
    except (TypeError, ValueError):
        return None


def _count_answers(responses: Any) -> int:
    """Different generated texts of the request that has most: [[text, text, ...], ...]."""
    of_requests = responses if isinstance(responses, list) else []
    texts = [r for r in of_requests if isinstance(r, list) and all(isinstance(t, str) for t in r)]
    return max((len(set(repeats)) for repeats in texts), default=1)


def _holds_nan(responses: Any) -> bool:
    """Whether any (log-likelihood, is greedy) is NaN; lm-eval writes both as text or as values."""
    if not isinstance(responses, list):
        return False
    if len(responses) == 2 and str(responses[1]) in ("True", "False"):
        return str(responses[0]).lower() == "nan"
    return any(_holds_nan(response) for response in responses)


def found_nothing(text: str, given: Any, fallback: str | None) -> bool:
    """Whether a filter found no answer in a text: it gave its fallback, or there is no text.

    Later steps may strip a fallback and change its case.
    """
    gave_up = isinstance(given, str) and fallback is not None and _is_same(given, fallback)
    return gave_up or not text.strip()


def _is_same(given: str, fallback: str) -> bool:
    return given.strip().casefold() == fallback.strip().casefold()


@dataclass(slots=True)
class Chosen:
    """Which option a stored run's model chose, as one metric sees it.

    The options stand in a run with the delimiter before them only, and where the metric depends on
    their lengths, the answers count only if they are right exactly where the run says so.
    """

    likelihoods: Sequence[float] | None
    options: Sequence[str]
    target: str

    @classmethod
    def of(
        cls,
        requests: Sequence[Sequence[Any]],
        filtered: Sequence[Any],
        target: str,
        choosing: Choosing,
    ) -> Chosen:
        """Read what there is to choose from, of a line's ``filtered_resps``."""
        texts = [asked[1] for asked in requests if len(asked) > 1 and isinstance(asked[1], str)]
        asked = len(texts) // (2 if choosing.doubled else 1)
        options = [text.removeprefix(choosing.delimiter) for text in texts[:asked]]
        likelihoods = _pair_likelihoods(filtered)
        known = [value for value in likelihoods if value is not None]
        fits = len(known) == len(texts) and len(known) == len(likelihoods)
        return cls(known if fits else None, options, target)

    def answer(self, metric: str, item: Any) -> str | None:
        """The number of the option; None where it is not known."""
        if self.likelihoods is None:
            return None
        chosen = chosen_option(metric, self.likelihoods, self.options)
        if chosen is None or not (not needs_lengths(metric) or self._is_confirmed(chosen, item)):
            return None
        return str(chosen)

    def _is_confirmed(self, chosen: int, item: Any) -> bool:
        target = self.target
        gold = self.options.index(target) if target in self.options else -1
        if gold < 0 and target.isdecimal():
            gold = int(target)
        return gold >= 0 and (chosen == gold) == (item == 1.0)


def _pair_likelihoods(filtered: Sequence[Any]) -> Sequence[float | None]:
    if set(map(type, filtered)) == {list} and set(map(len, filtered)) == {2}:
        try:
            return [float(pair[0]) for pair in filtered]
        except (TypeError, ValueError):
            pass
    return [_pair_likelihood(response) for response in filtered]


def _pair_likelihood(response: Any) -> float | None:
    """Of a (log-likelihood, is greedy) pair; lm-eval writes both as text or as values."""
    if not isinstance(response, (list, tuple)) or len(response) != 2:
        return None
    try:
        return float(response[0])
    except (TypeError, ValueError):
        return None
