"""CompareOptions as plain data, for a file or another process; ``make_options`` reads them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from evalguard.pipeline.options import CompareOptions


def told_options(
    options: CompareOptions, *, told_path: Callable[[Path], str] = str
) -> dict[str, Any]:
    """The options that are not the default's, as JSON values.

    Args:
        told_path: how a path is written.
    """
    default = CompareOptions()
    return {
        field.name: _plain(getattr(options, field.name), told_path)
        for field in fields(CompareOptions)
        if getattr(options, field.name) != getattr(default, field.name)
    }


def _plain(value: Any, told_path: Callable[[Path], str]) -> Any:
    if isinstance(value, Path):
        return told_path(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, told_path) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
