"""Which trackers a comparison is sent to, and whether W&B is configured here."""

from __future__ import annotations

import configparser
import netrc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evalguard.config.declared_options import check_track
from evalguard.config.guard import Guard
from evalguard.core.tracked_run import BUILT_IN_TRACKERS, NO_TRACKER
from evalguard.errors import UsageError
from evalguard.plugins import TRACKERS

_WANDB_CLOUD = "https://api.wandb.ai"
_WANDB_SIGNS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_PROJECT")


def wandb_is_configured() -> bool:
    """Whether there is an open run, a key, a login, or a project.

    A mode alone says how W&B is to be used where it is, and not that it is to be.
    """
    if os.environ.get("WANDB_MODE") == "disabled":
        return False
    if find_open_run() is not None or any(os.environ.get(name) for name in _WANDB_SIGNS):
        return True
    return _logged_in() or bool(_setting("project"))


def find_open_run() -> Any | None:
    """The run that this process has open by itself, a ``wandb.Run``; None for none."""
    module = sys.modules.get("wandb")
    run = getattr(module, "run", None)
    return None if run is None or run.disabled else run


def _logged_in() -> bool:
    """Whether ``wandb login`` left a key for the server that is used here."""
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        hosts = netrc.netrc(file).hosts
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    return urlsplit(_server()).hostname in hosts


def _server() -> str:
    return os.environ.get("WANDB_BASE_URL") or _setting("base_url") or _WANDB_CLOUD


def _setting(name: str) -> str:
    """A value of W&B's settings files, the user's and ``wandb init``'s here; "" for none."""
    folder = os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    parser = configparser.ConfigParser(interpolation=None)
    files = [Path(folder).expanduser() / "settings", Path("wandb/settings")]
    try:
        parser.read(files, encoding="utf-8")
    except (OSError, configparser.Error, UnicodeDecodeError):
        return ""
    return parser.get("default", name, fallback="")


def choose_sinks(
    names: Sequence[str], guard: Guard | None = None, *, unasked: bool = True
) -> tuple[str, ...]:
    """Return where to send: the names, else the guard file's, else W&B where it is configured.

    Args:
        unasked: whether that last one may be.

    Raises:
        UsageError: as ``check_track``; or a guard file that was only found names a tracker of
            another package, which is code.
    """
    chosen = check_track(names) or (() if guard is None else _check_guard_track(guard))
    if not chosen:
        return ("wandb",) if unasked and wandb_is_configured() else ()
    own = [name for name in BUILT_IN_TRACKERS if name in chosen]
    return (*own, *_foreign(chosen))


def _check_guard_track(guard: Guard) -> tuple[str, ...]:
    names = check_track(guard.run.track)
    foreign = _foreign(names)
    if foreign and not guard.code_allowed:
        raise UsageError(
            f"{guard.label}: run.track names '{foreign[0]}', which runs code of another package "
            f"({TRACKERS.find(foreign[0]).origin}), and the file was found, not named",
            hint=f"if you trust it: --config {guard.label}, --allow-code, or --track {foreign[0]}",
        )
    return names


def _foreign(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in {*BUILT_IN_TRACKERS, NO_TRACKER})
