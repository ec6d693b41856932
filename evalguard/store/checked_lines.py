"""Records as lines of a file: one JSON object each, with a digest of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evalguard.core.settings import Value, digest_of

_DIGEST_FIELD = "check"


def encode_line(record: Mapping[str, Value]) -> bytes:
    """Return a record as one line, with a digest of itself."""
    # Numbers that JSON has no word for are Python's (Infinity): only this module reads the line.
    line = json.dumps({**record, _DIGEST_FIELD: digest_of(dict(record))})
    return f"{line}\n".encode()


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return a line's record; None unless it is whole, and as it was written."""
    try:
        record = json.loads(line)
        check = record.pop(_DIGEST_FIELD)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if check == digest_of(record) else None
