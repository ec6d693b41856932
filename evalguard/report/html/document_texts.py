"""Texts of one document: prompt, target, both answers and scored tokens, made visible and cut to
the page's budget.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.reports.run_documents import RunDocuments, Side
from evalguard.report.html.text_budget import LONGEST_ANSWER, LONGEST_TEXT
from evalguard.report.html.visible_text import cut_middle, cut_to_tail, make_visible

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
