"""Samples are columns of plain types, readable by anyone who reads parquet."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalguard.store.run_tables import write_sample_table


def table(columns: dict[str, Any], task: str = "t") -> pa.Table:
    return pq.read_table(written(columns, task))


def written(columns: dict[str, Any], task: str = "t") -> io.BytesIO:
    file = io.BytesIO()
    write_sample_table(file, task, columns)
    return file


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 1, None], pa.int64()),
        ([0, 1.5], pa.float64()),
        ([True, None], pa.bool_()),
        (["a", "ü", None], pa.string()),
        ([None, None], pa.null()),
        ([[-1.5, float("nan")], [], None], pa.list_(pa.float64())),
        ([np.array([-1.5]), np.array([])], pa.list_(pa.float64())),
        ([[True, False], [True]], pa.list_(pa.bool_())),
        ([[["a"], []], [["b"]]], pa.list_(pa.list_(pa.string()))),
        ([np.float64(1.5), np.float64(2)], pa.float64()),
    ],
)
def test_uniform_values_get_a_type_of_their_own(values: list[Any], kind: pa.DataType) -> None:
    assert table({"c": values}).schema.field("c").type == kind


def test_infinities_nan_and_none_stay_apart() -> None:
    found = table({"c": [float("nan"), None, float("-inf")]}).column("c").to_pylist()
    assert math.isnan(found[0])
    assert found[1:] == [None, float("-inf")]


@pytest.mark.parametrize(
    "values",
    [
        [{"a": 1}, {"b": [1.5, None]}],
        [1, "a"],
        [[1], "a"],
        [[{"until": ["\n"]}, "x"], None],
        [2**80, 1],
    ],
)
def test_anything_else_is_json_text(values: list[Any]) -> None:
    found = table({"c": values})
    assert found.schema.field("c").type == pa.string()
    assert found.schema.field("c").metadata == {b"json": b"1"}
    texts = found.column("c").to_pylist()
    assert [None if text is None else json.loads(text) for text in texts] == values


def test_text_that_utf_8_cannot_hold_is_escaped() -> None:
    assert table({"c": ["a\ud800b"]}).column("c").to_pylist() == ["a\\ud800b"]


def test_the_file_names_its_task_and_is_compressed() -> None:
    file = written({"c": ["word " * 1000] * 100}, "a/\ud800b")
    assert len(file.getvalue()) < 5000
    assert pq.read_schema(file).metadata[b"task"] == b"a/\\ud800b"


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        written({"a": [1], "b": [1, 2]})


texts = st.text(st.characters(exclude_categories=()))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(values, max_size=5))
def test_any_values_can_be_written(column: list[Any]) -> None:
    assert table({"c": column}).num_rows == len(column)
