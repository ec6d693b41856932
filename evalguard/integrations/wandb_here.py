"""Whether W&B is configured here: seen from the outside, without importing it or asking anybody."""

from __future__ import annotations

import configparser
import netrc
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
