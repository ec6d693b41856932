"""Environments of models, as ``evalguard envs`` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evalguard.core.amounts import size_text
from evalguard.store.cache_folder import default_cache_dir
from evalguard.worker.environments import (
    KeptEnvironment,
    list_environments,
    remove_environments,
)

__all__ = ["KeptEnvironment", "drop_environments", "find_environments", "render_environments"]


def find_environments(cache_dir: Path | None) -> list[KeptEnvironment]:
    """Return the environments that were made for models, the most recently used first."""
    return list_environments(cache_dir or default_cache_dir())


def drop_environments(
    cache_dir: Path | None, names: Sequence[str], *, older_than: float | None = None
) -> list[KeptEnvironment]:
    """Remove environments; return those that are gone.

    Raises:
        UsageError: a name that is none's.
    """
    return remove_environments(cache_dir or default_cache_dir(), names, older_than=older_than)


def render_environments(found: Sequence[KeptEnvironment]) -> str:
    """Return environments as text, two lines each."""
    lines = []
    for one in found:
        lines += [
            f"{Path(one.path).name[:16]}  Python {one.python}, {size_text(one.size)}",
            f"  {', '.join(one.requirements)}",
        ]
    return "\n".join(lines) or "There are none."
