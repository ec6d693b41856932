"""A reference file: what was kept of a base on all its tasks, in one parquet file.

A row is a request: its task, the digest of its block, the base's answer and the reference. A
block is a row group, so that a file of any size is written and read block by block. The file is
sealed: the smallest change shows before it is parsed. Numbers that were float32 are stored as
such.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import Reference
from evalguard.core.logprob_rows import NO_TOKEN, Float, log_sums
from evalguard.core.scorer import Response
from evalguard.errors import UsageError
from evalguard.store.answer_table import (
    OPTIONAL_COLUMNS,
    answer_schema,
    answers_from_table,
    answers_to_table,
    check_size,
    list_column,
    read_list_column,
    written_before,
)
from evalguard.store.atomic_files import DamagedBlockError, HalfFile, disk_error
from evalguard.store.sealed_files import UNSEALED, read_seal, seal

if TYPE_CHECKING:
    import pyarrow as pa

# Log-softmax in a narrow dtype may leave a probability a little above 1.
_MOST_LOGPROB = 0.1
_REFERENCE_ROUNDING = 1e-3


def check_reference(kept: Reference) -> Reference:
    """Return ``kept``, if every number in it is one that a model's distributions can have.

    What is consistent in itself cannot be told from the truth; what is not must give no number.

    Raises:
        ValueError: for shapes that do not fit, token ids outside the vocabulary, probabilities
            that are none, kept tokens that are not the most probable ones.
    """
    positions, size = kept.token_ids.shape[0], kept.vocabulary_size
    top, draws = kept.top_ids.shape, kept.sample_ids.shape
    flat = (kept.token_logprobs, kept.tail_mass, kept.full_support)
    if any(array.shape != (positions,) for array in flat):
        raise ValueError("a reference's arrays are of different lengths")
    if kept.top_logprobs.shape != top or kept.sample_logprobs.shape != draws:
        raise ValueError("a reference's token ids and log-probabilities do not fit")
    if top[0] != positions or draws[0] != positions or not 1 <= top[1] <= size or draws[1] < 1:
        raise ValueError(f"a reference of {size} tokens cannot keep {top[1]}, and {draws[1]} draws")
    known = ~np.isnan(kept.tail_mass)
    _check_ids(kept.token_ids, size)
    _check_ids(kept.top_ids[known], size)
    _check_ids(kept.sample_ids[kept.sample_ids != NO_TOKEN], size)
    if bool((kept.top_ids[~known] != NO_TOKEN).any()):
        raise ValueError("a row that is not a distribution has most probable tokens")
    ordered = np.sort(kept.top_ids[known], axis=1)
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise ValueError("a token is kept twice")
    _check_probabilities(kept, known)
    return kept


def _check_ids(ids: NDArray[np.int64] | NDArray[np.int32], size: int) -> None:
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise ValueError(f"a token id is outside the {size} tokens of the vocabulary")


def _check_probabilities(kept: Reference, known: NDArray[np.bool_]) -> None:
    logprobs = kept.top_logprobs[known].astype(np.float64)
    tail, drawn = kept.tail_mass[known], kept.sample_logprobs[known].astype(np.float64)
    all_logprobs = (logprobs, kept.token_logprobs[known], drawn)
    # Written so that NaN is refused too.
    if any(not bool((values <= _MOST_LOGPROB).all()) for values in all_logprobs):
        raise ValueError("a log-probability is above 0, or none at all")
    if not bool((logprobs[:, 1:] <= logprobs[:, :-1]).all()):
        raise ValueError("the kept tokens are not in descending order")
    cap = np.exp(logprobs[:, -1])
    most: Float = (kept.vocabulary_size - logprobs.shape[1]) * cap * (1.0 + _REFERENCE_ROUNDING)
    if not bool(((tail >= 0.0) & (tail <= most)).all()):
        raise ValueError("the tail has more probability than its tokens can have, or less than 0")
    if not bool((np.exp(drawn) <= (cap * (1.0 + _REFERENCE_ROUNDING))[:, None]).all()):
        raise ValueError("a drawn token is more probable than a kept one")
    log_sums(np.exp(logprobs).sum(axis=1) + tail, side="reference")


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
        rows = _read_records(table)
        for response, reference in zip(*rows, strict=True):
            _check_row(response, reference)
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise DamagedBlockError("it holds what no model answers") from error
    return rows


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
    names = [name for name in answer_schema().names if column_name(name) in table.column_names]
    answers = table.select([column_name(name) for name in names])
    responses = answers_from_table(answers.rename_columns(names))
    scores = read_list_column(table.column("scores"), 0)
    sizes = table.column("vocabulary_size").to_pylist()
    columns = {name: read_list_column(table.column(name), 0) for name in _TYPES}
    references = [
        None
        if size is None
        else _build_reference(size, own, {n: c[row] for n, c in columns.items()})
        for row, (size, own) in enumerate(zip(sizes, scores, strict=True))
    ]
    answers = [
        response if own is None else replace(response, token_logprobs=own.astype(np.float64))
        for response, own in zip(responses, scores, strict=True)
    ]
    return answers, references


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
    logprobs = [response.token_logprobs for response in responses]
    return list_column([None if t is None else t.astype(np.float32) for t in logprobs], "float32")


def _reference_column(name: str, references: Sequence[Reference | None]) -> pa.Array:
    kind = _TYPES[name]
    return list_column(
        [None if r is None else getattr(r, name).astype(kind) for r in references], kind
    )


REFERENCE_FORMAT = "evalguard.reference/1"
_HINT = "--save-reference FILE names another place"
BlockPosition = tuple[int, ...]


class ReferenceWriter:
    """Writes a reference file block by block; it appears when it is whole.

    Blocks come as they are finished, and one that another process was scoring comes late; in the
    end they stand in the order of their places, so that every run writes the same file. Leaving a
    ``with`` block by an exception, or without any block, leaves nothing behind.

    Args:
        facts: what the file says of the base, as plain JSON values.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._file = HalfFile(path)
        self._facts = dict(facts)
        self._writer: Any = None
        self._sink: BinaryIO | None = None
        self._places: list[BlockPosition] = []

    def add(
        self,
        task: str,
        block: str,
        responses: Sequence[Response],
        references: Sequence[Reference | None],
        *,
        place: BlockPosition = (),
    ) -> None:
        """Write one block; ``place``: where it belongs among the others.

        Raises:
            StoreError: the disk refuses.
        """
        table = row_table(task, block, responses, references)
        try:
            if self._writer is None:
                self._sink = self._file.open()
                self._writer = self._opened(self._sink)
            self._writer.write_table(table)
        except OSError as error:
            raise disk_error("write the reference", self._file.path, error, hint=_HINT) from error
        self._places.append(place)

    def give_up(self) -> None:
        """Leave nothing behind, and write nothing more."""
        with contextlib.suppress(OSError, ValueError):
            if self._writer is not None:
                self._writer.close()
        self._writer = self._sink = None
        self._file.discard()

    def __enter__(self) -> ReferenceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
            if self._sink is None or kind is not None:
                self._file.discard()
            else:
                seal(self._in_order(self._sink))
                self._file.commit()
        except OSError as failure:
            self._file.discard()
            raise disk_error(
                "write the reference", self._file.path, failure, hint=_HINT
            ) from failure

    def _in_order(self, arrived: BinaryIO) -> BinaryIO:
        """The file with its blocks in order: itself, or another one that takes its place."""
        import pyarrow.parquet as pq

        order = sorted(range(len(self._places)), key=self._places.__getitem__)
        if order == list(range(len(order))):
            return arrived
        first, self._file = self._file, HalfFile(self._file.path)
        try:
            sink = self._file.open()
            groups = pq.ParquetFile(arrived)
            with self._opened(sink) as writer:
                for group in order:
                    writer.write_table(groups.read_row_group(group, use_threads=False))
        finally:
            first.discard()
        return sink

    def _opened(self, sink: BinaryIO) -> Any:
        import pyarrow.parquet as pq

        about = {"format": REFERENCE_FORMAT, "facts": json.dumps(self._facts), "seal": UNSEALED}
        return pq.ParquetWriter(
            sink,
            row_schema().with_metadata(about),
            compression="zstd",
            use_dictionary=["task", "block"],
            use_byte_stream_split=[
                name if name == "loglikelihood" else f"{name}.list.element"
                for name in FLOAT_COLUMNS
            ],
            write_page_checksum=True,
        )


_OPTIONAL = frozenset(map(column_name, OPTIONAL_COLUMNS))
_REMAKE_HINT = "give another file, or remove this one: the base is then scored and it is made anew"


class ReferenceFile:
    """A reference file, read block by block.

    Attributes:
        path: where it is.
        digest: SHA-256 of its content.
        facts: what it says of the base.
        tasks: the tasks that it has blocks of.

    Raises:
        UsageError: it cannot be read, is cut, or is something else.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path, self.digest = path, _read_digest(path)
        self._reading = threading.Lock()
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            schema = self._file.schema_arrow
            metadata = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read as parquet", hint=_REMAKE_HINT) from error
        wanted = written_before(row_schema(), schema, _OPTIONAL)
        if metadata.get("format") != REFERENCE_FORMAT or not schema.equals(wanted):
            actual = metadata.get("format", "another parquet file")
            detail = f"but {actual}" if actual != REFERENCE_FORMAT else "of this version"
            raise UsageError(f"{path} is not an {REFERENCE_FORMAT} {detail}", hint=_REMAKE_HINT)
        self.facts = self._facts(metadata)
        self._groups = {
            (task, block): group
            for group in range(self._file.num_row_groups)
            for task, block in [self._name(group)]
        }
        self.tasks = tuple(dict.fromkeys(task for task, _ in self._groups))

    def get(self, task: str, block: str) -> ReferenceRows | None:
        """Return the base's answers to a block and what was kept of them; None: not there.

        Raises:
            UsageError: the file is damaged.
        """
        if (task, block) not in self._groups:
            return None
        group = self._groups[task, block]
        try:
            with self._reading:  # threads of several workers ask
                rows = self._group(group, None)
            return read_rows(rows)
        except DamagedBlockError as error:
            raise self._damaged(group, f": {error}") from error

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def _facts(self, said: Mapping[str, str]) -> dict[str, Any]:
        try:
            facts = json.loads(said.get("facts", ""))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.path} says nothing of its base", hint=_REMAKE_HINT) from error
        if not isinstance(facts, dict):
            raise UsageError(f"{self.path} says nothing of its base", hint=_REMAKE_HINT)
        return facts

    def _name(self, group: int) -> tuple[str, str]:
        names = self._group(group, ["task", "block"]).slice(0, 1)
        if not names.num_rows:
            raise self._damaged(group)
        return names.column("task")[0].as_py(), names.column("block")[0].as_py()

    def _group(self, group: int, columns: list[str] | None) -> pa.Table:
        import pyarrow as pa

        try:
            check_size(self._file.metadata, [group])
            return self._file.read_row_group(group, columns=columns, use_threads=False)
        except DamagedBlockError as error:
            raise self._damaged(group, f": {error}") from error
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise self._damaged(group) from error

    def _damaged(self, group: int, why: str = " cannot be read") -> UsageError:
        return UsageError(
            f"{self.path} is damaged: its block {group + 1} of {self._file.num_row_groups}{why}",
            hint=_REMAKE_HINT,
        )


def _read_digest(path: Path) -> str:
    """The digest of a file that is whole and unchanged since it was written."""
    try:
        digest = read_seal(path)
    except FileNotFoundError as error:
        raise UsageError(f"there is no reference {path}") from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}", hint=_REMAKE_HINT
        ) from error
    if digest is None:
        raise UsageError(
            f"{path} is not a whole reference: it was not made by evalguard, or was changed since",
            hint=_REMAKE_HINT,
        )
    return digest
