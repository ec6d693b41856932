"""How much text of each document a page holds, so that it stays small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

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
