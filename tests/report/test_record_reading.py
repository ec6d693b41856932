"""Documents are read by the annotations that they are written by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, get_args

import pytest

from evalguard.core.compare_report import CompareReport
from evalguard.errors import StoreError
from evalguard.nights.night_report import NightReport
from evalguard.report.record_documents import annotations_of, read_record, write_record
from evalguard.tracing.trace_report import TraceReport


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """A record with one field of each kind.

    Attributes:
        books: by title, how many.
    """

    books: dict[str, int]
    wide: float
    size: tuple[float, int] | None
    tags: tuple[str, ...] = ()
    colour: Literal["red", "green"] = "red"


SHELF = Shelf(books={"a": 1}, wide=2.0, size=(1.5, 3), tags=("x",), colour="green")


def records_in(kind: Any) -> Iterator[Any]:
    """Yield a record and all records that it may hold."""
    found, open_ = set(), [kind]
    while open_:
        one = open_.pop()
        if not (isinstance(one, type) and dataclasses.is_dataclass(one)):
            open_ += get_args(one)
        elif one not in found:
            found.add(one)
            open_ += annotations_of(one).values()
    yield from found


@pytest.mark.parametrize("kind", [CompareReport, NightReport, TraceReport])
def test_every_record_of_a_document_can_be_read(kind: type) -> None:
    refused = {one for one in records_in(kind) if not reads_or_refuses(one)}
    assert refused == set()


def reads_or_refuses(kind: Any) -> bool:
    try:
        read_record(kind, {})
    except StoreError:
        return True
    except TypeError:  # an annotation that nothing reads
        return False
    return True


def test_what_was_written_is_read_back() -> None:
    assert read_record(Shelf, write_record(SHELF)) == SHELF


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"wide": True}, "shelf.wide is True, not a number"),
        ({"wide": 10**400}, "shelf.wide is too large a number"),
        ({"books": {"a": 1.0}}, "shelf.books.a is 1.0, not a whole number"),
        ({"books": []}, r"shelf.books is \[\], not an object"),
        ({"size": [1.0]}, r"shelf.size is \[1.0\], not a list of 2"),
        ({"tags": "x"}, "shelf.tags is 'x', not a list"),
        ({"tags": [1]}, r"shelf.tags\[0\] is 1, not a text"),
        ({"colour": "blue"}, "shelf.colour is 'blue', not one of 'red' or 'green'"),
    ],
)
def test_what_is_something_else_is_refused_at_its_place(change: Any, named: str) -> None:
    with pytest.raises(StoreError, match=named):
        read_record(Shelf, {**write_record(SHELF), **change}, "shelf")


def test_what_an_earlier_version_did_not_write_has_its_default_or_is_none() -> None:
    assert read_record(Shelf, {"books": {}, "wide": 1, "of a later version": 0}) == Shelf(
        books={}, wide=1.0, size=None
    )
    with pytest.raises(StoreError, match="wide is missing"):
        read_record(Shelf, {"books": {}})
