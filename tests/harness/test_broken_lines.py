"""Lines of a task's JSON data that are no documents are found where loading them fails."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from evalguard.harness.surroundings import find_broken_lines

GOOD = b'{"q": "x", "a": 1}\n'


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (GOOD + b'{"q" "x"}\n' + GOOD + b"hello\n", [2, 4]),
        (GOOD * 2 + b'{"q": "x', [3]),
        (GOOD + b'["x", 1]\n7\n', [2, 3]),
        (GOOD + b'{"q": "\xe9"}\n', [2]),
        (GOOD + b'{"q": 1, "q": 2}\n', [2]),
        (b'{"q": 1},\n{"q": 2},\n', [1, 2]),
        (b"\n \n", [0]),
    ],
)
def test_every_line_that_is_no_document_is_named(
    tmp_path: Path, content: bytes, lines: list[int]
) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(content))
    assert [line for line, _ in find_broken_lines(path)] == lines


@pytest.mark.parametrize(
    "content",
    [
        GOOD + b"\n\n" + GOOD,
        b"\xef\xbb\xbf" + GOOD,
        b'[{"q": 1},\n {"q": 2}]',
        b'{"rows":\n [{"q": 1}]}\n',
        b'{"q": NaN}\r\n{"q": null}',
    ],
)
def test_what_the_datasets_library_reads_is_let_stand(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(content)
    assert list(find_broken_lines(path)) == []
