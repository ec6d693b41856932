"""Where the cache lies, and whose it is."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from evalguard.errors import UsageError
from evalguard.store.atomic_files import (
    make_private_folder,
)
from evalguard.store.leftovers import remove_leftovers


def open_cache_dir(chosen: Path | None) -> Path:
    """Return the cache folder: the chosen one, else the default.

    One that is missing is made for this user alone: it holds prompts, answers and models. What
    killed processes left in it is removed. That it cannot be made is said by what writes to it.

    Raises:
        UsageError: if none was chosen and this user has no home folder.
    """
    folder = (chosen or default_cache_dir()).absolute()
    with contextlib.suppress(OSError):
        make_private_folder(folder)
        remove_leftovers(folder)
    return folder


def anybody_can_write(folder: Path) -> bool:
    """Whether any other user of this machine could have put files into a folder, or made it.

    Groups are trusted: who shares a cache shares it with a group.
    """
    if os.name != "posix":
        return False
    try:
        found, above = folder.stat(), folder.parent.stat()
    except OSError:
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(above.st_mode & stat.S_IWOTH) and found.st_uid not in (0, os.geteuid())


def default_cache_dir(
    environ: Mapping[str, str] | None = None, *, platform: str = sys.platform
) -> Path:
    """Return EVALGUARD_CACHE_DIR, else ``evalguard`` under the user's cache folder.

    Args:
        environ: environment variables; None: those of this process.
        platform: as ``sys.platform``.

    Raises:
        UsageError: if there is no home folder either.
    """
    variables = os.environ if environ is None else environ
    if variables.get("EVALGUARD_CACHE_DIR"):
        return Path(variables["EVALGUARD_CACHE_DIR"]).expanduser()
    # By hand: of platformdirs late versions alone ignore a relative path, as XDG says one must, and
    # tell that there is no home folder.
    xdg = Path(variables.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return xdg / "evalguard"
    if platform == "win32" and variables.get("LOCALAPPDATA"):
        return Path(variables["LOCALAPPDATA"]) / "evalguard" / "Cache"
    try:
        home = Path(variables.get("HOME") or "~").expanduser()
    except RuntimeError as error:
        raise UsageError(
            "this user has no home folder, so the cache has no place",
            hint="--cache-dir FOLDER or EVALGUARD_CACHE_DIR gives it one",
        ) from error
    return home / ("Library/Caches" if platform == "darwin" else ".cache") / "evalguard"
