"""Where the score cache lies unless the user says otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def default_cache_dir(
    environ: Mapping[str, str] | None = None, *, platform: str = sys.platform
) -> Path:
    """Return EVALGUARD_CACHE_DIR, else ``evalguard`` under the user's cache folder.

    Args:
        environ: environment variables; None: those of this process.
        platform: as ``sys.platform``.
    """
    variables = os.environ if environ is None else environ
    if variables.get("EVALGUARD_CACHE_DIR"):
        return Path(variables["EVALGUARD_CACHE_DIR"]).expanduser()
    # The XDG specification: a relative path is to be ignored.
    xdg = Path(variables.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return xdg / "evalguard"
    if platform == "win32" and variables.get("LOCALAPPDATA"):
        return Path(variables["LOCALAPPDATA"]) / "evalguard" / "Cache"
    home = Path(variables.get("HOME") or "~").expanduser()
    return home / ("Library/Caches" if platform == "darwin" else ".cache") / "evalguard"
