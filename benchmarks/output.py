"""Where a benchmark's table goes: to the file that was named, else to the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def deliver(lines: Iterable[str], output: Path | None) -> None:
    """Write the lines to ``output``, which appears whole, or print them where it is None."""
    text = "\n".join(lines) + "\n"
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished = output.with_name(f".{output.name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(output)
    else:
        print(text, end="")
