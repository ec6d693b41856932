"""Lines of a samples file are read by a fast reader, with what Python's own gives of each."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalguard.errors import EvaluationError
from evalguard.harness.finished_runs.foreign_json import read_lines

texts = st.text(st.characters(codec=None, exclude_categories=()))  # halves of characters too
whole = st.integers() | st.integers(10**16, 10**21) | st.integers(-(10**21), -(10**16))
values = st.recursive(
    st.none() | st.booleans() | whole | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def as_before(line: str) -> Any:
    """What the reader gave before there was a fast one: 18 digits are whole, more are a float."""
    return json.loads(line, parse_int=lambda d: int(d) if len(d) <= 18 else float(d))


def told(value: Any) -> str:
    """Types and all digits; NaN is itself."""
    return repr(value)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(texts, values, max_size=4), min_size=1, max_size=3))
@pytest.mark.parametrize("ascii_only", [True, False])
def test_every_line_is_what_pythons_own_reader_gives(
    tmp_path: Path, ascii_only: bool, rows: list[dict[str, Any]]
) -> None:
    lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    file = tmp_path / "samples.jsonl"
    file.write_bytes(b"".join(f"{line}\n".encode("utf-8", "surrogatepass") for line in lines))
    assert [told(found) for _, found in read_lines(file)] == [told(as_before(x)) for x in lines]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", math.nan), ("-Infinity", -math.inf), ("1e400", math.inf), ("-0", 0), ("-0.0", -0.0),
        ("999999999999999999", 10**18 - 1), ("1000000000000000000", 1e18),
        ("-99999999999999999", 1 - 10**17), ("-100000000000000000", -1e17),
        ("18446744073709551616", 2.0**64), ("-0.0012345678901234567", -0.0012345678901234567),
    ],
)  # fmt: skip
def test_numbers_that_are_no_json_or_fit_no_array_are_read_as_ever(
    tmp_path: Path, text: str, value: float
) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text(f'{{"a": {text}}}\n')
    ((_, found),) = read_lines(file)
    assert told(found["a"]) == told(value)


@pytest.mark.parametrize("depth", [499, 900])
def test_deep_lists_are_read(tmp_path: Path, depth: int) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text("[" * depth + "]" * depth + "\n")
    assert len(list(read_lines(file))) == 1


def test_what_is_damaged_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text('{"a": 1}\n{"a": 1,]\n')
    with pytest.raises(EvaluationError, match=r"samples\.jsonl:2: not JSON: "):
        list(read_lines(file))
