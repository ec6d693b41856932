"""Local paths in a guard file: relative to its folder, or hub ids left as they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from evalguard.core.settings import Value

# The model_args that lm-eval's Hugging Face types read as a local path or a hub id.
PATH_ARGS = frozenset({"pretrained", "tokenizer", "peft", "delta", "gguf_file"})
_MOST_ENTRIES = 10_000


def is_written_as_path(text: str) -> bool:
    """Whether a text can only mean a local path, never a hub id."""
    return text in (".", "..", "~") or text.startswith(("./", "../", "/", "~/"))


def resolve_path(text: str, folder: Path) -> Path:
    """Return the absolute path of a local path that is relative to ``folder``."""
    # os.path answers for names that pathlib refuses (too long, an unknown user's home).
    joined = folder / os.path.expanduser(text)
    return joined.resolve() if os.path.exists(joined) else Path(os.path.abspath(joined))


def leads_outside(text: str, folder: Path, root: Path) -> bool:
    """Whether a path from ``folder`` on leads out of ``root``, through a link for one.

    What lies directly in a folder counts too: its files are read with it. A text with a scheme is
    no path inside. What is not there leads nowhere, unless it is written as a path.
    """
    if "://" in text:
        return True
    joined, home = os.path.join(folder, os.path.expanduser(text)), os.path.realpath(root)
    inside = _is_inside(joined, home)
    try:
        if not os.path.lexists(joined):
            # A hub id stays what it is; what can only be a path may come into being.
            return not inside and (is_written_as_path(text) or ".." in Path(text).parts)
        entries = _entries(joined) if os.path.isdir(joined) else []
    except (OSError, ValueError):
        return True
    all_inside = inside and all(_is_inside(path, home) for path in entries)
    return not all_inside or len(entries) > _MOST_ENTRIES


def _entries(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in islice(entries, _MOST_ENTRIES + 1)]


def _is_inside(path: str, home: str) -> bool:
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):
        return False
    return real == home or real.startswith(home.rstrip(os.sep) + os.sep)


def resolve_model(text: str, folder: Path) -> str:
    """Return the absolute path of a local model, or the text itself where it is a hub id.

    A text that can only be a path becomes absolute even if nothing is there: loading then says so.
    """
    if text and (is_written_as_path(text) or os.path.exists(folder / text)):
        return str(resolve_path(text, folder))
    return text


def resolve_model_args(args: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """Return model_args with local paths resolved."""
    return {name: resolve_value(name, value, folder) for name, value in args.items()}


def resolve_value(name: str, value: Value, folder: Path) -> Value:
    """Return the value of one model_arg, resolved if it is a local path."""
    if name in PATH_ARGS and isinstance(value, str):
        return resolve_model(value, folder)
    return value
