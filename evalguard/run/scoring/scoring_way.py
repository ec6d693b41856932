"""Whether two models' distributions can be compared without running the base once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from evalguard.core.reports.findings import Finding
from evalguard.harness.request_blocks import RequestBlock
from evalguard.run.executing.base_references import BaseReferences
from evalguard.run.scoring.evaluate import Evaluator
from evalguard.run.scoring.lockstep_scoring import LockstepScoring

ScoringWay = Literal["lockstep", "reference", "scores"]

BASE_FROM_CACHE = Finding(
    kind="distributions_unknown",
    text=(
        "distributions are not compared: the base's scores are from the cache (--distributions "
        "reference runs it again and keeps them)"
    ),
)


def choose_scoring_way(
    lockstep: LockstepScoring,
    pairs: Sequence[tuple[RequestBlock, RequestBlock]],
    references: BaseReferences,
    *,
    needed: bool,
    base_recurs: bool = False,
) -> ScoringWay:
    """Choose how two models are scored where the user left it open.

    A base whose scores are all kept is not run for its distributions, unless a limit of the gate
    needs them, or more candidates follow: then it is run once, and leaves a reference for all.

    Args:
        pairs: both models' blocks of all tasks, side by side.
        references: of the base.
        needed: whether the verdict depends on distributions.
        base_recurs: whether the base is compared with more candidates.

    Returns:
        "lockstep" where both have to be run, or nothing has to; "reference" where what is kept of
        the base is enough; "scores" where nothing is.
    """
    base = lockstep.base
    if needed:
        return "lockstep"
    if not all(lockstep.store.entry(ours, base).is_there for ours, _ in pairs):
        return "reference" if base_recurs else "lockstep"
    if all(entry.is_there for pair in pairs for entry in lockstep.entries(pair)):
        return "lockstep"
    asked = [ours for ours, _ in pairs if ours.kind != "generate_until"]
    if not asked:
        return "lockstep"
    kept = all(entry.is_there for ours in asked for entry in references.entries(ours, [base]))
    return "reference" if kept or base_recurs else "scores"


def block_pairs(
    evaluator: Evaluator, lockstep: LockstepScoring
) -> Iterator[tuple[RequestBlock, RequestBlock]]:
    """Both models' blocks of all tasks, side by side."""
    for task in evaluator.tasks.names:
        ours, theirs = (
            evaluator.blocks(evaluator.requests(task, scorer)) for _, scorer in lockstep.models
        )
        yield from zip(ours, theirs, strict=True)
