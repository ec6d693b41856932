"""What share of one model's answers a figure counts, with its interval, from the figure's table."""

from __future__ import annotations

import numpy as np

from evalguard.core.distribution_comparison import Figure
from evalguard.core.figure_names import why_unknown
from evalguard.core.figure_share import FigureShare
from evalguard.core.score_rows import pick_rows
from evalguard.core.scores import ScoreTable
from evalguard.stats.answers.uninformative import describe_uninformative
from evalguard.stats.clusters import cluster_sums
from evalguard.stats.effective_sample import Share


def figure_share(table: ScoreTable, *, confidence: float) -> FigureShare:
    """The share of a model's answers that a figure of shares counts, a document counting once.

    Its interval is the exact binomial one of the effective number of documents or clusters
    (``stats.effective_sample``); a document with several answers counts by their mean.
    """
    known = pick_rows(table, np.flatnonzero(np.isfinite(table.values)))
    unknown = table.n - known.n
    figure, units, why = Figure(), 0, ""
    if table.uninformative is not None:
        why = f"{describe_uninformative(table.uninformative, table.filter)}, so it says nothing"
    elif not known.n:
        why = why_unknown(table.metric)
    else:
        labels = known.clusters or tuple(map(str, known.doc_ids.tolist()))
        sums = cluster_sums(known.values, None, labels)
        share, units = Share(hits=sums.values, positions=sums.weights), sums.count
        figure = Figure(value=share.value, interval=share.interval(confidence=confidence))
    return FigureShare(
        task=table.task,
        filter=table.filter,
        metric=table.metric,
        figure=figure,
        n=known.n,
        unknown=unknown,
        units=units,
        clustered=bool(known.clusters),
        confidence=confidence,
        unknown_why=why,
    )
