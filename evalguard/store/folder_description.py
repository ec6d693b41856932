"""about.json: what a folder of blocks is of, for people, and whether it is of one run alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evalguard.core.settings import Value
from evalguard.store.atomic_files import write_atomically
from evalguard.store.cache_layout import ABOUT_FILE

_DESCRIPTION_FORMAT = "evalguard.about/1"
_LARGEST_DESCRIPTION = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderDescription:
    """Attributes as in ``KeptFolder``."""

    name: str = ""
    tasks: tuple[str, ...] = ()
    model: Mapping[str, Value] = field(default_factory=dict)
    created: str = ""


def read_description(folder: Path) -> FolderDescription:
    """Return what is written there; nothing where it cannot be read."""
    path = folder / ABOUT_FILE
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST_DESCRIPTION:
            return FolderDescription()
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return FolderDescription()
    if not isinstance(said, dict) or said.get("format") != _DESCRIPTION_FORMAT:
        return FolderDescription()
    tasks, model = said.get("tasks"), said.get("model")
    return FolderDescription(
        name=_text(said.get("name")),
        tasks=tuple(_text(task) for task in tasks) if isinstance(tasks, list) else (),
        model=model if isinstance(model, dict) else {},
        created=_text(said.get("created")),
    )


def write_description(folder: Path, *, name: str, task: str, model: Mapping[str, Value]) -> None:
    """Write down what a folder that is there is of; a disk that refuses changes nothing.

    The name is the last one used. Two processes may write at a time: one's task may then be missing
    until it is used again.
    """
    before = read_description(folder)
    now = FolderDescription(
        name=name,
        tasks=tuple(sorted({*before.tasks, task})),
        model=dict(model),
        created=before.created or datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    if now == before:
        return
    text = json.dumps({"format": _DESCRIPTION_FORMAT, **asdict(now)}, indent=2)
    with contextlib.suppress(OSError):
        if folder.is_dir() and not folder.is_symlink():
            write_atomically(folder / ABOUT_FILE, text.encode())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
