"""StoredTables: one side's scores of a finished comparison, read from the samples it left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evalguard.document_fields import DocumentFields, read_fields
from evalguard.errors import StoreError, UsageError
from evalguard.items import asked_hash, check_loglikelihoods, read_items
from evalguard.pipeline.metric_facts import MetricFacts
from evalguard.scores import NotCompared, ScoreTable
from evalguard.store import read_sample_facts, read_samples

Side = Literal["base", "candidate"]
Row = Mapping[str, Any]

_SHARED = ("doc_id", "doc", "doc_hash", "target_hash")
_OWN = (
    "prompt_hash", "token_hash", "arguments", "loglikelihood", "cut", "scores", "answers",
)  # fmt: skip
_OWN_AGGREGATION = (
    "its aggregation is the task's own, which only a run with the model itself can compute"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTables:
    """One side of one task.

    Attributes:
        tables: as they were compared, bit for bit.
        not_compared: metrics whose documents do not give the number again.
        fields: of the documents.
    """

    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...]
    fields: DocumentFields


def stored_tables(file: Path, task: str, side: Side, *, source: str) -> StoredTables | None:
    """Read one side of a task's samples; None where the run kept no scores of that side.

    Of an lm-eval run it keeps what was asked and answered: its scores are in its own files.

    Args:
        source: whose scores these are, for messages.

    Raises:
        UsageError: they were written by an evalguard that kept too little.
        StoreError: the file is damaged.
    """
    columns = read_samples(file, [*_SHARED, *(f"{side}:{name}" for name in _OWN)])
    if f"{side}:scores" not in columns:
        return None
    told = read_sample_facts(file).get(side)
    if told is None:
        raise UsageError(
            f"{file} was written by an earlier evalguard, which did not keep how its metrics are "
            "made",
            hint="compare the two models once more: that run keeps what is needed",
        )
    if not told:
        return None
    try:
        rows = _rows(columns, side)
        # of a run that an evalguard made which did not look
        check_loglikelihoods(task, {row["doc_id"]: _loglikelihoods(row) for row in rows})
        return _read(task, told, rows, source)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{file} is damaged: its {side} is not what was written ({error})",
            hint="compare the two models once more",
        ) from error


def _read(task: str, told: Sequence[Row], rows: Sequence[Row], source: str) -> StoredTables:
    facts = [MetricFacts.read(one) for one in told]
    left_out = tuple(
        NotCompared(task=task, filter=one.filter, metric=one.metric, reason=_OWN_AGGREGATION)
        for one in facts
        if one.aggregation == "other"
    )
    return StoredTables(
        tables=tuple(
            _table(task, one, rows, source) for one in facts if one.aggregation != "other"
        ),
        not_compared=left_out,
        fields=read_fields({row["doc_id"]: json.loads(row["doc"]) for row in rows}),
    )


def _rows(columns: Mapping[str, Sequence[Any]], side: Side) -> list[Row]:
    """The documents that this side has, in ascending order of their ids."""
    names = {name: name.removeprefix(f"{side}:") for name in columns}
    rows = (
        dict(zip(names.values(), values, strict=True))
        for values in zip(*columns.values(), strict=True)
    )
    return [
        {**row, "scores": json.loads(row["scores"]), "answers": json.loads(row["answers"])}
        for row in rows
        if row["scores"] is not None
    ]


def _table(task: str, facts: MetricFacts, rows: Sequence[Row], source: str) -> ScoreTable:
    having = [row for row in rows if facts.metric in row["scores"].get(facts.filter, {})]
    items = [row["scores"][facts.filter][facts.metric] for row in having]
    statistics = read_items(items, facts.aggregation)
    tokens = tuple(row["token_hash"] or "" for row in having)
    return ScoreTable(
        task=task,
        filter=facts.filter,
        metric=facts.metric,
        aggregation=statistics.aggregation,
        higher_is_better=facts.higher_is_better,
        doc_ids=np.array([row["doc_id"] for row in having], dtype=np.int64),
        values=statistics.values,
        weights=statistics.weights,
        doc_hashes=tuple(row["doc_hash"] for row in having),
        prompt_hashes=tuple(row["prompt_hash"] for row in having),
        target_hashes=tuple(row["target_hash"] for row in having),
        asked_hashes=tuple(asked_hash(_arguments(row)) for row in having),
        token_hashes=tokens if all(tokens) else (),
        answers=_answers(having, facts),
        cut=tuple(bool(row["cut"]) for row in having),
        n_total=facts.n_total,
        source=source,
        run=facts.run,
        caveats=facts.caveats,
    )


def _loglikelihoods(row: Row) -> list[float]:
    """Of a document's distinct requests."""
    found = dict(zip(row["arguments"], row.get("loglikelihood") or (), strict=False))
    return [value for value in found.values() if value is not None]


def _arguments(row: Row) -> Iterator[Sequence[object]]:
    for text in row["arguments"]:
        yield json.loads(text)


def _answers(rows: Sequence[Row], facts: MetricFacts) -> tuple[str, ...]:
    """What was answered; () where any document's answer is not known."""
    found = [row["answers"].get(facts.filter, {}).get(facts.metric) for row in rows]
    return tuple(found) if all(isinstance(one, str) for one in found) else ()
