"""The base of the latest night of a pair, from a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.document_scores import DocumentScores
from evalguard.core.documents.likelihoods import (
    restore_infinities,
)
from evalguard.core.history_night import MetricKey, NightRun
from evalguard.core.reports.compare_report import RunIdentity
from evalguard.core.score_items import (
    check_loglikelihoods,
)
from evalguard.core.scores import LOGLIKELIHOODS, NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.errors import UsageError, nearest
from evalguard.run.base_of_run import mark_as_stored
from evalguard.run.baseline_scores import BaselineScores
from evalguard.run.scoring.task_scores import describe_reading
from evalguard.store.history.history_file import HistoryFile

# A document's value is its log-likelihood, in nats.
_NO_DOCUMENTS = "the history keeps no scores of single documents for it"


def read_base_of_history(path: Path, name: str, candidate: str) -> BaselineScores:
    """Read what a history kept of a base, from the latest run that has it.

    Args:
        name: of the base; "": the one that ``candidate`` was last compared with, else the only one.

    Raises:
        UsageError: there is no such run, several bases, or a run that was kept without hashes.
        EvaluationError: log-likelihoods that it kept say nothing about the model.
        StoreError: the history cannot be read.
    """
    with HistoryFile(path) as history:
        run = _latest_run(path, history.runs(), name, candidate)
        found: list[ScoreTable] = []
        left_out: list[NotCompared] = []
        for metric in history.metrics(run.number):
            documents = history.documents([run.number], metric.key, hashes=True).get(run.number)
            if documents is None:
                left_out.append(_left_out_metric(metric.key))
            else:
                found.append(_history_table(path, run, metric.key, documents))
        environment = history.environment(run.environment).get("base")
        history.note_damage()
        damaged = tuple(p for p in history.problems if p.startswith(f"run {run.number}, "))
    environment = cast("dict[str, Value]", environment or {})
    identity = RunIdentity(name=run.base, digest=run.base_digest)
    return BaselineScores(
        path=path,
        created=run.created,
        identity=mark_as_stored(identity, run.created),
        tables=tuple(replace(table, reading=describe_reading(environment)) for table in found),
        not_compared=tuple(left_out),
        notes=(
            "a history keeps no answers: in how many documents they are the same is not known",
            *(f"the history is damaged, and left out: {problem}" for problem in damaged),
        ),
        environment=environment,
    )


def _left_out_metric(key: MetricKey) -> NotCompared:
    return NotCompared(task=key[0], filter=key[1], metric=key[2], reason=_NO_DOCUMENTS)


def _latest_run(path: Path, runs: Sequence[NightRun], name: str, candidate: str) -> NightRun:
    """The latest run whose base is meant."""
    if not runs:
        raise UsageError(f"the history {path} has no runs yet")
    bases = dict.fromkeys(run.base for run in runs)
    if not name:
        beside = dict.fromkeys(run.base for run in runs if run.candidate == candidate) or bases
        if len(beside) > 1:
            raise UsageError(
                f"the history {path} has several bases: {', '.join(beside)}",
                hint=f"choose one: --base {path}:{next(iter(beside))}",
            )
        name = next(iter(beside))
    if name not in bases:
        raise UsageError(
            f"the history {path} has no base '{name}'{nearest(name, bases)}",
            hint=f"it has: {', '.join(bases)}",
        )
    return [run for run in runs if run.base == name][-1]


def _history_table(
    path: Path, run: NightRun, key: MetricKey, documents: DocumentScores
) -> ScoreTable:
    hashes = documents.hashes
    if hashes is None:
        raise UsageError(
            f"run {run.number} of the history {path} was kept by an earlier evalguard, without the "
            "hashes that prove which documents were asked",
            hint=f"give its run folder ({run.folder or 'none was written'}), or compare once more",
        )
    if documents.aggregation in LOGLIKELIHOODS:
        ids = [int(doc_id) for doc_id in documents.doc_ids]
        # of a night that an evalguard kept which did not look
        check_loglikelihoods(
            key[0], {doc: [float(v)] for doc, v in zip(ids, documents.base, strict=True)}
        )
    return ScoreTable(
        task=key[0],
        filter=key[1],
        metric=key[2],
        aggregation=documents.aggregation,
        higher_is_better=documents.higher_is_better,
        doc_ids=documents.doc_ids,
        values=_base_values(documents),
        weights=documents.weights,
        doc_hashes=hashes.doc_hashes,
        prompt_hashes=hashes.prompt_hashes,
        target_hashes=hashes.target_hashes,
        asked_hashes=hashes.asked_hashes,
        token_hashes=hashes.token_hashes,
        n_total=hashes.n_total,
        source=f"stored run {run.number} of {run.base}",
        run=dict(hashes.run),
        provenance=(f"scores that were stored on {run.created}",),
    )


def _base_values(documents: DocumentScores) -> NDArray[np.float64]:
    if documents.aggregation not in LOGLIKELIHOODS:
        return documents.base
    return restore_infinities(documents.base, [None] * len(documents.base))
