"""What somebody has declared that code of others reads, and that code itself, by their paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from evalguard.conversion.code import is_installed
from evalguard.conversion.digests import digest_content
from evalguard.core.settings import Variant
from evalguard.errors import UsageError
from evalguard.start_up import list_start_up_files


def digest_inputs(variant: Variant) -> dict[str, str]:
    """Digests of a variant's ``inputs``.

    Raises:
        UsageError: one is not there, or cannot be read.
    """
    found = {}
    for name, place in (variant.inputs or {}).items():
        try:
            found[f"input {name}"] = digest_content(Path(place))
        except OSError as error:
            raise UsageError(
                f"'{variant.name}': inputs names {name}, which cannot be read: {place}: "
                f"{error.strerror or 'there is nothing'}",
                hint="inputs are the files and folders that its code reads; a relative path starts "
                "at the guard file",
            ) from error
    return found


def digest_code_at(places: Iterable[Path]) -> dict[str, str]:
    """Digests of code by its folders, with what Python starts by itself and finds on PYTHONPATH."""
    named = [Path(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    every = dict.fromkeys([*places, *map(Path, list_start_up_files()), *named])
    # Packages count by themselves.
    own = [one for one in every if one.is_file() or (one.is_dir() and not is_installed(one / "x"))]
    return {f"code {n} {one.name}": digest_content(one, code=True) for n, one in enumerate(own)}
