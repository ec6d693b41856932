"""Columns of documents give back what was put in, as rows, as sequences and in files."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.document_columns import (
    DocumentColumns,
    Lists,
    Numbers,
    Texts,
    TextsFiller,
    column_of,
    pair_columns,
)
from evalguard.store.run_tables import write_sample_table

texts = st.lists(st.none() | st.text(st.characters(codec=None, exclude_categories=())), max_size=9)


@given(values=texts)
def test_texts_are_those_that_were_packed_halves_of_characters_too(
    values: list[str | None],
) -> None:
    packed = Texts.of(values)
    assert list(packed) == values
    assert [packed[at] for at in range(-len(values), len(values))] == values * 2
    assert packed == values
    assert packed == Texts.of(values)
    assert packed != [*values, "more"]
    assert packed.is_filled == all(values)
    order = list(range(len(values)))[::-1]
    assert list(packed.pick(order)) == values[::-1]
    assert list(packed.part(0, len(values) // 2)) == values[: len(values) // 2]


@given(values=texts, others=texts, again=st.booleans(), data=st.data())
def test_texts_that_others_begin_with_are_kept_once_and_are_the_same(
    values: list[str | None], others: list[str | None], again: bool, data: st.DataObject
) -> None:
    others = values[: data.draw(st.integers(0, len(values)))] + others if again else others
    first = TextsFiller()
    second = TextsFiller(first)
    for place in range(max(len(values), len(others))):  # in turn, as the lines of two filters
        for filled, own in ((first, values), (second, others)):
            filled.extend(own[place : place + 1])
            if data.draw(st.booleans()):
                filled.pack_waiting()
    assert len(second) == len(others)
    packed = first.pack(), second.pack()
    assert [list(one) for one in packed] == [values, others]
    assert packed[1] == Texts.of(others)
    assert packed[1].is_utf8 == Texts.of(others).is_utf8
    assert (packed[0].data is packed[1].data) is (values == others)


@given(
    values=st.lists(st.lists(st.none() | st.floats(allow_nan=False), max_size=3), max_size=6),
    data=st.data(),
)
def test_lists_are_those_that_were_packed(
    values: list[list[float | None]], data: st.DataObject
) -> None:
    flat = [one for of in values for one in of]
    packed = Lists.of(Numbers.of(flat, float), list(map(len, values)))
    assert list(packed) == values
    assert [packed[at] for at in range(len(values))] == values
    places = data.draw(st.lists(st.sampled_from(range(len(values))))) if values else []
    assert list(packed.pick(places)) == [values[at] for at in places]


def test_a_column_ends_where_its_documents_end() -> None:
    packed = Numbers(np.arange(3))
    assert (packed[-1], packed[1:]) == (2, [1, 2])
    with pytest.raises(IndexError):
        packed[3]


def columns() -> tuple[DocumentColumns, dict[str, list[Any]]]:
    plain: dict[str, list[Any]] = {
        "doc_id": [1, 4, 7],
        "prompt": ["a", None, "ü"],
        "target": [None] * 3,
        "loglikelihood": [[-1.5, math.inf], [], [None]],
        "is_greedy": [[True, False], [], [None]],
        "text": [["x", "y"], [], [None]],
        "token_logprobs": [[None, None], [], [None]],
        "half": ["\ud800", "b", "c"],
    }
    lengths = [2, 0, 1]
    packed = DocumentColumns(
        {
            "doc_id": Numbers(np.array(plain["doc_id"])),
            "prompt": Texts.of(plain["prompt"]),
            "target": Texts.of(plain["target"]),
            "loglikelihood": Lists.of(Numbers.of([-1.5, math.inf, None], float), lengths),
            "is_greedy": Lists.of(Numbers.of([True, False, None], bool), lengths),
            "text": Lists.of(Texts.of(["x", "y", None]), lengths),
            "token_logprobs": Lists.of(Numbers.of([None] * 3, float), lengths),
            "half": Texts.of(plain["half"]),
        }
    )
    return packed, plain


def test_rows_are_made_of_columns_where_they_are_asked_for() -> None:
    packed, plain = columns()
    rows = [{name: values[at] for name, values in plain.items()} for at in range(3)]
    assert list(packed) == rows
    assert [packed[0], packed[-1]] == [rows[0], rows[2]]
    assert packed[:2] == rows[:2]
    assert [list(column_of(side, "text")) for side in (packed, rows)] == [plain["text"]] * 2
    assert [list(column_of(side, "none")) for side in (packed, rows)] == [[None] * 3] * 2


def test_a_file_of_packed_columns_is_that_of_plain_ones() -> None:
    packed, plain = columns()
    files = (io.BytesIO(), io.BytesIO())
    for file, of_side in zip(files, (packed.columns, plain), strict=True):
        write_sample_table(file, "t", of_side)
    assert files[0].getvalue() == files[1].getvalue()


def test_columns_are_paired_by_doc_id_and_documents_of_one_side_left_out() -> None:
    ours = [{"doc_id": n, "text": f"a{n}"} for n in (3, 1, 2)]
    theirs = [{"doc_id": n, "text": f"b{n}"} for n in (0, 1, 3)]
    assert pair_columns(ours, theirs, "text") == (["a3", "a1"], ["b3", "b1"])
    assert pair_columns(ours, ours, "text") == (["a3", "a1", "a2"],) * 2
