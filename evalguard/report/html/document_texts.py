"""Texts of one document: prompt, target, both answers and scored tokens, made visible and cut to
the page's budget.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.reports.run_documents import RunDocuments, Side

_SIDES: tuple[Side, Side] = ("base", "candidate")
_LONGEST_TOKEN = 60
_MINUS_INFINITY = -(10**12)  # hundredths of a nat that stand for minus infinity, which JSON has not


@dataclass(frozen=True, slots=True)
class DocumentTexts:
    """A task's texts by position of the document."""

    documents: RunDocuments

    def lengths(self) -> list[int]:
        """Characters of every document's texts."""
        return [self._length(position) for position in range(len(self.documents))]

    def token_counts(self) -> list[int]:
        """How many tokens of every document were scored."""
        found = self.documents.of("base", "token_logprobs")
        return [sum(len(request or ()) for request in requests or ()) for requests in found]

    def has_answers(self, side: Side) -> bool:
        """Whether anything is there that a side answered."""
        return any(
            answer is not None
            for name in ("loglikelihood", "text", "is_greedy")
            for answers in self.documents.of(side, name)
            for answer in answers or ()
        )

    def written(self, limits: Sequence[int | None], kept: Sequence[bool]) -> list[list[Any]]:
        """[prompt, target, requests] of every document.

        A request is [continuation, base, candidate, tokens]; a side is [log-likelihood, greedy,
        generated text], the first as "-inf" or "nan" where it is not a number; tokens are [texts or
        ids, base, candidate, KL] in hundredths of a nat, or None where they are not kept.

        Args:
            limits: characters of each text that are kept; None: all.
            kept: whether a document's tokens are.
        """
        return [
            self._written(position, limit, tokens=tokens)
            for position, (limit, tokens) in enumerate(zip(limits, kept, strict=True))
        ]

    def _length(self, position: int) -> int:
        texts = [self._prompt(position), self._target(position)]
        texts += [text or "" for text in self._answer_texts(position)]
        return sum(len(text) for text in texts)

    def _written(self, position: int, limit: int | None, *, tokens: bool) -> list[Any]:
        prompt = make_visible(self._prompt(position))
        whole = cut_middle(prompt, LONGEST_TEXT)
        return [
            whole if limit is None else cut_to_tail(whole, limit),
            _visible_text(self._target(position), limit),
            self._requests(position, limit, tokens=tokens),
        ]

    def _prompt(self, position: int) -> str:
        for side in _SIDES:
            prompt = self.documents.of(side, "prompt")[position]
            if prompt is not None:
                return prompt if isinstance(prompt, str) else json.dumps(prompt)
        return ""

    def _target(self, position: int) -> str:
        target = self.documents.columns.get("target")
        value = None if target is None else target[position]
        if value is None:
            return ""
        # A rolling task's target is the text that was asked.
        return "" if value == self._prompt(position) else str(value)

    def _answer_texts(self, position: int) -> list[str | None]:
        generated = [
            text for side in _SIDES for text in self.documents.of(side, "text")[position] or ()
        ]
        return [*self._continuations(position), *generated]

    def _continuations(self, position: int) -> list[str]:
        for side in _SIDES:
            asked = self.documents.of(side, "arguments")[position]
            if asked is not None:
                return [_continuation(arguments) for arguments in asked]
        return []

    def _requests(self, position: int, limit: int | None, *, tokens: bool) -> list[Any]:
        continuations = self._continuations(position)
        answers = [self._answers(side, position) for side in _SIDES]
        count = max(len(continuations), *(len(of_side) for of_side in answers))
        heat = self._heat(position) if tokens else [None] * count
        return [
            [
                _visible_text(_item_at(continuations, number) or "", limit),
                *(_side_entry(_item_at(of_side, number), limit) for of_side in answers),
                _item_at(heat, number),
            ]
            for number in range(count)
        ]

    def _answers(self, side: Side, position: int) -> list[tuple[Any, Any, Any]]:
        columns = [
            self.documents.of(side, name)[position] or ()
            for name in ("loglikelihood", "is_greedy", "text")
        ]
        count = max(len(column) for column in columns)
        return [tuple(_item_at(column, n) for column in columns) for n in range(count)]

    def _heat(self, position: int) -> list[Any]:
        sides = [self.documents.of(side, "token_logprobs")[position] or () for side in _SIDES]
        found = self.documents.tokens_of(int(self.documents.doc_ids[position]))
        heat, left = [], LONGEST_ANSWER
        for number in range(max(len(side) for side in sides)):
            base, candidate = (_item_at(side, number) for side in sides)
            heat.append(_token_entry(base, candidate, _request_rows(found, number), left))
            left -= 0 if heat[-1] is None else len(heat[-1][1])
        return heat


def _token_entry(
    base: Sequence[float] | None,
    candidate: Sequence[float] | None,
    found: Mapping[str, NDArray[Any]],
    most: int,
) -> list[Any] | None:
    lengths = [len(side) for side in (base, candidate) if side is not None]
    if not lengths or not max(lengths) or most <= 0:
        return None
    known = found.get("token_id", np.empty(0)).shape[0] == max(lengths)
    return [
        _token_names(found, most) if known else None,
        _hundredths(base, most),
        _hundredths(candidate, most),
        _hundredths(found["kl"].tolist(), most) if known and "kl" in found else None,
    ]


def _token_names(found: Mapping[str, NDArray[Any]], most: int) -> list[Any]:
    if "text" in found:
        return [_visible_text(str(text), _LONGEST_TOKEN) for text in found["text"][:most].tolist()]
    return [int(number) for number in found["token_id"][:most].tolist()]


def _request_rows(found: Mapping[str, NDArray[Any]], number: int) -> Mapping[str, NDArray[Any]]:
    if not found:
        return {}
    own = found["request"] == number
    return {name: values[own] for name, values in found.items()}


def _hundredths(values: Sequence[float] | None, most: int) -> list[int | None]:
    found = () if values is None else values[:most]
    return [_hundredth(value) for value in found]


def _hundredth(value: float | None) -> int | None:
    if value is None or math.isnan(value) or value == math.inf:
        return None
    return _MINUS_INFINITY if value == -math.inf else round(100 * value)


def _side_entry(answer: tuple[Any, Any, Any] | None, limit: int | None) -> list[Any] | None:
    if answer is None:
        return None
    loglikelihood, greedy, text = answer
    return [
        _loglikelihood(loglikelihood),
        None if greedy is None else int(greedy),
        None if text is None else _visible_text(str(text), limit),
    ]


def _loglikelihood(value: float | None) -> float | str | None:
    """Two decimals; of what JSON has no number for its name."""
    if value is None:
        return None
    return round(value, 2) if math.isfinite(value) else str(value)


def _visible_text(text: str, limit: int | None) -> str:
    return cut_middle(make_visible(text), LONGEST_TEXT if limit is None else limit)


def _continuation(arguments: Any) -> str:
    """What a likelihood request asked after its context; "" for a rolling or generating one."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    second = found[1] if isinstance(found, list) and len(found) > 1 else ""
    return second if isinstance(second, str) else ""


def _item_at(values: Sequence[Any], position: int) -> Any:
    return values[position] if position < len(values) else None


# Text budget: how much text of each document a page holds, so that it stays small.


TEXT_BUDGET = 1_200_000  # characters of all documents' texts in one page
TOKEN_BUDGET = 100_000  # scored tokens of all documents in one page
LONGEST_TEXT = 20_000  # characters of one text, however few there are
LONGEST_ANSWER = 4_000  # scored tokens of one document
_SHORTEST_TEXT = 40

TaskLimit = TypeVar("TaskLimit")


def limit_texts(lengths: Sequence[int], order: Sequence[int], budget: int) -> list[int | None]:
    """How many characters of each document's texts are kept; None: all of them.

    Args:
        lengths: characters of each document.
        order: positions, those that matter most first: they are kept whole for one half of the
            budget, and the other half is shared alike by all others.
    """
    if sum(lengths) <= budget:
        return [None] * len(lengths)
    shared = max(budget // 2 // max(len(lengths), 1), _SHORTEST_TEXT)
    limits: list[int | None] = [shared] * len(lengths)
    left = budget // 2
    for position in order:
        left -= max(lengths[position] - shared, 0)
        if left < 0:
            break
        limits[position] = None
    return limits


def select_token_documents(counts: Sequence[int], order: Sequence[int], budget: int) -> list[bool]:
    """Which documents' tokens are kept: those that matter most, as long as there is room."""
    kept = [False] * len(counts)
    for position in order:
        budget -= min(counts[position], LONGEST_ANSWER)
        if budget < 0:
            break
        kept[position] = True
    return kept


def share_budget(
    policy: Callable[[Sequence[int], Sequence[int], int], list[TaskLimit]],
    sizes: Sequence[Sequence[int]],
    orders: Sequence[Sequence[int]],
    budget: int,
) -> list[list[TaskLimit]]:
    """Apply a policy to every task, with a budget in proportion to its size."""
    totals = [sum(of_task) for of_task in sizes]
    whole = max(sum(totals), 1)
    return [
        policy(of_task, order, budget if whole <= budget else budget * total // whole)
        for of_task, order, total in zip(sizes, orders, totals, strict=True)
    ]


# Visible: text of models and data with what cannot be seen written out, and not too long.


# Control characters but tab and line feed; directions and isolates; what has no width; tags; halves
# of characters. The joiners that scripts and emoji need (200C, 200D) stay.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_PICTURES = 0x2400  # Unicode has a picture of every control character
_DELETE = 0x7F


def make_visible(text: str) -> str:
    """Write out what has no shape of its own, or would change the direction of what follows.

    >>> make_visible("a\\x1b[31mb\\u202ec")
    'a␛[31mb‹U+202E›c'
    """
    return _HIDDEN.sub(_visible_form, text)


def _visible_form(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == _DELETE else f"‹U+{code:04X}›"


def cut_middle(text: str, most: int) -> str:
    """Cut a text in its middle to about ``most`` characters, and say how many are left out."""
    if len(text) <= most:
        return text
    tail = most * 2 // 3  # what a model answers to stands at the end of its prompt
    left_out = len(text) - most
    return f"{text[: most - tail]} ‹{left_out:,} characters left out› {text[-tail:]}"


def cut_to_tail(text: str, most: int) -> str:
    """Keep the end of a text."""
    return text if len(text) <= most else f"…{text[len(text) - most :]}"
