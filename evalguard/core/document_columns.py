"""DocumentColumns: rows of documents and their fields, each column in one piece of memory.

A hundred thousand documents as dictionaries of lists take ten times the memory of their texts.
Columns are filled value by value, and read as sequences; rows are made where one is asked for.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from evalguard.core.settings import Value

# Longer texts (whole passages) are known by their digest.
_LONGEST_LABEL = 64
_DEEPEST = 3
# Names under which tasks keep what several questions are about.
_SHARED = frozenset(
    {
        "article", "article_id", "context", "context_id", "conversation_id", "dialogue_id",
        "document_id", "group", "group_id", "paragraph", "paragraph_id", "passage", "passage_id",
        "source_id", "story", "story_id",
    }
)  # fmt: skip
# A field that so many documents share on average is a category rather than a passage.
_LARGEST_MEAN = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFields:
    """Texts and whole numbers in the documents of one task.

    Attributes:
        n: documents.
        labels: field -> doc_id -> label; equal labels, equal values. A field of a field is dotted
            ("idx.paragraph").
        of_first: the fields of one document, where ``labels`` are read when they are asked for;
            None: look there.
    """

    n: int = 0
    labels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    of_first: tuple[str, ...] | None = None

    def likely_cluster(self) -> str:
        """A field that documents probably share, "" where none looks like it.

        Conservative: it has a name under which tasks keep passages, every document has it, and it
        is the same in 2 to 50 documents on average. Of several the one with most values.
        """
        names = self.labels if self.of_first is None else self.of_first
        counted = [
            (self.count(name), name)
            for name in names
            if name.rpartition(".")[2].lower() in _SHARED and len(self.labels[name]) == self.n
        ]
        plausible = [
            (count, name)
            for count, name in counted
            if count > 1 and 2.0 <= self.n / count <= _LARGEST_MEAN
        ]
        return max(plausible)[1] if plausible else ""

    def count(self, name: str) -> int:
        """How many values a field has."""
        return len(set(self.labels[name].values()))


def read_fields(documents: Mapping[int, object]) -> DocumentFields:
    """Read the fields of documents by doc_id; of what is not a mapping there are none."""
    return DocumentFields(n=len(documents), labels=read_labels(documents.items()))


def read_labels(documents: Iterable[tuple[int, object]]) -> dict[str, dict[int, str]]:
    """Field -> doc_id -> label, of (doc_id, document)."""
    labels: dict[str, dict[int, str]] = {}
    for doc_id, document in documents:
        for name, label in _labels(document):
            labels.setdefault(name, {})[doc_id] = label
    return labels


def _labels(value: object, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < _DEEPEST:
        for name, inner in value.items():
            if isinstance(name, str):
                yield from _labels(inner, f"{prefix}.{name}" if prefix else name, depth + 1)
    elif prefix and isinstance(value, (str, int)) and not isinstance(value, bool):
        text = str(value)
        if len(text) > _LONGEST_LABEL:
            text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        yield prefix, text


Rows = Sequence[Mapping[str, Value]]
Places = Sequence[int] | NDArray[Any]
Bounds = NDArray[np.int32] | NDArray[np.int64]
_PIECE = 8192  # values that are packed at once


class Column(Sequence[Any]):
    """Values of documents, in a piece of memory; equal to any sequence of the same values."""

    __slots__ = ()

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self.value(at) for at in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.value(int(place) % len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str) or len(other) != len(self):
            return False
        return all(first == second for first, second in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def value(self, place: int) -> Any:
        """The value at a place from 0 on."""
        raise NotImplementedError

    def pick(self, places: Places) -> Column:
        """The values at these places."""
        raise NotImplementedError


class Texts(Column):
    """Texts, or None, one after another in UTF-8; halves of characters are kept as they are.

    Attributes:
        data: all bytes.
        bounds: whole numbers, shape (n + 1,): where each text begins, and the last one ends.
        known: bool, shape (n,): False where there is none; None where there are all.
        is_utf8: whether no text has halves of characters, which UTF-8 forbids.
    """

    __slots__ = ("bounds", "data", "is_utf8", "known")

    def __init__(
        self,
        data: bytes | bytearray,
        bounds: Bounds,
        known: NDArray[np.bool_] | None,
        is_utf8: bool,
    ) -> None:
        self.data, self.bounds, self.known, self.is_utf8 = data, bounds, known, is_utf8

    @classmethod
    def of(cls, values: Sequence[str | None]) -> Texts:
        """Pack texts."""
        filled = TextsFiller()
        for value in values:
            filled.append(value)
        return filled.pack()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), _PIECE):
            bounds = self.bounds[first : first + _PIECE + 1].tolist()
            known = None if self.known is None else self.known[first : first + _PIECE].tolist()
            piece = self.data[bounds[0] : bounds[-1]]
            whole = piece.decode("utf-8", "surrogatepass")
            start = bounds[0]
            if len(whole) == len(piece):  # a byte is a character
                texts: list[str | None] = [
                    whole[begin - start : end - start] for begin, end in pairwise(bounds)
                ]
            else:
                texts = [
                    piece[begin - start : end - start].decode("utf-8", "surrogatepass")
                    for begin, end in pairwise(bounds)
                ]
            if known is not None:
                texts = [text if there else None for text, there in zip(texts, known, strict=True)]
            yield from texts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Texts):
            return super().__eq__(other)
        return (
            self.data == other.data
            and np.array_equal(self.bounds, other.bounds)
            and np.array_equal(self._presence(), other._presence())
        )

    __hash__ = None

    def value(self, place: int) -> str | None:
        """The text at a place."""
        if self.known is not None and not self.known[place]:
            return None
        return self.data[self.bounds[place] : self.bounds[place + 1]].decode(
            "utf-8", "surrogatepass"
        )

    def pick(self, places: Places) -> Texts:
        """The texts at these places."""
        chosen = np.asarray(places, dtype=np.int64)
        begins, ends = self.bounds[chosen], self.bounds[chosen + 1]
        view = memoryview(self.data)
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        return Texts(
            b"".join([view[begin:end] for begin, end in spans]),
            _bounds(ends - begins),
            None if self.known is None else self.known[chosen],
            self.is_utf8,
        )

    def part(self, begin: int, end: int) -> Texts:
        """The texts from one place to another."""
        bounds = self.bounds[begin : end + 1]
        data = self.data[bounds[0] : bounds[-1]]
        known = None if self.known is None else self.known[begin:end]
        return Texts(data, bounds - bounds[0], known, self.is_utf8)

    def share(self, other: Texts) -> None:
        """Take the memory of other texts, if these are the same."""
        if self == other:
            self.data, self.bounds, self.known = other.data, other.bounds, other.known

    @property
    def is_filled(self) -> bool:
        """Whether no text is empty or None."""
        return bool((np.diff(self.bounds) > 0).all())

    def _presence(self) -> NDArray[np.bool_]:
        return np.ones(len(self), dtype=np.bool_) if self.known is None else self.known


class TextsFiller:
    """Texts while they come in; those that ``like`` begins with are not kept a second time."""

    __slots__ = (
        *("_data", "_is_utf8", "_known", "_lengths", "_like", "_shared", "_waiting"),
        *("append", "extend"),
    )

    def __init__(self, like: TextsFiller | None = None) -> None:
        self._data, self._known, self._lengths = bytearray(), bytearray(), array("q")
        self._is_utf8 = True
        self._like, self._shared = like, (0, 0)  # texts and bytes that are kept there
        self._waiting: list[str | None] = []
        self.append, self.extend = self._waiting.append, self._waiting.extend

    def __len__(self) -> int:
        return self._shared[0] + len(self._lengths) + len(self._waiting)

    def pack_waiting(self) -> None:
        """Pack what has come in since."""
        if not self._waiting:
            return
        if None in self._waiting:
            known = bytes([text is not None for text in self._waiting])
            texts = [text or "" for text in self._waiting]
        else:
            known = b"\1" * len(self._waiting)
            texts = cast("list[str]", self._waiting.copy())
        self._waiting.clear()
        joined = "".join(texts)
        if joined.isascii():  # a byte is a character
            self._keep(joined.encode(), array("q", map(len, texts)), known)
            return
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._keep(b"".join(parts), array("q", map(len, parts)), known)
        try:
            joined.encode()
        except UnicodeEncodeError:
            self._is_utf8 = False

    def _keep(self, data: bytes, lengths: array[int], known: bytes) -> None:
        n, size = self._shared
        if self._like is not None:
            self._like.pack_waiting()
            rows, span = slice(n, n + len(lengths)), slice(size, size + len(data))
            if (
                self._like._lengths[rows] == lengths
                and self._like._known[rows] == known
                and self._like._data[span] == data
            ):
                self._shared = rows.stop, span.stop
                return
            self._take_own()
        self._data += data
        self._lengths += lengths
        self._known += known

    def _take_own(self) -> None:
        """Keep what was shared until here, too."""
        if self._like is not None:
            (n, size), like = self._shared, self._like
            self._data, self._lengths = like._data[:size], like._lengths[:n]
            self._known = like._known[:n]
            self._like, self._shared = None, (0, 0)

    def pack(self) -> Texts:
        """All texts that came in."""
        self.pack_waiting()
        if self._like is not None and len(self) == len(self._like):
            return self._like.pack()
        self._take_own()
        known = np.frombuffer(self._known, dtype=np.bool_)
        return Texts(
            self._data, _bounds(self._lengths), None if known.all() else known, self._is_utf8
        )


def _bounds(lengths: Sequence[int] | array[int] | NDArray[Any]) -> Bounds:
    """Where values of these lengths begin, and the last one ends."""
    total = np.cumsum(np.asarray(lengths, dtype=np.int64))
    bounds = np.concatenate([np.zeros(1, np.int64), total])
    return bounds.astype(np.int32) if bounds[-1] < 2**31 else bounds


class Numbers(Column):
    """Numbers, or flags; ``known``, bool, shape (n,), is False where there is none."""

    __slots__ = ("known", "values")

    def __init__(
        self,
        values: NDArray[np.float64] | NDArray[np.int64] | NDArray[np.bool_],
        known: NDArray[np.bool_] | None = None,
    ) -> None:
        self.values, self.known = values, known

    @classmethod
    def of(cls, values: Sequence[float | bool | None], dtype: type) -> Numbers:
        """Pack numbers of one type."""
        filled = NumbersFiller(dtype)
        filled.extend(values)
        return filled.pack()

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[float | int | bool | None]:
        if self.known is None:
            return iter(self.values.tolist())
        pairs = zip(self.values.tolist(), self.known.tolist(), strict=True)
        return iter([value if there else None for value, there in pairs])

    def value(self, place: int) -> float | int | bool | None:
        """The number at a place."""
        if self.known is not None and not self.known[place]:
            return None
        number: float | int | bool = self.values[place].item()
        return number

    def pick(self, places: Places) -> Numbers:
        """The numbers at these places."""
        chosen = np.asarray(places, dtype=np.int64)
        return Numbers(self.values[chosen], None if self.known is None else self.known[chosen])

    def part(self, begin: int, end: int) -> Numbers:
        """The numbers from one place to another."""
        known = None if self.known is None else self.known[begin:end]
        return Numbers(self.values[begin:end], known)


class NumbersFiller:
    """Numbers, or None, while they come in."""

    __slots__ = ("_data", "_dtype", "_known", "_waiting", "append", "extend")

    def __init__(self, dtype: type) -> None:
        self._dtype = np.dtype(dtype)
        self._data, self._known = bytearray(), bytearray()
        self._waiting: list[float | bool | None] = []
        self.append, self.extend = self._waiting.append, self._waiting.extend

    def pack_waiting(self) -> None:
        """Pack what has come in since."""
        if not self._waiting:
            return
        values = self._waiting
        if None in values:
            self._known += bytes([value is not None for value in values])
            values = [0 if value is None else value for value in values]
        else:
            self._known += b"\1" * len(values)
        self._data += np.array(values, dtype=self._dtype).tobytes()
        self._waiting.clear()

    def pack(self) -> Numbers:
        """All numbers that came in."""
        self.pack_waiting()
        known = np.frombuffer(self._known, dtype=np.bool_)
        values = np.frombuffer(self._data, dtype=self._dtype)
        return Numbers(values, None if known.all() else known)


class Lists(Column):
    """Lists: ``items`` of all documents, and ``bounds``, shape (n + 1,), of each."""

    __slots__ = ("bounds", "items")

    def __init__(self, items: Texts | Numbers, bounds: Bounds) -> None:
        self.items, self.bounds = items, bounds

    @classmethod
    def of(cls, items: Texts | Numbers, lengths: Places) -> Lists:
        """Cut ``items`` into lists of these lengths."""
        return cls(items, _bounds(lengths))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[list[Value]]:
        for first in range(0, len(self), _PIECE):
            bounds = self.bounds[first : first + _PIECE + 1]
            items = list(self.items.part(int(bounds[0]), int(bounds[-1])))
            marks = (bounds - bounds[0]).tolist()
            yield from (items[begin:end] for begin, end in pairwise(marks))

    def value(self, place: int) -> list[Value]:
        """The list at a place."""
        return [*self.items.part(int(self.bounds[place]), int(self.bounds[place + 1]))]

    def pick(self, places: Places) -> Lists:
        """The lists at these places."""
        chosen = np.asarray(places, dtype=np.int64)
        begins, lengths = self.bounds[chosen], np.diff(self.bounds)[chosen]
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        inner = np.arange(total[-1]) - np.repeat(total[:-1] - begins, lengths)
        return Lists(self.items.pick(inner), total)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Of each list, shape (n,)."""
        return np.diff(self.bounds)


class DocumentColumns(Sequence[Mapping[str, Value]]):
    """Rows of documents, each column in one piece of memory."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Value]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Value]]: ...
    def __getitem__(
        self, place: int | slice
    ) -> Mapping[str, Value] | Sequence[Mapping[str, Value]]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        return {name: column[place] for name, column in self.columns.items()}

    def share(self, other: DocumentColumns) -> None:
        """Take the memory of another run's texts where they are the same."""
        for name, column in self.columns.items():
            ours, theirs = (
                side.items if isinstance(side, Lists) else side
                for side in (column, other.columns.get(name))
            )
            if isinstance(ours, Texts) and isinstance(theirs, Texts):
                ours.share(theirs)

    def __iter__(self) -> Iterator[Mapping[str, Value]]:
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))


def column_of(rows: Rows, name: str) -> Sequence[Value]:
    """One column of documents; None for those that have none of that name."""
    if isinstance(rows, DocumentColumns):
        column = rows.columns.get(name)
        return (None,) * len(rows) if column is None else column
    return [row.get(name) for row in rows]


def pair_columns(base: Rows, candidate: Rows, name: str) -> tuple[Sequence[Value], Sequence[Value]]:
    """One column of both sides, of the documents that both have, in the order of ``base``.

    For sentences about what both sides answered: scores are aligned by ``pair``, which refuses.
    """
    ids = [list(column_of(side, "doc_id")) for side in (base, candidate)]
    ours, theirs = (column_of(side, name) for side in (base, candidate))
    if ids[0] == ids[1]:
        return ours, theirs
    values = dict(zip(ids[1], theirs, strict=True))
    pairs = [
        (value, values[doc_id])
        for doc_id, value in zip(ids[0], ours, strict=True)
        if doc_id in values
    ]
    return [our_value for our_value, _ in pairs], [their_value for _, their_value in pairs]
