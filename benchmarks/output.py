"""Where a benchmark's table goes: to the file that was named, else to the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def deliver(lines: Iterable[str], output: Path | None) -> None:
    """Write the lines to ``output``, or print them where it is None."""
    text = "\n".join(lines) + "\n"
    if output:
        output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
