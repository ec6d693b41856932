"""Which guard files count here: the one named, those that are found, or the built-in one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from evalguard.config.guard import Guard, GuardSet, Origin
from evalguard.config.guard_document import MODEL_HINT, Document, raise_problems
from evalguard.config.guard_loading import FurtherCheck, load_guard
from evalguard.errors import EvalguardError, GuardFileError, nearest

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


_ENDINGS = (".yaml", ".yml")


def load_guards(
    config: Path | None,
    *,
    cwd: Path,
    allow_code: bool,
    check: FurtherCheck = lambda _file, _models: (),
) -> GuardSet:
    """Load the guard file that was named, else those that are found, else the embedded one.

    Looked for, in this order: ``config``, of which "demo" is the embedded one; ``evalguard.yaml``
    in ``cwd``; every YAML file of ``configs/`` in ``cwd``; the embedded demo. A file that was only
    found may not run code unless ``allow_code``; see ``require_code_allowed``. ``check``: what
    else is looked for in each, and told with the rest.

    Raises:
        GuardFileError: if a file is missing, unreadable or wrong, or two define one name.
    """
    origin, files = _find(config, cwd)
    loaded: list[tuple[Guard, Document]] = []
    errors: list[GuardFileError] = []
    for file in files:
        label = _label(file, config, cwd)
        embedded = is_embedded(file)
        trusted = allow_code or origin in ("named", "embedded") or embedded
        # A link to the embedded file is that file: relative paths must not start at the link.
        read = file.resolve() if embedded else file
        try:
            loaded.append(load_guard(read, label, origin, code_allowed=trusted, check=check))
        except GuardFileError as error:
            if origin != "configs/":
                raise
            errors.append(error)
    if errors:
        raise _joined(errors)
    _refuse_doubles(loaded)
    return GuardSet(guards=tuple(guard for guard, _ in loaded))


def _find(config: Path | None, cwd: Path) -> tuple[Origin, list[Path]]:
    if config is not None:
        file = cwd / os.path.expanduser(config)
        if str(config) == BUILT_IN and not file.is_file():
            return "named", [embedded_folder() / DEMO]
        if not os.path.exists(file):
            raise _no_such_file(file, str(config))
        return "named", [file]
    found_here = cwd / "evalguard.yaml"
    if found_here.exists():
        if not (found_here.is_file() or found_here.is_dir()):
            # Opening a pipe would wait for its other end; one that was named may be one.
            raise GuardFileError("is not a regular file", where=found_here.name)
        return "evalguard.yaml", [found_here]
    folder = cwd / "configs"
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [file for file in entries if file.suffix in _ENDINGS and file.is_file()]
    if files:
        return "configs/", files
    return "embedded", [embedded_folder() / DEMO]


def _no_such_file(file: Path, label: str) -> GuardFileError:
    folder = file.parent
    there = folder.iterdir() if folder.is_dir() else ()
    close = nearest(file.name, [path.name for path in there if path.suffix in _ENDINGS])
    if not close and file.suffix not in _ENDINGS:  # TYPE:MODEL, a hub id, an address
        # Of an address's two slashes a path keeps one.
        named = re.sub("^(https?):/(?=[^/])", r"\1://", label)
        return GuardFileError("no such guard file", where=named, hint=MODEL_HINT)
    if not folder.is_dir():
        return GuardFileError(f"no such guard file: no folder {folder}", where=label)
    return GuardFileError(
        f"no such guard file{close}",
        where=label,
        hint="`evalguard init` writes one to start from",
    )


def _label(file: Path, config: Path | None, cwd: Path) -> str:
    if config is not None:
        return str(config)
    try:
        return os.fspath(file.relative_to(cwd))
    except ValueError:
        return str(file)


def _refuse_doubles(loaded: list[tuple[Guard, Document]]) -> None:
    places: dict[str, str] = {}
    problems = []
    for guard, document in loaded:
        for name in guard.variants:
            loc = ("models", name)
            first = places.setdefault(name, document.where(loc))
            if first != document.where(loc):
                problems.append(document.problem(loc, f"model '{name}' is already at {first}"))
    raise_problems(problems)


def _joined(errors: list[GuardFileError]) -> GuardFileError:
    """Return one error for the faults of several files."""
    first, *remaining = errors
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    hints["every YAML file of configs/ is read as a guard file; --config FILE reads one"] = None
    return GuardFileError(
        first.what,
        where=first.where,
        others=[*first.others, *map(str, remaining)],
        hint="\n".join(hints),
    )
