"""RowEnds: texts of a batch that end early, each by what its own request says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteria

from evalguard.core.early_end import EarlyEnd, next_look
from evalguard.stats.answers.loops import find_loop

_NO_TOKEN = -1


class RowEnds(StoppingCriteria):  # type: ignore[misc]
    """Ends rows of a batch early, and knows where.

    Args:
        rules: of each row; None: it ends as the model ends it.
        begin: tokens before the generated ones; None: all but the one that comes first.
    """

    def __init__(self, tokenizer: Any, rules: Sequence[EarlyEnd | None], begin: int | None) -> None:
        self._tokenizer = tokenizer
        self._begin = begin
        self._looking = [row for row, rule in enumerate(rules) if rule is not None and rule.loop]
        self._look_at = next_look(0)
        self._loops: dict[int, int] = {}  # generated tokens of the rows that loop
        self._expected = [
            None if rule is None or rule.other_than is None else list(rule.other_than)
            for rule in rules
        ]
        self._wanted: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        """Which rows are over, shape (rows,)."""
        if self._begin is None:
            self._begin = input_ids.shape[1] - 1
        done = self._others(input_ids).any(1)
        if self._looking and input_ids.shape[1] - self._begin >= self._look_at:
            self._look_for_loops(input_ids[:, self._begin :], done.tolist())
        if self._loops:
            done[[*self._loops]] = True
        return done

    def _look_for_loops(self, made: torch.Tensor, done: Sequence[bool]) -> None:
        length = made.shape[1]
        self._look_at = next_look(length)
        for row in [row for row in self._looking if not done[row] and row not in self._loops]:
            text = self._tokenizer.decode(made[row].tolist(), skip_special_tokens=True)
            if find_loop(text) is not None:
                self._loops[row] = length

    def lengths(self, ids: torch.Tensor, begin: int) -> dict[int, int]:
        """Generated tokens of the rows that ended early, from what ``generate`` returned."""
        if self._begin is None:
            self._begin = begin
        others = self._others(ids)
        found = {
            row: int(others[row].int().argmax()) + 1
            for row in torch.nonzero(others.any(1)).flatten().tolist()
        }
        # Of both rules the one that was met first.
        return {**self._loops, **found} | {
            row: min(length, found[row]) for row, length in self._loops.items() if row in found
        }

    def _others(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether a generated token is another than is wanted there, shape (rows, tokens)."""
        assert self._begin is not None
        made = ids[:, self._begin :]
        if self._wanted is None or self._wanted.shape[1] < made.shape[1]:
            width = max(2 * made.shape[1], 64)
            rows = [(of or [])[:width] for of in self._expected]
            self._wanted = torch.tensor(
                [[*of, *[_NO_TOKEN] * (width - len(of))] for of in rows], device=made.device
            )
            self._ruled = torch.tensor(
                [[of is not None] for of in self._expected], device=made.device
            )
        return (made != self._wanted[:, : made.shape[1]]) & self._ruled
