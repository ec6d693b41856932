"""The folder of what comes with evalguard: the demo's guard file, tasks and model."""

from __future__ import annotations

from pathlib import Path

from evalguard.errors import EvalguardError

PACKAGE = Path(__file__).resolve().parent.parent
DEMO = Path("configs") / "demo.yaml"
# What ``--config`` calls it, unless a file of this name is there: so printed commands find the
# built-in models, whatever guard file lies where they are run.
BUILT_IN = "demo"


def embedded_folder() -> Path:
    """Return the folder that holds ``configs/``, ``tasks/`` and ``demo/``.

    In an installed wheel that is package data, in a checkout the top of it; relative paths inside
    the files hold in both.

    Raises:
        EvalguardError: if neither is there: the installation is damaged.
    """
    for folder in (PACKAGE / "_embedded", PACKAGE.parent):
        if (folder / DEMO).is_file():
            return folder
    raise EvalguardError(
        f"evalguard's own demo is missing: no {DEMO} in {PACKAGE / '_embedded'}",
        hint="install evalguard again, or name a guard file with --config",
    )


def embedded_tasks() -> tuple[Path, ...]:
    """Return the folder of the tasks that come with evalguard; () where the installation lacks it.

    Whoever names a guard file and other tasks needs none of them.
    """
    try:
        return (embedded_folder() / "tasks",)
    except EvalguardError:
        return ()


def is_embedded(file: Path) -> bool:
    """Whether a guard file is one that came with this evalguard, so that its code is trusted."""
    try:
        return file.resolve().parent == (embedded_folder() / "configs").resolve()
    except EvalguardError:
        return False
