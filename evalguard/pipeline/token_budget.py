"""The token budget of a model that was loaded: asked for, remembered, or measured now."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evalguard.models.threads import computing_with
from evalguard.scorer import ScoringPolicy
from evalguard.store import BudgetStore


def give_budget(
    lm: Any, policy: ScoringPolicy, *, threads: int, cache_dir: Path
) -> Callable[[int], None]:
    """Give a model that cuts batches by tokens its budget.

    Returns:
        A function that remembers a smaller one, for where memory runs out.
    """
    if not getattr(lm, "own_path", False) or lm.sequences is not None:
        return lambda _: None
    from evalguard.models.token_budget import budget_facts

    store = BudgetStore(cache_dir / "devices")
    with computing_with(threads):
        facts = budget_facts(lm)
        budget = policy.token_budget or store.settled(facts, lambda: measured(lm))
    lm.token_budget = budget

    def lower(to: int) -> None:
        if (store.get(facts) or 0) > to:
            _remember(store, facts, to)

    return lower


def measured(lm: Any) -> int:
    """Measure the budget of a loaded model on its device."""
    from evalguard.models.token_budget import measured_budget

    return measured_budget(lm)


def _remember(store: BudgetStore, facts: dict[str, Any], budget: int) -> None:
    # A folder that cannot be written costs the next run a measurement; the score cache says so.
    with contextlib.suppress(OSError):
        store.put(facts, budget)
