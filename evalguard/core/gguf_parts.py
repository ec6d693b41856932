"""Names of the files that a GGUF was split into (gguf-split of llama.cpp)."""

from __future__ import annotations

import re

_PART = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.gguf)")


def gguf_parts(name: str) -> tuple[str, ...]:
    """Return the names of all parts, that of any of them given; of a whole file its own."""
    found = _PART.fullmatch(name)
    if found is None:
        return (name,)
    first, number, of, count, last = found.groups()
    if not 1 <= int(number) <= int(count):  # no part by its name, whatever it is
        return (name,)
    return tuple(f"{first}{part:05d}{of}{count}{last}" for part in range(1, int(count) + 1))
