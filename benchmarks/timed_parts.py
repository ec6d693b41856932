"""Parts of a benchmark, each in a process of its own with a limit, all of them within a budget.

What a part measures is there as soon as it is measured: rows of a file. So a part that hangs, is
killed, fails or lacks a package costs nothing of what the others found, and the next one goes on.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from benchmarks.speed.row import Row

_LOOK_AGAIN = 0.2  # seconds
_KEPT = 4000  # characters of what a part printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that is measured.

    Attributes:
        name: by which the command finds it.
        about: what it measures.
        limit: seconds that it may take.
        least: seconds under which it is not begun.
        needs: packages of this Python that it cannot do without.
        basis: whether no other part is worth its time where this one fails.
    """

    name: str
    about: str
    limit: float
    least: float = 15.0
    needs: tuple[str, ...] = ()
    basis: bool = False


@dataclass(slots=True, kw_only=True)
class Measured:
    """What became of a part.

    Attributes:
        state: "done", "failed", "out of time", "lacks a package", "not reached".
        limit: seconds that it had.
        said: why, and the end of what it printed.
    """

    part: Part
    state: str = "not reached"
    seconds: float = 0.0
    limit: float = 0.0
    rows: list[Row] = field(default_factory=list)
    said: str = ""

    def as_values(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.part.name,
            "about": self.part.about,
            "state": self.state,
            "seconds": round(self.seconds, 1),
            "limit": round(self.limit, 1),
            "rows": [asdict(row) for row in self.rows],
            "said": self.said,
        }


def run_parts(
    parts: Sequence[Part],
    command: Callable[[str, Path], Sequence[str]],
    *,
    until: float,
    folder: Path,
    note: Callable[[Sequence[Measured]], None],
) -> list[Measured]:
    """Run parts in their order, the most valuable first, until a moment.

    Args:
        command: name of a part and a file for its rows (``note_row``) -> words of its command.
        until: moment of ``time.monotonic`` at which the last process is gone.
        note: called with all parts whenever one of them has something new.
    """
    found = [Measured(part=part) for part in parts]
    note(found)
    with _ended_by_signals():
        for one in found:
            one.limit = min(one.part.limit, until - time.monotonic())
            lacking = [name for name in one.part.needs if find_spec(name) is None]
            if lacking:
                one.state = "lacks a package"
                one.said = f"{', '.join(lacking)}: not installed in this Python"
            elif one.limit < min(one.part.least, one.part.limit):
                one.limit = max(one.limit, 0.0)
            else:
                _run_part(one, command, folder, lambda: note(found))
            note(found)
            if one.part.basis and one.state != "done":
                break
    return found


def note_row(row: Row, file: Path) -> None:
    """Add a row to what a part has measured."""
    with file.open("a", encoding="utf-8") as rows:
        rows.write(json.dumps(asdict(row)) + "\n")


def _run_part(
    one: Measured,
    command: Callable[[str, Path], Sequence[str]],
    folder: Path,
    note: Callable[[], None],
) -> None:
    rows, printed = (folder / f"{one.part.name}.{kind}" for kind in ("jsonl", "txt"))
    rows.touch()
    one.state = "running"
    start = time.monotonic()
    with printed.open("wb") as out:
        process = psutil.Popen(command(one.part.name, rows), stdout=out, stderr=subprocess.STDOUT)
    try:
        while (code := process.poll()) is None:
            one.seconds = time.monotonic() - start
            if one.seconds > one.limit:
                break
            if (read := _read_rows(rows)) != one.rows:
                one.rows = read
                note()
            time.sleep(_LOOK_AGAIN)
    finally:
        _end(process)
    one.seconds = time.monotonic() - start
    one.rows = _read_rows(rows)
    one.state = "out of time" if code is None else "failed" if code else "done"
    if one.state != "done":
        one.said = printed.read_text(encoding="utf-8", errors="replace").strip()[-_KEPT:]


def _read_rows(file: Path) -> list[Row]:
    """Rows that are written whole."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Row(**json.loads(line)) for line in lines if line.endswith("\n")]


def _end(process: Any) -> None:
    """End a process, and all that it has started, also in sessions of their own."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        family = [process]
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=5)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have a request to end take the running part along."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
