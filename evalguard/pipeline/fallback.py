"""Fallback: where one model cannot be scored as asked, all are scored in a plainer way.

And where one is not what was known of it, all are scored once more, now that that is put right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from evalguard.errors import FallbackError
from evalguard.models.loading import HF_TYPES
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.lazy_scorer import OtherModelError
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import UNSHARED, ModelDescription, ScoringPolicy

T = TypeVar("T")


def with_fallback(
    sources: Sequence[ModelSource], choices: Choices, score: Callable[[Choices], T]
) -> tuple[T, tuple[str, ...]]:
    """Score models alike; start again with less where one cannot do what the policy asks.

    Blocks that were answered before stay in the score cache, where nothing mixes them up with
    those of another policy.

    Args:
        sources: the models.
        score: scores all of them by the policy of the choices it gets.

    Returns:
        What ``score`` returned in the end, and a note for each start.

    Raises:
        EvalguardError: as ``score``.
    """
    if any(source.variant.model not in HF_TYPES for source in sources):
        choices = replace(choices, policy=replace(choices.policy, share_prefixes=False))
    notes: tuple[str, ...] = ()
    put_right = 0
    while True:
        try:
            return score(choices), notes
        except OtherModelError:
            # What was remembered of a model is put right, and its finished blocks stay kept.
            put_right += 1
            if put_right > len(sources):
                raise
        except FallbackError as error:
            policy = _plainer(choices.policy, error)
            if policy == choices.policy:
                raise
            choices = replace(choices, policy=policy)
            notes = (*notes, f"{_INSTEAD[error.giving_up]} ({error})")


def check_alike(name: str, told: ModelDescription, before: Sequence[ModelDescription]) -> None:
    """Refuse a model that cannot be scored as those before it.

    Args:
        name: of the model; ``told``: what was loaded.

    Raises:
        FallbackError: all have to be scored in a plainer way.
    """
    if told.computation.get("shares_prefixes"):
        return
    if any(other.computation.get("shares_prefixes") for other in before):
        why = [note.removeprefix(UNSHARED) for note in told.caveats if note.startswith(UNSHARED)]
        raise FallbackError(
            f"{name} cannot share prefixes{''.join(why[:1])}", giving_up="share_prefixes"
        )


def _plainer(policy: ScoringPolicy, error: FallbackError) -> ScoringPolicy:
    if error.giving_up == "share_prefixes":
        return replace(policy, share_prefixes=False)
    return replace(policy, scorer="full logits")


_INSTEAD = {
    "share_prefixes": "shared prefixes are read again for every continuation, by all models",
    "scorer": "logits are computed at every position, not only at the scored ones, by all models",
}
