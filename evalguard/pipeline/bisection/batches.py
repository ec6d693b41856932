"""Batches: every assignment is scored in the batches that base and candidate were scored in.

One that cannot be is untestable, and does not fall back to other batches by itself: a difference
of batches would look like a drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalguard.bisect import Untestable
from evalguard.models.arguments import HF_TYPES
from evalguard.scorer import ModelDescription, ScoringPolicy


def settled_policy(
    policy: ScoringPolicy, ends: Sequence[ModelDescription], model_type: str
) -> ScoringPolicy:
    """A policy with the batches of both ends, the plainer ones where they differ.

    Args:
        policy: as it was chosen for the comparison.
        ends: descriptions of base and candidate, as far as they are models.
    """
    told = [end.computation for end in ends]
    if model_type not in HF_TYPES or not all(one.get("shares_prefixes") for one in told):
        policy = replace(policy, share_prefixes=False)
    if any(one.get("scorer") == "harness" for one in told):
        policy = replace(policy, scorer="harness")
    budgets = [budget for one in told if isinstance(budget := one.get("token_budget"), int)]
    return replace(policy, token_budget=min(budgets)) if budgets else policy


def in_batches_of(policy: ScoringPolicy, found: ModelDescription) -> bool:
    """Whether a model was scored in the batches of a settled policy."""
    return not _difference(policy, found)


def check_batches(policy: ScoringPolicy, found: ModelDescription) -> None:
    """Refuse a probe that was scored in other batches.

    Raises:
        Untestable: typed; other batches would be taken for a drift.
    """
    difference = _difference(policy, found)
    if difference == "token_budget":
        raise Untestable(
            f"memory ran out with batches of {policy.token_budget:,} tokens, which base and "
            "candidate were scored in",
            kind="out_of_memory",
            hint=f"--token-budget {max(policy.token_budget // 2, 1)} for the whole comparison",
        )
    if difference:
        raise Untestable(
            "it cannot be scored as base and candidate were: it shares no prefixes"
            if difference == "shares_prefixes"
            else "it cannot be scored as base and candidate were: by another path to the scores",
            hint="--no-share-prefixes for the whole comparison"
            if difference == "shares_prefixes"
            else "--scorer harness for the whole comparison",
        )


def _difference(policy: ScoringPolicy, found: ModelDescription) -> str:
    told = found.computation
    budget = told.get("token_budget")
    if isinstance(budget, int) and policy.token_budget and budget != policy.token_budget:
        return "token_budget"
    shares = told.get("shares_prefixes")
    if shares is not None and bool(shares) != policy.share_prefixes:
        return "shares_prefixes"
    scorer = told.get("scorer")
    if scorer is not None and (scorer == "harness") != (policy.scorer == "harness"):
        return "scorer"
    return ""
