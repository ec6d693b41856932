"""A hub's local copy that changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from world_changes import Case, copied, scale

_COMMITS = ("a" * 40, "b" * 40)


def from_the_hub(folder: Path) -> None:
    """Put the model, and another, into a hub's cache; main is the first."""
    home = folder / "hub" / "models--eg--tiny"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(_COMMITS[0])
    copied(folder)
    for name, commit in zip(("model", "other"), _COMMITS, strict=True):
        shutil.copytree(folder / name, home / "snapshots" / commit)
    guard = folder / "guard.yaml"
    guard.write_text(guard.read_text().replace("pretrained: model", "pretrained: eg/tiny"))


def moved_branch(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "hub" / "models--eg--tiny" / "refs" / "main").write_text(_COMMITS[1])


def edited_snapshot(folder: Path, _: pytest.MonkeyPatch) -> None:
    scale(folder / "hub/models--eg--tiny/snapshots" / _COMMITS[0] / "model.safetensors")


_HUB = {"HF_HUB_CACHE": "{folder}/hub", "HF_HUB_OFFLINE": "1"}
HUB: dict[str, Case] = {
    "a branch of the hub moved": Case(moved_branch, prepare=from_the_hub, afresh=True, env=_HUB),
    "a hub's local copy edited": Case(edited_snapshot, prepare=from_the_hub, afresh=True, env=_HUB),
}
