"""Documents of the last comparison of the same two models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import get_args

import numpy as np

from evalguard.core.reports.run_documents import RunDocuments, Side
from evalguard.errors import EvalguardError, StoreError, UsageError
from evalguard.report.words.metric_labels import decisive_comparison
from evalguard.run.stored_run import StoredRun, read_stored_run
from evalguard.run.tracing.traced_documents import (
    DocumentChoice,
    RequestedSequence,
    sequence_of_row,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedDocuments:
    """Where documents came from: ``chosen`` says which, in words.

    Attributes:
        run: the run folder of the comparison that they are of.
        base_digest: of its base, which a trace may load only after its documents are chosen.
    """

    sequences: tuple[RequestedSequence, ...]
    chosen: str
    run: Path | None = None
    base_digest: str = ""


def find_comparisons(
    root: Path, base: str, candidate: str, tasks: Sequence[str] = ()
) -> Iterator[StoredRun]:
    """Yield comparisons of two names that lie below a folder with their documents, newest first.

    One name may have been given to several models: ``RunIdentity.digest`` tells them apart.

    Args:
        tasks: of which it must have one; () for any.
    """
    try:
        folders = sorted((one for one in root.iterdir() if one.is_dir()), reverse=True)
    except OSError:
        return
    for folder in folders:
        if folder.name.startswith(".") or not (folder / "result.json").is_file():
            continue
        try:
            run = read_stored_run(folder)
        except EvalguardError:
            continue  # damaged, or of another kind: an older one will do
        names = (run.report.base.name, run.report.candidate.name)
        wanted = not tasks or set(tasks) & set(run.tasks)
        if names == (base, candidate) and run.tasks and wanted:
            yield run


def choose_moved(
    run: StoredRun, choice: DocumentChoice, tasks: Sequence[str] = ()
) -> MovedDocuments | None:
    """Return the documents that moved most in a comparison, or those that are named.

    By what they add to the drift of the metric that the comparison is about; where that is no sum
    over documents or leaves ties, by how far their log-likelihoods are apart.

    Raises:
        UsageError: a document that was not scored.
        StoreError: the run folder is damaged.
    """
    about = decisive_comparison(run.report)
    allowed = [task for task in run.tasks if not tasks or task in tasks]
    task = about.task if about is not None and about.task in allowed else (allowed or [""])[0]
    documents = run.documents(task) if task else None
    if documents is None or not len(documents):
        return None
    drifts: Sequence[float | None] = (None,) * len(documents)
    if about is not None and about.task == task:
        drifts = documents.drifts(about.filter, about.metric) or drifts
    if choice.ids:
        rows = _rows_of(documents, choice.ids)
    else:
        every = range(len(documents))
        rows = sorted(every, key=lambda row: _movement(documents, row, drifts[row]))
    moved = [_requested_row(documents, row, drifts[row]) for row in rows]
    kept = tuple(one for one in moved if one is not None)[: choice.limit]
    if not kept:
        return None
    what = "named" if choice.ids else "that moved most"
    metric = f" on {about.metric}" if about is not None and about.task == task else ""
    chosen = f"{len(kept)} of {task} {what}{'' if choice.ids else metric} in {run.folder}"
    digest = run.report.base.digest
    return MovedDocuments(sequences=kept, chosen=chosen, run=run.folder, base_digest=digest)


def _rows_of(documents: RunDocuments, ids: Sequence[int]) -> list[int]:
    places = {doc_id: row for row, doc_id in enumerate(documents.doc_ids)}
    missing = [one for one in ids if one not in places]
    if missing:
        raise UsageError(
            f"--documents {missing[0]}: the last comparison scored no such document of "
            f"{documents.task}",
            hint=f"it scored {len(places)}, from {min(places)} to {max(places)}",
        )
    return [places[one] for one in ids]


def _movement(documents: RunDocuments, row: int, drift: float | None) -> tuple[float, float]:
    """A key by which what moved most comes first."""
    known = drift is not None and isfinite(drift)
    return -abs(drift) if known and drift is not None else 0.0, -sum(_moves(documents, row))


def _moves(documents: RunDocuments, row: int) -> list[float]:
    """How far the log-likelihoods of each request are apart; nothing where a side has none."""
    sides = [documents.of(side, "loglikelihood")[row] for side in get_args(Side)]
    if not all(isinstance(side, list) for side in sides) or len(sides[0]) != len(sides[1]):
        return []
    apart = [
        abs(one - other) if one is not None and other is not None else 0.0
        for one, other in zip(*sides, strict=True)
    ]
    return [one if isfinite(one) else 0.0 for one in apart]


def _requested_row(
    documents: RunDocuments, row: int, drift: float | None
) -> RequestedSequence | None:
    """The request of a document that moved most; None where the run does not hold its texts."""
    texts = documents.of("base", "arguments")[row]
    if not texts:
        return None
    moves = _moves(documents, row)
    at = int(np.argmax(moves)) if moves else 0
    try:
        arguments = json.loads(texts[at])
    except (ValueError, TypeError, IndexError) as error:
        raise StoreError(
            f"the samples of task '{documents.task}' are damaged: arguments that are none",
            hint="compare again",
        ) from error
    if arguments and arguments[0] is None:
        arguments[0] = documents.of("base", "prompt")[row]
    doc_id = documents.doc_ids[row]
    name = f"{documents.task} {doc_id}" + (f", request {at}" if len(texts) > 1 else "")
    request = sequence_of_row(documents.task, doc_id, at, arguments)
    return RequestedSequence(name=name, request=request, drift=drift)
