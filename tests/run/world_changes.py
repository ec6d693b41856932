"""A change of a world in which answers are kept, and what changes have in common."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Change = Callable[[Path, pytest.MonkeyPatch], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Case:
    """One change.

    Attributes:
        change: of a world; returns options of the run after it.
        prepare: makes of the usual world the one that is changed.
        matters: whether answers are others after it; False: they are the same; None: it depends on
            the machine.
        scored: whether something is scored anew; None: either is right.
        afresh: whether only a new process sees it; ``env``: its variables, of both runs, with
            ``{folder}``; ``after``: more of them, after the change.
        given: options of both runs.
    """

    change: Change
    prepare: Callable[[Path], None] = lambda _: None
    matters: bool | None = True
    scored: bool | None = True
    afresh: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


def text(name: str, old: str, new: str, *, keep_times: bool = False) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        path = folder / name
        before, told = path.stat(), path.read_text()
        assert old in told, f"{old} is not in {name}"
        path.write_text(told.replace(old, new))
        if keep_times:
            assert len(old) == len(new)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return change


def scale(file: Path, factor: float = 1.5, only: str = "") -> None:
    """Multiply stored weights in place; size and times stay."""
    from safetensors.torch import load_file, save_file

    before = file.stat()
    tensors = {n: t * factor if only in n else t for n, t in load_file(file).items()}
    beside = file.with_name("scaled.tmp")
    save_file(tensors, beside, metadata={"format": "pt"})
    data = beside.read_bytes()
    beside.unlink()
    assert len(data) == before.st_size
    with file.open("r+b") as into:
        into.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def scaled(name: str) -> Change:
    return lambda folder, _: scale(folder / name)


def copied(folder: Path) -> Path:
    """A second model beside the first one, with other weights."""
    shutil.copytree(folder / "model", folder / "other")
    scale(folder / "other" / "model.safetensors")
    return folder / "other"


HOOK = "import torch\n\nF = 1.5\n\n\ndef edit(model, value):\n    with torch.no_grad():\n"
HOOK += "        model.model.norm.weight.mul_(F * value)\n"


def hooked(folder: Path) -> None:
    (folder / "hook.py").write_text(HOOK)
    guard = folder / "guard.yaml"
    setting = "    settings:\n      edit: {reference: 1.0, candidate: 1.0, target: "
    setting += '"call:hook.py:edit"}\n'
    guard.write_text(guard.read_text().replace("tasks: [word", f"{setting}tasks: [word"))


def deterministic(*_: Any) -> None:
    import torch

    torch.use_deterministic_algorithms(True)
