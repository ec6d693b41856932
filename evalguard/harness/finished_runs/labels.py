"""WrittenLabels: texts and whole numbers of a stored run's documents, read when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from evalguard.core.document_fields import DocumentFields, read_labels
from evalguard.core.documents.columns import DocumentColumns


def read_document_fields(documents: DocumentColumns) -> DocumentFields:
    """The fields of documents; what all documents have, the first one has, too."""
    first = json.loads(_written(documents)[0])
    return DocumentFields(
        n=len(documents),
        labels=WrittenLabels(documents),
        of_first=tuple(read_labels([(0, first)])),
    )


class WrittenLabels(Mapping[str, Mapping[int, str]]):
    """Field -> doc_id -> label, of ``DocumentFields``."""

    __slots__ = ("_documents", "_read")

    def __init__(self, documents: DocumentColumns) -> None:
        self._documents = documents
        self._read: Mapping[str, Mapping[int, str]] | None = None

    def __getitem__(self, name: str) -> Mapping[int, str]:
        return self._labels()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels())

    def __len__(self) -> int:
        return len(self._labels())

    def _labels(self) -> Mapping[str, Mapping[int, str]]:
        if self._read is None:
            ids = self._documents.columns["doc_id"]
            told = zip(ids, map(_read, _written(self._documents)), strict=True)
            self._read = read_labels(told)
        return self._read


def _read(written: str) -> Any:
    """A document, by the faster reader where it takes what is written."""
    try:
        return orjson.loads(written)
    except orjson.JSONDecodeError:  # NaN, infinities, halves of characters
        return json.loads(written)


def _written(documents: DocumentColumns) -> Any:
    return documents.columns["doc"]
