"""RowEnds: texts of a batch that end early, each by what its own request says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteria

from evalguard.core.early_end import EarlyEnd

_NO_TOKEN = -1


class RowEnds(StoppingCriteria):  # type: ignore[misc]
    """Ends rows of a batch early, and knows where.

    Args:
        rules: of each row; None: it ends as the model ends it.
        begin: tokens before the generated ones; None: all but the one that comes first.
    """

    def __init__(self, rules: Sequence[EarlyEnd | None], begin: int | None) -> None:
        self._begin = begin
        self._expected = [
            None if rule is None or rule.other_than is None else list(rule.other_than)
            for rule in rules
        ]
        self._wanted: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        """Which rows are over, shape (rows,)."""
        if self._begin is None:
            self._begin = input_ids.shape[1] - 1
        return self._others(input_ids).any(1)

    def lengths(self, ids: torch.Tensor, begin: int) -> dict[int, int]:
        """Generated tokens of the rows that ended early, from what ``generate`` returned."""
        if self._begin is None:
            self._begin = begin
        others = self._others(ids)
        return {
            row: int(others[row].int().argmax()) + 1
            for row in torch.nonzero(others.any(1)).flatten().tolist()
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
