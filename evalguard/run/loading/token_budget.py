"""The token budget of a model that was loaded: asked for, remembered, or measured now."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evalguard.core.scorer import ScoringPolicy
from evalguard.models.threads import use_threads
from evalguard.store.token_budgets import BudgetStore


def set_token_budget(
    lm: Any, policy: ScoringPolicy, *, threads: int, cache_dir: Path
) -> Callable[[int], None]:
    """Give a model that cuts batches by tokens its budget.

    Returns:
        A function that remembers a smaller one, for where memory runs out.
    """
    if not getattr(lm, "own_path", False) or lm.sequences is not None:
        return lambda _: None
    from evalguard.models.hf.budget_search import describe_budget_conditions

    store = BudgetStore(cache_dir / "devices")
    with use_threads(threads):
        facts = describe_budget_conditions(lm)
        budget = policy.token_budget or store.find_or_measure(facts, lambda: measure_budget(lm))
    lm.token_budget = budget

    def lower(to: int) -> None:
        if (store.get(facts) or 0) > to:
            _store_budget(store, facts, to)

    return lower


def measure_budget(lm: Any) -> int:
    """Measure the budget of a loaded model on its device; of every CPU it is the same."""
    from evalguard.models.hf.budget_search import CPU_BUDGET, measure_token_budget

    return CPU_BUDGET if lm.device.type == "cpu" else measure_token_budget(lm)


def _store_budget(store: BudgetStore, facts: dict[str, Any], budget: int) -> None:
    # A folder that cannot be written costs the next run a measurement; the score cache says so.
    with contextlib.suppress(OSError):
        store.put(facts, budget)
