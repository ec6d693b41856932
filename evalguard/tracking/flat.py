"""Nested plain values as flat ones, for trackers whose parameters are names and texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat(values: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Return ``{"base.name": ...}`` for ``{"base": {"name": ...}}``; lists stay."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, prefix=f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
