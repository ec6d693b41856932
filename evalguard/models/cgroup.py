"""Memory that a container (a Linux control group, version 1 or 2) still allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Files:
    """What a version calls its files; ``droppable`` stands in memory.stat."""

    limit: str
    used: str
    droppable: str


_FIRST = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND = _Files("memory.max", "memory.current", "inactive_file")


def container_room(own: Path = _OWN, root: Path = _ROOT) -> int | None:
    """Bytes that this process may still take; None where no group limits it.

    The tightest of the group and those around it counts. Cached file pages that were not read for a
    while can be dropped, and count as free.

    Args:
        own: the file that names this process's groups.
        root: where the groups' files are.
    """
    rooms = [
        room for folder, files in _groups(own, root) if (room := _room(folder, files)) is not None
    ]
    return min(rooms, default=None)


def _groups(own: Path, root: Path) -> Iterator[tuple[Path, _Files]]:
    """Folders of the groups that this process is in, the innermost first."""
    for line in _text(own).splitlines():
        _, controllers, path = (*line.split(":", 2), "-", "")[:3]
        if controllers == "":
            yield from ((folder, _SECOND) for folder in _upwards(root, path))
        elif "memory" in controllers.split(","):
            yield from ((folder, _FIRST) for folder in _upwards(root / "memory", path))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """A group's folder and all around it; inside a container its path may not be visible."""
    folder = root / path.strip("/")
    while folder != root and folder.is_relative_to(root):
        yield folder
        folder = folder.parent
    yield root


def _room(folder: Path, files: _Files) -> int | None:
    limit, used = _number(folder / files.limit), _number(folder / files.used)
    if limit is None or used is None:
        return None
    stat = dict(line.split()[:2] for line in _text(folder / "memory.stat").splitlines() if line)
    return max(0, limit - used + int(stat.get(files.droppable, 0)))


def _number(path: Path) -> int | None:
    """A file's number; None for "max", and where there is none."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
