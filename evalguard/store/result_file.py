"""result.json of a finished run, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evalguard.errors import UsageError

_NAME = "result.json"
_HINT = "give the run folder of an `evalguard compare`, such as reports/<time>-<base>-vs-<cand>"


def read_result(path: Path, *, schema: str, hint: str = _HINT) -> dict[str, Any]:
    """Return the document of a run folder (or of its result.json).

    Args:
        schema: name and number of the contract that it must follow.
        hint: what to give instead of something else.

    Raises:
        UsageError: if there is none, or it is something else.
    """
    return read_document(path, schemas=(schema,), hint=hint)


def read_document(path: Path, *, schemas: tuple[str, ...], hint: str = _HINT) -> dict[str, Any]:
    """The same, of a document that follows one of several contracts."""
    file = path / _NAME if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON: {error}", hint=hint) from error
    found = content.get("schema") if isinstance(content, dict) else None
    if found not in schemas:
        named = " or ".join(schemas)
        raise UsageError(f"{file} is no {named} document (schema: {found!r})", hint=hint)
    return dict(content)
