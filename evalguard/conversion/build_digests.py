"""Digests of what recipes built, kept beside it: they show a build that was changed since."""

from __future__ import annotations

from pathlib import Path

from evalguard.conversion.digests import digest_path


def write_build_digest(made: Path, entry: Path) -> None:
    """Write down what was made, which is going to be ``entry``.

    Raises:
        OSError: the disk refuses.
    """
    _beside(entry).write_text(digest_path(made) + "\n", encoding="utf-8")


def changed_since_build(entry: Path) -> bool | None:
    """Whether a build is another one than was made; None where that was not written down."""
    try:
        known = _beside(entry).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return digest_path(entry) != known


def _beside(entry: Path) -> Path:
    return entry.with_name(f"{entry.name}.sha256")
