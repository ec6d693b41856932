"""result.json of a finished run, read back: strict JSON that is as it was written, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from evalguard.core.checksum import checksum_fault
from evalguard.errors import StoreError, UsageError
from evalguard.regular_file import open_regular

_RESULT_NAME = "result.json"
_HINT = "give the run folder of an `evalguard compare`, such as reports/<time>-<base>-vs-<cand>"
# Far above what evalguard writes: a thousand tasks have some megabytes.
MOST_BYTES = 256 * 2**20


def read_result(path: Path, *, schema: str, hint: str = _HINT) -> dict[str, Any]:
    """Return the document of a run folder (or of its result.json).

    Args:
        schema: name and number of the contract that it must follow.
        hint: what to give instead of something else.

    Raises:
        UsageError: if there is none, or it is something else.
        StoreError: it was changed since it was written, by its checksum.
    """
    return read_document(path, schemas=(schema,), hint=hint)


def read_document(path: Path, *, schemas: tuple[str, ...], hint: str = _HINT) -> dict[str, Any]:
    """The same, of a document that follows one of several contracts."""
    file = path / _RESULT_NAME if path.is_dir() else path
    try:
        with open_regular(file) as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint=hint) from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{file} is larger than {MOST_BYTES // 2**20} MiB", hint=hint)
    try:
        content = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_build_object)
    except RecursionError as error:
        raise UsageError(f"{file} is not JSON: nested too deeply", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}", hint=hint) from error
    found = content.get("schema") if isinstance(content, dict) else None
    if found not in schemas:
        named = " or ".join(schemas)
        raise UsageError(f"{file} is not an {named} document (schema: {found!r})", hint=hint)
    _check_unchanged(file, content)
    return dict(content)


def _check_unchanged(file: Path, content: dict[str, Any]) -> None:
    try:
        fault = checksum_fault(content)
    except RecursionError as error:
        raise UsageError(f"{file} is not JSON: nested too deeply", hint=_HINT) from error
    if fault:
        raise StoreError(
            f"{file} is not as evalguard wrote it: {fault}",
            hint="take the file from where it was made, or compare again; do not edit it",
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once each: of two, nobody knows which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice in one object")
    return found
