"""The guard files of a comparison, and whether it needs them at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from evalguard.config.guard import GuardSet
from evalguard.config.guard_search import load_guards
from evalguard.config.local_paths import resolve_path
from evalguard.config.options import CompareOptions
from evalguard.errors import GuardFileError


def find_guards(
    specs: Sequence[str], options: CompareOptions, *, cwd: Path
) -> tuple[GuardSet, tuple[str, ...]]:
    """Load the guard files, and say so where those that were only found are left out.

    A folder ``configs/`` may belong to another program. Its files are in nobody's way as long as
    no side of the comparison can be a name in them: both are paths, hub ids or lm-eval runs.

    Raises:
        GuardFileError: if a file that was named, or may be needed, cannot be read.
    """
    try:
        return load_guards(options.config, cwd=cwd, allow_code=options.allow_code), ()
    except GuardFileError as error:
        if options.config is not None or any(_may_be_model_name(spec, cwd) for spec in specs):
            raise
        return GuardSet(guards=()), (f"no guard file is used: {error.where}: {error.what}",)


def _may_be_model_name(spec: str, cwd: Path) -> bool:
    return "/" not in spec and not os.path.exists(resolve_path(spec, cwd))
