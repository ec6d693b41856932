"""Memory that a container (a Linux control group, version 1 or 2) still allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OWN_GROUPS = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _GroupFiles:
    """What a version calls its files; ``droppable`` stands in memory.stat."""

    limit: str
    used: str
    droppable: str


_VERSION_1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _GroupFiles("memory.max", "memory.current", "inactive_file")


def container_free_memory(own: Path = _OWN_GROUPS, root: Path = _CGROUP_ROOT) -> int | None:
    """Bytes that this process may still take; None where no group limits it.

    The tightest of the group and those around it counts. Cached file pages that were not read for a
    while can be dropped, and count as free.

    Args:
        own: the file that names this process's groups.
        root: where the groups' files are.
    """
    rooms = [
        room
        for folder, files in _groups(own, root)
        if (room := _group_free_memory(folder, files)) is not None
    ]
    return min(rooms, default=None)


def _groups(own: Path, root: Path) -> Iterator[tuple[Path, _GroupFiles]]:
    """Folders of the groups that this process is in, the innermost first."""
    for line in _read_text(own).splitlines():
        _, controllers, path = (*line.split(":", 2), "-", "")[:3]
        if controllers == "":
            yield from ((folder, _VERSION_2) for folder in _enclosing_groups(root, path))
        elif "memory" in controllers.split(","):
            yield from ((folder, _VERSION_1) for folder in _enclosing_groups(root / "memory", path))


def _enclosing_groups(root: Path, path: str) -> Iterator[Path]:
    """A group's folder and all around it; inside a container its path may not be visible."""
    folder = root / path.strip("/")
    while folder != root and folder.is_relative_to(root):
        yield folder
        folder = folder.parent
    yield root


def _group_free_memory(folder: Path, files: _GroupFiles) -> int | None:
    limit, used = _read_number(folder / files.limit), _read_number(folder / files.used)
    if limit is None or used is None:
        return None
    stat = dict(
        line.split()[:2] for line in _read_text(folder / "memory.stat").splitlines() if line
    )
    return max(0, limit - used + int(stat.get(files.droppable, 0)))


def _read_number(path: Path) -> int | None:
    """A file's number; None for "max", and where there is none."""
    text = _read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
