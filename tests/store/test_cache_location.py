"""The default cache folder follows the user's wish, then the platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalguard.errors import UsageError
from evalguard.store.cache_folder import default_cache_dir


def test_the_variable_of_evalguard_wins() -> None:
    environ = {"EVALGUARD_CACHE_DIR": "/x/y", "XDG_CACHE_HOME": "/c", "HOME": "/home/a"}
    assert default_cache_dir(environ, platform="linux") == Path("/x/y")


def test_then_the_xdg_cache_folder_if_it_is_absolute() -> None:
    environ = {"XDG_CACHE_HOME": "/c", "HOME": "/home/a"}
    assert default_cache_dir(environ, platform="linux") == Path("/c/evalguard")
    relative = {**environ, "XDG_CACHE_HOME": "c"}
    assert default_cache_dir(relative, platform="linux") == Path("/home/a/.cache/evalguard")


def test_then_the_platforms_own_place() -> None:
    home = {"HOME": "/home/a"}
    assert default_cache_dir(home, platform="linux") == Path("/home/a/.cache/evalguard")
    assert default_cache_dir(home, platform="darwin") == Path("/home/a/Library/Caches/evalguard")
    windows = {"LOCALAPPDATA": "/local"}
    assert default_cache_dir(windows, platform="win32") == Path("/local/evalguard/Cache")


def test_an_environment_without_anything_still_has_a_place() -> None:
    assert default_cache_dir({}, platform="linux").is_absolute()


def test_a_user_without_a_home_folder_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    with pytest.raises(UsageError, match="no home folder") as caught:
        default_cache_dir({}, platform="linux")
    assert "--cache-dir" in caught.value.hint
