"""Rows of a reference file: a request each, with the base's answer and what was kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.reference import Reference
from evalguard.core.reference_faults import check_reference
from evalguard.core.scorer import Response
from evalguard.store.answer_table import (
    answer_schema,
    answers_from_table,
    answers_to_table,
)
from evalguard.store.damaged_files import DamagedBlockError
from evalguard.store.record_file import list_column, read_list_column

if TYPE_CHECKING:
    import pyarrow as pa


# A reference's arrays as they are stored; several numbers a position: the k tokens, the m draws.
_TYPES = {
    "token_ids": "int32",
    "top_ids": "int32",
    "top_logprobs": "float32",
    "tail_mass": "float64",
    "full_support": "bool",
    "sample_ids": "int32",
    "sample_logprobs": "float32",
}
_PER_POSITION = frozenset({"top_ids", "top_logprobs", "sample_ids", "sample_logprobs"})
FLOAT_COLUMNS = ("loglikelihood", "scores", "top_logprobs", "tail_mass", "sample_logprobs")
# An answer's ``top_logprobs``: a reference has a column of that name itself.
SHOWN_COLUMNS = "shown_logprobs"
ReferenceRows = tuple[list[Response], list[Reference | None]]


def row_table(
    task: str,
    block: str,
    responses: Sequence[Response],
    references: Sequence[Reference | None],
) -> pa.Table:
    """Return one block as a table."""
    import pyarrow as pa

    count = len(responses)
    columns: list[Any] = [pa.array([name] * count, pa.string()) for name in (task, block)]
    columns += answers_to_table([replace(r, token_logprobs=None) for r in responses]).columns
    columns.append(_score_column(responses))
    sizes = [None if r is None else r.vocabulary_size for r in references]
    columns.append(pa.array(sizes, pa.int64()))
    columns += [_reference_column(name, references) for name in _TYPES]
    return pa.Table.from_arrays(columns, schema=row_schema())


def read_rows(table: pa.Table) -> ReferenceRows:
    """Read one block back.

    Raises:
        DamagedBlockError: no model can have answered so.
    """
    try:
        found = _read_records(table)
        for response, kept in zip(*found, strict=True):
            _check_row(response, kept)
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise DamagedBlockError("it holds what no model answers") from error
    return found


def row_schema() -> pa.Schema:
    """Columns of a reference file."""
    import pyarrow as pa

    types = {"scores": "float32", **_TYPES}
    lists = [
        pa.field(name, pa.list_(pa.bool_() if kind == "bool" else getattr(pa, kind)()))
        for name, kind in types.items()
    ]
    names = [pa.field(name, pa.string()) for name in ("task", "block")]
    size = pa.field("vocabulary_size", pa.int64())
    answers = [field.with_name(column_name(field.name)) for field in answer_schema()]
    return pa.schema([*names, *answers, lists[0], size, *lists[1:]])


def column_name(name: str) -> str:
    """A reference file's name of a column of ``answer_schema``."""
    return SHOWN_COLUMNS if name == "top_logprobs" else name


def _check_row(response: Response, kept: Reference | None) -> None:
    if kept is not None:
        check_reference(kept)
    if response.text is None and response.loglikelihood is None:
        raise ValueError("an answer without a score or a text")
    if response.token_hash is None:
        raise ValueError("an answer without a hash of its tokens")


def _read_records(table: pa.Table) -> ReferenceRows:
    kept = [name for name in answer_schema().names if column_name(name) in table.column_names]
    told = table.select([column_name(name) for name in kept])
    responses = answers_from_table(told.rename_columns(kept))
    scores = read_list_column(table.column("scores"), 0)
    sizes = table.column("vocabulary_size").to_pylist()
    columns = {name: read_list_column(table.column(name), 0) for name in _TYPES}
    references = [
        None
        if size is None
        else _build_reference(size, own, {n: c[row] for n, c in columns.items()})
        for row, (size, own) in enumerate(zip(sizes, scores, strict=True))
    ]
    told = [
        response if own is None else replace(response, token_logprobs=own.astype(np.float64))
        for response, own in zip(responses, scores, strict=True)
    ]
    return told, references


def _build_reference(size: int, scores: Any, arrays: Mapping[str, Any]) -> Reference:
    positions = scores.shape[0]
    shaped = {
        name: array.reshape(positions, -1) if name in _PER_POSITION else array
        for name, array in arrays.items()
    }
    return Reference(
        **{**shaped, "token_ids": shaped["token_ids"].astype(np.int64)},
        token_logprobs=scores.astype(np.float64),
        vocabulary_size=size,
    )


def _score_column(responses: Sequence[Response]) -> pa.Array:
    """Log-probabilities of the scored tokens, as the model gave them."""
    told = [response.token_logprobs for response in responses]
    return list_column([None if t is None else t.astype(np.float32) for t in told], "float32")


def _reference_column(name: str, references: Sequence[Reference | None]) -> pa.Array:
    kind = _TYPES[name]
    return list_column(
        [None if r is None else getattr(r, name).astype(kind) for r in references], kind
    )
