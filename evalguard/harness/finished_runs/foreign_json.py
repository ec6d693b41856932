"""JSON that somebody else wrote: read within limits, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from evalguard.errors import EvaluationError
from evalguard.regular_file import open_regular

# Far above what lm-eval writes: a results file has kilobytes, a line one document with its prompt.
MAX_FILE = 256 * 2**20
MAX_LINE = 64 * 2**20
_HINT = "the run was cut off while writing, or the file was edited: make the run once more"
# Longer whole numbers fit no array, and Python refuses to read those of thousands of digits.
_MOST_DIGITS = 18


def read_file(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        EvaluationError: if it cannot be read, is too large, or is not JSON; with file and line.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE:
        raise EvaluationError(f"{path} is larger than {MAX_FILE // 2**20} MiB: no results file")
    return _parsed(data, path)


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, content) of every line that is not blank.

    Raises:
        EvaluationError: as ``read_file``, for the line that is at fault.
    """
    # Lines end at "\n" only: documents may hold other separators that str.splitlines would cut at.
    try:
        with open_regular(path) as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    size = f"{MAX_LINE // 2**20} MiB"
                    raise EvaluationError(f"{path}:{number}: a line of over {size}: no sample")
                if line.strip():
                    yield number, _parsed_line(line, path, above=number - 1)
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from error


# A line with one digit and one bracket: runs of digits from which on whole numbers are read in
# another way (see ``_number``), and more brackets than a sample has.
_SHAPE = bytes.maketrans(b"123456789{", b"000000000[")
_LONG_NUMBER = b"0" * _MOST_DIGITS
_MANY_BRACKETS = 500


def _parsed_line(line: bytes, path: Path, *, above: int) -> Any:
    """One line, by the faster reader where both give the same.

    NaN, infinities and halves of characters are no JSON, and lm-eval writes them: what the fast
    reader refuses is read by Python's own, which has the last word on what is damaged, too.
    """
    shape = line.translate(_SHAPE)
    few = len(line) < _MANY_BRACKETS or shape.count(b"[") < _MANY_BRACKETS
    if few and _LONG_NUMBER not in shape:
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
    return _parsed(line, path, above=above)


def _parsed(data: bytes, path: Path, *, above: int = 0) -> Any:
    try:
        return json.loads(data, parse_int=_number)
    except json.JSONDecodeError as error:
        where = f"{path}:{above + error.lineno}"
        raise EvaluationError(f"{where}: not JSON: {error.msg}", hint=_HINT) from error
    except UnicodeDecodeError as error:
        line = above + 1 + data.count(b"\n", 0, error.start)
        raise EvaluationError(f"{path}:{line}: not JSON: not UTF-8", hint=_HINT) from error
    except RecursionError as error:
        raise EvaluationError(f"{path}:{above + 1}: nested too deep", hint=_HINT) from error


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)
