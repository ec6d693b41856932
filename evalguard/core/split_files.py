"""Names of the files that a model was split into: GGUF by llama.cpp's gguf-split, safetensors and
torch files by transformers."""

from __future__ import annotations

import json
import re
from typing import Literal

FileKind = Literal["safetensors", "torch", "gguf", "npz", "npy"]
_PART = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.\w+)")


def gguf_parts(name: str) -> tuple[str, ...]:
    """Return the names of all parts of a GGUF, given that of any; of a whole file its own."""
    return split_parts(name) if name.endswith(".gguf") else (name,)


def split_parts(name: str) -> tuple[str, ...]:
    """Return the same of a file of any suffix."""
    match = _PART.fullmatch(name)
    if match is None:
        return (name,)
    first, number, of, count, last = match.groups()
    if not 1 <= int(number) <= int(count):  # no part by its name, whatever it is
        return (name,)
    return tuple(f"{first}{part:05d}{of}{count}{last}" for part in range(1, int(count) + 1))


def parse_weight_map(index: str) -> dict[str, str]:
    """Return tensor -> file of the text of an index of shards.

    Raises:
        ValueError: it is none.
    """
    try:
        return {str(name): str(file) for name, file in json.loads(index)["weight_map"].items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it has no weight_map") from error
