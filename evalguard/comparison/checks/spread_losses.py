"""How the loss of answers is spread: over few documents or many."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evalguard.core.findings import Finding
from evalguard.core.gate import GateResult
from evalguard.core.scores import ScoreTable
from evalguard.stats.influence import spread_of_loss
from evalguard.stats.judgement import MetricComparison


def find_spread_losses(
    compared: Sequence[MetricComparison], gate: GateResult, tables: Sequence[ScoreTable]
) -> tuple[Finding, ...]:
    """Say how the loss of answers is spread, of the worst such metric that is not cleared.

    Answers have no bound beyond which a document is broken, so that a reader has to see whether a
    few documents make a loss or many.

    Args:
        tables: of either side: a mean over documents is a metric of answers.
    """
    means = {table.task for table in tables if table.aggregation == "mean"}
    likelihoods = {(t.task, t.metric) for t in tables if t.aggregation != "mean"}
    doubtful = {*gate.regressed, *gate.undecided}
    losses = [
        metric
        for metric in compared
        if metric.comparison.key in doubtful
        and metric.contributions is not None
        and all(
            part.task in means and (part.task, metric.comparison.metric) not in likelihoods
            for part in metric.contributions.parts
        )
    ]
    worst = max(losses, key=lambda metric: metric.comparison.sigma or -math.inf, default=None)
    spread = None
    if worst is not None and worst.contributions is not None:
        spread = spread_of_loss(worst.contributions)
    if worst is None or spread is None:
        return ()
    return (
        Finding(
            kind="loss_is_spread",
            text=spread.text,
            task=worst.comparison.task,
            filter=worst.comparison.filter,
            metric=worst.comparison.metric,
            values={
                "lost": spread.lost,
                "won": spread.won,
                "half": spread.half,
                "tied": spread.tied,
                "free": spread.free,
                "documents": tuple(doc_id for _, doc_id in spread.named),
            },
        ),
    )
