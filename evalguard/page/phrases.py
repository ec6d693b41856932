from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.gate_state import Key
from evalguard.page.safe_text import printable


def list_names(names: Sequence[str], *, most: int = 6) -> str:
    """Return "a", "a and b" or "a, b and 3 others"."""
    shown = [printable(name) for name in names[:most]]
    remaining = len(names) - len(shown)
    if remaining:
        shown.append(f"{remaining} other{'s' if remaining > 1 else ''}")
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def format_time(created: str) -> str:
    """Return a time to the minute: "2026-11-20 03:00"."""
    return printable(created[:16].replace("T", " "))


def metric_key_text(key: Key) -> str:
    """Task and metric, with the filter where it says anything."""
    task, filter_name, metric = key
    return " ".join((task, metric) if filter_name == "none" else (task, filter_name, metric))
