"""Where a benchmark's table goes: to the file that was named, else to the terminal."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

# Of a page that names more packages than every one does.
_NAMED = re.compile(r"\bevalguard \d+\.\d+\.\d+")


def deliver(lines: Iterable[str], output: Path | None) -> None:
    """Write the lines to ``output``, which appears whole, or print them where it is None.

    A page ends with the versions that it was made with, unless it names them itself.
    """
    text = "\n".join(lines) + "\n"
    if output:
        if output.suffix == ".md" and not _NAMED.search(text):
            text += f"\n{versions()}.\n"
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished = output.with_name(f".{output.name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(output)
    else:
        print(text, end="")


def versions() -> str:
    """What the numbers were made with."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy"))
    return f"evalguard {version('lm-evalguard')}, {packages}, Python {platform.python_version()}"
