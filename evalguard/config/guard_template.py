"""The commented guard file that ``evalguard init`` writes."""

from __future__ import annotations

import os
from pathlib import Path

from evalguard.errors import StoreError, UsageError

TEMPLATE = Path(__file__).with_name("template.yaml").read_text(encoding="utf-8")


def write_template(path: Path, *, force: bool = False) -> None:
    """Write the template to ``path``, whole or not at all.

    Raises:
        UsageError: if the file exists and ``force`` is not given, or the path is a folder.
        StoreError: if it cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"name a file: {path / 'evalguard.yaml'}")
    if path.exists() and not force:
        raise UsageError(f"{path} exists and is left alone", hint="--force overwrites it")
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            half.write_text(TEMPLATE, encoding="utf-8")
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
