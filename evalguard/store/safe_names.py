"""Names of models and tasks as parts of file names."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

_MOST_BYTES = 60
_ALLOWED = frozenset("._+=@,")


def safe_name(name: str) -> str:
    """Return ``name`` as part of a file name on any file system.

    Letters and digits of any script stay, other characters become "-" (slashes, blanks, control
    characters, lone surrogates); no dot or dash stands at an end, so "..", "." and hidden names
    cannot come out. At most 60 bytes of UTF-8, cut in the middle. "unnamed" if nothing is left.
    """
    text = unicodedata.normalize("NFC", name)
    kept = "".join(c if c.isalnum() or c in _ALLOWED else " " for c in text)
    plain = "-".join(kept.split()).strip(".-")
    return _shortened(plain) or "unnamed"


def number_names(name: str) -> Iterator[str]:
    """Yield ``name``, ``name-2``, ``name-3`` ... for a name that may be taken."""
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _shortened(text: str) -> str:
    data = text.encode()
    if len(data) <= _MOST_BYTES:
        return text
    half = (_MOST_BYTES - 2) // 2
    # A character that the cut goes through is dropped.
    head, tail = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{head.rstrip('.-')}--{tail.lstrip('.-')}"
