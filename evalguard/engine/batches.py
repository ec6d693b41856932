"""One judge of batches: all models of a run are scored in the same ones.

A difference of batches would look like a drift. So a comparison whose models cannot be scored in
the same way starts again in a plainer one, for all of them; a probe that cannot be scored as base
and candidate were is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from evalguard.core.question import Untestable
from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.engine.choices import Choices
from evalguard.engine.loading.lazy_scorer import OtherModelError
from evalguard.engine.loading.own_environment import shares_prefixes
from evalguard.engine.sources import ModelSource
from evalguard.errors import FallbackError
from evalguard.models.arguments import HF_TYPES


@dataclass(slots=True)
class CommonPolicy:
    """How all models of a run are scored: as is asked, or plainer where one of them cannot do that.

    Blocks that were answered before stay in the score cache, where nothing mixes them up with
    those of another policy.

    Attributes:
        choices: with the policy that is to be tried now.
        notes: one for each time that all models had to start again.
    """

    sources: Sequence[ModelSource]
    choices: Choices
    notes: tuple[str, ...] = ()
    _put_right: int = 0

    def __post_init__(self) -> None:
        """Share no prefixes where a model does not even try."""
        if not all(shares_prefixes(source.variant) for source in self.sources):
            self._take(replace(self.choices.policy, share_prefixes=False))

    @contextmanager
    def attempt(self) -> Iterator[Choices]:
        """Score all models by these choices; where one cannot, the next attempt is plainer.

        Whoever scores leaves its loop in here: what comes after an attempt is the next one.

        Raises:
            OtherModelError, FallbackError: as scoring does, where nothing is left to be given up.
        """
        try:
            yield self.choices
        except (OtherModelError, FallbackError) as error:
            self._fall_back(error)

    def _fall_back(self, error: OtherModelError | FallbackError) -> None:
        if isinstance(error, OtherModelError):
            # What was remembered of a model is put right, and its finished blocks stay kept.
            self._put_right += 1
            if self._put_right > len(self.sources):
                raise error
            return
        policy = _plainer_policy(self.choices.policy, error)
        if policy == self.choices.policy:
            raise error
        self._take(policy)
        self.notes = (*self.notes, f"{_PLAINER_NOTES[error.giving_up]} ({error})")

    def _take(self, policy: ScoringPolicy) -> None:
        self.choices = replace(self.choices, policy=policy)


def check_same_policy(
    name: str, told: ModelDescription, before: Sequence[ModelDescription]
) -> None:
    """Refuse a model that cannot be scored as those before it.

    Args:
        name: of the model; ``told``: what was loaded.

    Raises:
        FallbackError: all have to be scored in a plainer way.
    """
    if told.computation.get("shares_prefixes"):
        return
    if any(earlier.computation.get("shares_prefixes") for earlier in before):
        why = f": {told.unshared}" if told.unshared else ""
        raise FallbackError(f"{name} cannot share prefixes{why}", giving_up="share_prefixes")


def _plainer_policy(policy: ScoringPolicy, error: FallbackError) -> ScoringPolicy:
    if error.giving_up == "share_prefixes":
        return replace(policy, share_prefixes=False)
    return replace(policy, scorer="full logits")


_PLAINER_NOTES = {
    "share_prefixes": "shared prefixes are read again for every continuation, by all models",
    "scorer": "logits are computed at every position, not only at the scored ones, by all models",
}


def policy_after(policy: ScoringPolicy, before: Sequence[ModelDescription]) -> ScoringPolicy:
    """A policy with the batches that the models before have, so that all have equal ones."""
    computations = [model.computation for model in before]
    if not all(computation.get("shares_prefixes") for computation in computations):
        policy = replace(policy, share_prefixes=False)
    if policy.token_budget:
        return policy
    budgets = [computation.get("token_budget") for computation in computations]
    known = [budget for budget in budgets if isinstance(budget, int)]
    return replace(policy, token_budget=min(known, default=0))


def policy_for_ends(
    policy: ScoringPolicy, ends: Sequence[ModelDescription], model_type: str
) -> ScoringPolicy:
    """A policy with the batches of both ends, the plainer ones where they differ.

    Args:
        policy: as it was chosen for the comparison.
        ends: descriptions of base and candidate, as far as they are models.
    """
    computations = [end.computation for end in ends]
    if model_type not in HF_TYPES or not all(
        computation.get("shares_prefixes") for computation in computations
    ):
        policy = replace(policy, share_prefixes=False)
    if any(computation.get("scorer") == "harness" for computation in computations):
        policy = replace(policy, scorer="harness")
    budgets = [
        budget
        for computation in computations
        if isinstance(budget := computation.get("token_budget"), int)
    ]
    return replace(policy, token_budget=min(budgets)) if budgets else policy


def uses_batches_of(policy: ScoringPolicy, found: ModelDescription) -> bool:
    """Whether a model was scored in the batches of a settled policy."""
    return not _batch_difference(policy, found)


def check_batches(policy: ScoringPolicy, found: ModelDescription) -> None:
    """Refuse a probe that was scored in other batches.

    Raises:
        Untestable: typed; other batches would be taken for a drift.
    """
    difference = _batch_difference(policy, found)
    if difference == "token_budget":
        raise Untestable(
            f"memory ran out with batches of {policy.token_budget:,} tokens, which base and "
            "candidate were scored in",
            kind="out_of_memory",
            hint=f"run: {{token_budget: {max(policy.token_budget // 2, 1)}}} for all of it",
        )
    if difference:
        raise Untestable(
            "it cannot be scored as base and candidate were: it shares no prefixes"
            if difference == "shares_prefixes"
            else "it cannot be scored as base and candidate were: by another path to the scores",
            hint="run: {share_prefixes: false} for the whole comparison"
            if difference == "shares_prefixes"
            else "--scorer harness for the whole comparison",
        )


def _batch_difference(policy: ScoringPolicy, found: ModelDescription) -> str:
    computation = found.computation
    budget = computation.get("token_budget")
    if isinstance(budget, int) and policy.token_budget and budget != policy.token_budget:
        return "token_budget"
    shares = computation.get("shares_prefixes")
    if shares is not None and bool(shares) != policy.share_prefixes:
        return "shares_prefixes"
    scorer = computation.get("scorer")
    if scorer is not None and (scorer == "harness") != (policy.scorer == "harness"):
        return "scorer"
    return ""
