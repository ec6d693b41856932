"""Checksums of documents.

One says that a document is as it was written. It proves no author: whoever changes a document can
compute it anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CHECKSUM_KEY = "checksum"
ALGORITHM = "sha256"


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the checksum of all the rest of it, as its last key.

    Args:
        document: plain, finite JSON values.
    """
    rest = {key: value for key, value in document.items() if key != CHECKSUM_KEY}
    return {**rest, CHECKSUM_KEY: {"algorithm": ALGORITHM, "value": checksum(rest)}}


def checksum_fault(document: Mapping[str, Any]) -> str:
    """Say what is wrong with a document's checksum; "" where it is right, or there is none.

    Raises:
        RecursionError: the document is nested too deeply.
    """
    if CHECKSUM_KEY not in document:
        return ""
    stated = document[CHECKSUM_KEY]
    algorithm = stated.get("algorithm") if isinstance(stated, Mapping) else None
    value = stated.get("value") if isinstance(stated, Mapping) else None
    if not isinstance(algorithm, str) or not isinstance(value, str):
        return "its checksum is none"
    if algorithm != ALGORITHM:
        return f"its checksum is made by {algorithm[:40]!r}, and this evalguard knows {ALGORITHM}"
    computed = checksum(document)
    if value != computed:
        return (
            f"its checksum is {value[:16]!r}..., and that of what is there is {computed[:16]!r}..."
        )
    return ""


def checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal digits, of a document without its checksum.

    Of its canonical text: keys in the order of their code points, no blanks, everything beyond
    ASCII escaped, a number that is whole as an integer. Indents and the order of keys do not count,
    nor whether a program wrote 1.0 or 1.
    """
    rest = {key: _canonical(value) for key, value in document.items() if key != CHECKSUM_KEY}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return value
