"""One side of a finished comparison, read from the samples it left: rows as written, and scores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.document_fields import DocumentFields, read_fields
from evalguard.core.documents.likelihoods import (
    NO_PROBABILITY,
    restore_infinities,
    restore_infinity,
)
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.generated_tokens import SAMPLE_COLUMNS
from evalguard.core.score_items import (
    DocumentStatistics,
    check_loglikelihoods,
    read_items,
    request_hash,
)
from evalguard.core.scores import LOGLIKELIHOODS, NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.errors import StoreError, UsageError
from evalguard.harness.figure_tables import EXPECTED, answers_by_document, figure_tables
from evalguard.run.metric_facts import MetricFacts
from evalguard.store.run_tables import read_sample_facts, read_samples, sample_column_names


def read_side_rows(
    file: Path, side: Literal["base", "candidate"]
) -> tuple[Mapping[str, Value], ...]:
    """Return one side's rows of a task's samples, in ascending order of the documents' ids.

    The inverse of what ``record.sample_columns`` makes of them: a document that this side has not
    answered has no row.

    Raises:
        StoreError: the file is damaged.
    """
    own = f"{side}:"
    names = [name for name in sample_column_names(file) if name.startswith(own) or ":" not in name]
    columns = read_samples(file, names)
    answered = columns.get(f"{own}scores", ())
    return tuple(
        _with_infinities(
            {name.removeprefix(own): values[place] for name, values in columns.items()}
        )
        for place, scores in enumerate(answered)
        if scores is not None
    )


SideName = Literal["base", "candidate"]
SampleRow = Mapping[str, Any]

_SHARED_COLUMNS = ("doc_id", "doc", "doc_hash", "target_hash")
_SIDE_COLUMNS = (
    "prompt_hash", "token_hash", "arguments", "loglikelihood", "cut", "scores", "answers",
)  # fmt: skip
# What figures of generated answers are computed from.
_ANSWER_COLUMNS = ("text", "generated", *SAMPLE_COLUMNS)
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


def read_stored_tables(
    file: Path, task: str, side: SideName, *, source: str
) -> StoredTables | None:
    """Read one side of a task's samples; None where the run kept no scores of that side.

    Of an lm-eval run it keeps what was asked and answered: its scores are in its own files.

    Args:
        source: whose scores these are, for messages.

    Raises:
        UsageError: they were written by an evalguard that kept too little.
        StoreError: the file is damaged.
    """
    columns = read_samples(file, [*_SHARED_COLUMNS, *(f"{side}:{name}" for name in _SIDE_COLUMNS)])
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
        if any(one.get("figure") for one in told):
            columns |= read_samples(file, [f"{side}:{name}" for name in _ANSWER_COLUMNS])
        rows = _rows_of_columns(columns, side)
        # of a run that an evalguard made which did not look
        check_loglikelihoods(task, {row["doc_id"]: _row_loglikelihoods(row) for row in rows})
        return _read_tables(task, told, rows, source)
    except (ValueError, KeyError, TypeError, AttributeError, StoreError) as error:
        raise StoreError(
            f"{file} is damaged: its {side} is not what was written ({error})",
            hint="compare the two models once more",
        ) from error


def _read_tables(
    task: str, told: Sequence[SampleRow], rows: Sequence[SampleRow], source: str
) -> StoredTables:
    facts = [MetricFacts.read(one) for one in told]
    left_out = tuple(
        NotCompared(task=task, filter=one.filter, metric=one.metric, reason=_OWN_AGGREGATION)
        for one in facts
        if one.aggregation == "other"
    )
    scores = [one for one in facts if one.aggregation != "other" and not one.figure]
    return StoredTables(
        tables=(
            *(_build_table(task, one, rows, source) for one in scores),
            *_figure_tables(task, [one for one in facts if one.figure], rows, source),
        ),
        not_compared=left_out,
        fields=read_fields({row["doc_id"]: json.loads(row["doc"]) for row in rows}),
    )


def _figure_tables(
    task: str, facts: Sequence[MetricFacts], rows: Sequence[SampleRow], source: str
) -> tuple[ScoreTable, ...]:
    """Tables of the figures of answers that the run's gate named, made of the answers anew."""
    if not facts:
        return ()
    blank = _blank_table(task, facts[0], rows, source)
    blank = replace(blank, run={k: v for k, v in blank.run.items() if k != EXPECTED})
    names = tuple(dict.fromkeys(one.metric for one in facts))
    told = next((one.run[EXPECTED] for one in facts if EXPECTED in one.run), None)
    expected = None if told is None else ExpectedAnswer.read(told)
    return figure_tables(blank, answers_by_document(task, rows), names, expected)


def _rows_of_columns(columns: Mapping[str, Sequence[Any]], side: SideName) -> list[SampleRow]:
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


def _build_table(
    task: str, facts: MetricFacts, rows: Sequence[SampleRow], source: str
) -> ScoreTable:
    having = [row for row in rows if facts.metric in row["scores"].get(facts.filter, {})]
    items = [row["scores"][facts.filter][facts.metric] for row in having]
    statistics = read_items(items, facts.aggregation)
    return replace(
        _blank_table(task, facts, having, source),
        aggregation=statistics.aggregation,
        values=_row_values(statistics, having),
        weights=statistics.weights,
        answers=_row_answers(having, facts),
        uninformative=facts.uninformative,
    )


def _blank_table(
    task: str, facts: MetricFacts, rows: Sequence[SampleRow], source: str
) -> ScoreTable:
    """A table of these documents without any scores."""
    tokens = tuple(row["token_hash"] or "" for row in rows)
    return ScoreTable(
        task=task,
        filter=facts.filter,
        metric=facts.metric,
        aggregation="mean",
        higher_is_better=facts.higher_is_better,
        directed=facts.directed,
        doc_ids=np.array([row["doc_id"] for row in rows], dtype=np.int64),
        values=np.zeros(len(rows)),
        doc_hashes=tuple(row["doc_hash"] for row in rows),
        prompt_hashes=tuple(row["prompt_hash"] for row in rows),
        target_hashes=tuple(row["target_hash"] for row in rows),
        asked_hashes=tuple(request_hash(_row_arguments(row)) for row in rows),
        token_hashes=tokens if all(tokens) else (),
        cut=tuple(bool(row["cut"]) for row in rows),
        n_total=facts.n_total,
        source=source,
        run=facts.run,
        caveats=facts.caveats,
        provenance=facts.provenance,
    )


def _row_values(statistics: DocumentStatistics, rows: Sequence[SampleRow]) -> NDArray[np.float64]:
    """The values, as they were compared: NaN where the model gave no number for a text."""
    values = statistics.values
    if statistics.aggregation in LOGLIKELIHOODS:
        values = restore_infinities(values, [_only_text(row) for row in rows])
    given = ([one for one in row.get("loglikelihood") or () if one is not None] for row in rows)
    unsound = [any(math.isnan(one) or one == math.inf for one in of) for of in given]
    return np.where(np.array(unsound, dtype=np.bool_), math.nan, values)


def _only_text(row: SampleRow) -> str | None:
    """The text that was scored; None where there are several."""
    asked = list(_row_arguments(row))
    text = asked[0][-1] if len(asked) == 1 and asked[0] else None
    return text if isinstance(text, str) else None


def _with_infinities(row: SampleRow) -> SampleRow:
    """A row with minus infinity where a server wrote a number for it."""
    told = row.get("loglikelihood")
    if not told or not any(one is not None and one <= NO_PROBABILITY for one in told):
        return row
    asked = list(_row_arguments(row))
    if len(asked) != len(told):
        return row
    tokens = row.get("token_logprobs") or [None] * len(told)
    restored = []
    for value, of, arguments in zip(told, tokens, asked, strict=True):
        last = arguments[-1] if arguments else None
        text = last if isinstance(last, str) else row.get("prompt")
        known = None if value is None else restore_infinity(value, token_logprobs=of, text=text)
        restored.append(known)
    return {**row, "loglikelihood": restored}


def _row_loglikelihoods(row: SampleRow) -> list[float]:
    """Of a document's distinct requests."""
    found = dict(zip(row["arguments"], row.get("loglikelihood") or (), strict=False))
    return [value for value in found.values() if value is not None]


def _row_arguments(row: SampleRow) -> Iterator[Sequence[object]]:
    for text in row["arguments"]:
        yield json.loads(text)


def _row_answers(rows: Sequence[SampleRow], facts: MetricFacts) -> tuple[str, ...]:
    """What was answered; () where any document's answer is not known."""
    found = [row["answers"].get(facts.filter, {}).get(facts.metric) for row in rows]
    return tuple(found) if all(isinstance(one, str) for one in found) else ()
