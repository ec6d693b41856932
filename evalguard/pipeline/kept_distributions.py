"""Whether two models' distributions can be compared without running the base once more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from evalguard.harness import Block
from evalguard.pipeline.lockstep import Lockstep
from evalguard.pipeline.referencing import References

Way = Literal["lockstep", "reference", "scores"]

FROM_CACHE = (
    "distributions are not compared: the base's scores are from the cache; --distributions "
    "lockstep runs it again, --distributions reference keeps what is needed"
)


def cheapest_way(
    lockstep: Lockstep, references: References, *, needed: bool, base_recurs: bool = False
) -> Way:
    """Choose how two models are scored where the user left it open.

    A base whose scores are all kept is not run for its distributions, unless a limit of the gate
    needs them.

    Args:
        references: of the base.
        needed: whether the verdict depends on distributions.
        base_recurs: whether the base is compared with more candidates.

    Returns:
        "lockstep" where both have to be run, or nothing has to; "reference" where what is kept of
        the base is enough; "scores" where nothing is.
    """
    pairs, base = list(_pairs(lockstep)), lockstep.base
    if needed:
        return "lockstep"
    if not all(lockstep.evaluator.entry(ours, base).is_there for ours, _ in pairs):
        return "reference" if base_recurs else "lockstep"
    if all(entry.is_there for pair in pairs for entry in lockstep.entries(pair)):
        return "lockstep"
    asked = [ours for ours, _ in pairs if ours.kind != "generate_until"]
    if not asked:
        return "lockstep"
    kept = all(entry.is_there for ours in asked for entry in references.entries(ours, [base]))
    return "reference" if kept else "scores"


def _pairs(lockstep: Lockstep) -> Iterator[tuple[Block, Block]]:
    """Both models' blocks of all tasks, side by side."""
    evaluator = lockstep.evaluator
    for task in evaluator.tasks.names:
        ours, theirs = (
            evaluator.blocks(evaluator.requests(task, scorer)) for _, scorer in lockstep.models
        )
        yield from zip(ours, theirs, strict=True)
