"""Build recipes: make a model folder from settings, once, and never use a half-built one."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import evalguard
from evalguard.conversion.code import code_digest, is_installed, read_code, read_sources
from evalguard.conversion.digests import digest_path
from evalguard.conversion.planning import ConversionPlan, fill_placeholders, placeholders
from evalguard.core.redaction import redacted_command
from evalguard.core.settings import BuildRecipe, Value, Variant, digest_of
from evalguard.errors import BuildError, UsageError, nearest

_LAST_LINES = 15
_CALL_PROCESS = (
    "import json, sys; job = json.load(sys.stdin); sys.path[:] = job['path'] or sys.path; "
    "from evalguard.conversion.taken_weights import run; run(job)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A recipe with its inputs resolved; ``files`` maps local files it reads to their digests.

    ``unknown``: what its code depends on that no text tells, each with its place.
    """

    recipe: BuildRecipe
    inputs: Mapping[str, Value]
    files: Mapping[str, str]
    unknown: tuple[str, ...]
    python: str = sys.executable
    variables: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def import_path(self) -> list[str]:
        """What a call finds packages in; [] in another interpreter, which knows by itself."""
        if self.python != sys.executable:
            return []
        return [str(Path(entry or ".").absolute()) for entry in sys.path]

    @property
    def environment(self) -> dict[str, str]:
        changed = {**os.environ, **self.variables, "PYTHONDONTWRITEBYTECODE": "1"}
        return {name: value for name, value in changed.items() if value is not None}

    @property
    def digest(self) -> str:
        return digest_of(
            {
                "command": list(self.recipe.command),
                "call": self.recipe.call,
                "output": self.recipe.output,
                "inputs": dict(self.inputs),
                "files": dict(self.files),
                "evalguard": evalguard.__version__,
                **({} if self.python == sys.executable else {"python": self.python}),
            }
        )


def build(
    variant: Variant,
    plan: ConversionPlan,
    cache_dir: Path,
    *,
    timeout: float | None = None,
    python: str = sys.executable,
    variables: Mapping[str, str | None] | None = None,
) -> Path:
    """Return the path of what a variant's build recipe makes, building it if it is not cached.

    The recipe runs without a shell, in a folder of its own beside the cache entry, which gets its
    name only when the output is complete; two processes that need one build wait for each other.
    Relative paths of existing files (the script, inputs) are resolved against ``recipe.folder``
    and their contents are part of the cache key, as are the recipe, its inputs, its code (scripts,
    ``python -m`` modules, files that a shell script names; with what Python files import and the
    variables that they read) and evalguard's version. Where code imports under computed names, or
    the like (``unknown_in_build``), every run builds anew. A data file that only the running
    command knows of is not seen: name it in ``inputs``. ``python`` as a command's first word is
    this interpreter. A ``call`` recipe runs in a fresh interpreter as
    ``function(**inputs, output=path)``.

    Args:
        cache_dir: builds live in ``cache_dir/builds``, their logs beside them.
        timeout: seconds after which the recipe is stopped; None means never.
        python: interpreter of the recipe, for a model with an environment of its own.
        variables: changes to its environment; None takes a variable away.

    Raises:
        UsageError: code from this guard file is not allowed to run.
        BuildError: the recipe failed, ran too long or made no output; with the end of its log.
    """
    from filelock import FileLock

    if variant.build is None:
        raise BuildError(f"'{variant.name}' has no build recipe")
    if not variant.allow_code:
        raise UsageError(
            f"'{variant.name}' is built by running code, and code from this guard file is not "
            "allowed to run",
            hint="name the guard file with --config and allow code, if you trust it",
        )
    job = replace(
        _resolve(variant.build, plan.build_inputs, python),
        python=python,
        variables=dict(variables or {}),
    )
    builds = cache_dir.absolute() / "builds"
    builds.mkdir(parents=True, exist_ok=True)
    entry = builds / (job.digest + (this_run() if job.unknown else ""))
    with FileLock(f"{entry}.lock"):
        if not (entry / job.recipe.output).exists():
            shutil.rmtree(entry, ignore_errors=True)
            if job.unknown:
                clear_unused(builds, job.digest)
            _build_entry(job, entry, variant, timeout)
        mark_used(entry)
    return entry / job.recipe.output


def unknown_in_build(variant: Variant, plan: ConversionPlan) -> tuple[str, ...]:
    """What the code of a variant's recipe depends on that no text tells, each with its place."""
    return () if variant.build is None else _resolve(variant.build, plan.build_inputs).unknown


def _build_entry(job: _Job, entry: Path, variant: Variant, timeout: float | None) -> None:
    for stale in entry.parent.glob(f".{entry.name}-*"):  # of a build that was killed
        shutil.rmtree(stale, ignore_errors=True)
    log = entry.with_suffix(".log")
    work = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
    try:
        output = work / job.recipe.output
        output.parent.mkdir(parents=True, exist_ok=True)
        _run(job, work, output, log, variant, timeout)
        if not output.exists():
            raise _failure(variant, f"made no '{job.recipe.output}'", log)
        work.chmod(0o755)
        write_build_digest(work, entry)
        os.rename(work, entry)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(
    job: _Job, work: Path, output: Path, log: Path, variant: Variant, timeout: float | None
) -> None:
    if job.recipe.command:
        values = {**job.inputs, "output": str(output)}
        command = [fill_placeholders(item, values) for item in job.recipe.command]
        given = ""
    else:
        command = [job.python, "-c", _CALL_PROCESS]
        given = json.dumps(
            {
                "path": job.import_path,
                "call": job.recipe.call,
                "folder": job.recipe.folder,
                "inputs": dict(job.inputs),
                "output": str(output),
            }
        )
    with log.open("wb") as sink:
        try:
            process = subprocess.Popen(
                command, cwd=work, stdin=subprocess.PIPE, stdout=sink,
                stderr=subprocess.STDOUT, start_new_session=True,
                # compiled files could outlive an edit within the same second
                env=job.environment,
            )  # fmt: skip
        except OSError as error:
            raise BuildError(
                f"the build of '{variant.name}' cannot start {command[0]}: {error.strerror}",
                hint=f"command: {redacted_command(command)}",
            ) from error
        status = _wait(process, given, variant, log, timeout)
    if status:
        raise _failure(variant, f"failed with exit status {status}", log)


def _wait(
    process: subprocess.Popen[bytes],
    given: str,
    variant: Variant,
    log: Path,
    timeout: float | None,
) -> int:
    try:
        process.communicate(given.encode(), timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise _failure(variant, f"was stopped after {timeout:g} seconds", log) from error
    finally:
        if process.poll() is None:  # too slow, or the user pressed Ctrl-C
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def _failure(variant: Variant, what: str, log: Path) -> BuildError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    end = "".join(f"\n  {line}" for line in lines)
    return BuildError(
        f"the build of '{variant.name}' {what}" + (f":{end}" if end else ""),
        hint=f"the whole log: {log}",
    )


def _resolve(
    recipe: BuildRecipe, inputs: Mapping[str, Value], python: str = sys.executable
) -> _Job:
    """Make paths absolute and take the digests of all local files that the recipe reads."""
    output = Path(recipe.output)
    if output.is_absolute() or ".." in output.parts or not output.parts:
        raise BuildError(
            f"build output '{recipe.output}' is not inside the build folder",
            hint="write a relative path, e.g. output: model",
        )
    files: dict[str, str] = {}
    resolved = {name: _local_value(value, recipe.folder, files) for name, value in inputs.items()}
    unknown: dict[str, None] = {}
    command = tuple(_local(item, recipe.folder, files, unknown) for item in recipe.command)
    # --base=/path, sh -c "convert --base /path", python -m module
    words = [word for item in recipe.command for word in _words(item)]
    _look_into(words, recipe.folder, files, unknown)
    tool = shutil.which(command[0]) if command else None
    if tool is not None and command[0] not in ("python", "python3"):
        _note(Path(tool), recipe.folder, files, unknown)
    if command and command[0] in ("python", "python3"):
        command = (python, *command[1:])
    for name in placeholders(command):
        if name not in resolved and name != "output":
            raise BuildError(
                f"the build command reads '{name}', which is not an input"
                f"{nearest(name, [*resolved, 'output'])}",
                hint=f"inputs: {', '.join(resolved) or 'none'}, and output",
            )
    if recipe.call:
        files[recipe.call] = code_digest(recipe.call, folder=recipe.folder)
        reading = read_code(recipe.call, folder=recipe.folder)
        if reading is not None:
            files[recipe.call] += f" {reading.environment}"
            unknown |= dict.fromkeys(reading.unknown)
    absolute = BuildRecipe(
        command=command,
        call=recipe.call,
        output=recipe.output,
        inputs=resolved,
        folder=str(Path(recipe.folder).absolute()),
    )
    return _Job(recipe=absolute, inputs=resolved, files=files, unknown=tuple(unknown))


def _local_value(value: Value, folder: str, files: dict[str, str]) -> Value:
    """Make local paths absolute and note their digests, wherever they stand in an input."""
    if isinstance(value, str):
        return _local(value, folder, files, {})
    if isinstance(value, list):
        return [_local_value(item, folder, files) for item in value]
    if isinstance(value, dict):
        return {name: _local_value(item, folder, files) for name, item in value.items()}
    return value


def _look_into(
    words: Sequence[str], folder: str, files: dict[str, str], unknown: dict[str, None]
) -> None:
    """Note the digests of what a command line or a shell script names: files and modules."""
    for flag, name in pairwise(words):
        if flag == "-m":
            _note_module(name, files, unknown)
    for word in words:
        # "$HERE/convert.py", $(dirname "$0")/convert.py: what follows is looked for in the folder
        for one in {word, os.path.expandvars(word), re.sub(r"^.*\$[^/]*/", "", word)}:
            if str(Path(folder, one).absolute()) not in files:
                _local(one, folder, files, unknown)


def _note_module(name: str, files: dict[str, str], unknown: dict[str, None]) -> None:
    """Note what ``python -m`` runs."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    places = list((spec.submodule_search_locations if spec else None) or ())
    found = Path(places[0]) / "__main__.py" if places else Path((spec and spec.origin) or "")
    if found.is_file() and f"-m {name}" not in files:
        depth = len(name.split(".")) - (not places)
        files[f"-m {name}"] = _python(found, found.parents[depth], unknown)


def _python(file: Path, root: Path, unknown: dict[str, None]) -> str:
    """Digest of a Python file with all that it imports; an installed one counts by itself."""
    if is_installed(file):
        return digest_path(file)
    reading = read_sources(file, root)
    unknown |= dict.fromkeys(reading.unknown)
    return f"{reading.digest} {reading.environment}"


def _words(text: str) -> list[str]:
    """The words of a shell's text; of ``--option=value`` and of quoted texts their parts too."""
    words: list[str] = []
    for line in text.splitlines():
        try:
            found = shlex.split(line)
        except ValueError:  # a quote that goes on on the next line
            found = line.split()
        for word in found:
            words += [word, *(part for part in re.split(r"[\s=;]+", word) if part and part != word)]
    return words


def _local(item: str, folder: str, files: dict[str, str], unknown: dict[str, None]) -> str:
    """Return an existing local path as an absolute one and note its digest; else ``item``.

    A bare word is taken for a file only if such a file is there: a folder must be written with a
    slash, so that an option's value does not turn into a path by accident.

    Args:
        unknown: gets what code depends on that its text does not tell.
    """
    path = Path(folder, item).absolute()
    try:
        found = path.is_file() or ("/" in item and path.is_dir())
    except (OSError, ValueError):  # too long to be a path
        return item
    if not item or not found:
        return item
    _note(path, folder, files, unknown)
    return str(path)


def _note(path: Path, folder: str, files: dict[str, str], unknown: dict[str, None]) -> None:
    """Note the digest of a path; of a program in Python or for a shell also what it names."""
    first = _first_line(path)
    if path.suffix == ".py" or (first.startswith(b"#!") and b"python" in first):
        files[str(path)] = _python(path, path.parent, unknown)
        return
    files[str(path)] = digest_path(path)
    if path.suffix in (".sh", ".bash") or (first.startswith(b"#!") and b"sh" in first):
        text = path.read_text(encoding="utf-8", errors="replace")
        for name in sorted(set(re.findall(r"\$\{?([A-Za-z_]\w*)", text)) - _OF_THE_SHELL):
            files[f"${name}"] = digest_of(os.environ.get(name))
        # a folder may be anything here ("cd /"): only one that is a checkpoint counts
        words = [word for word in _words(text) if not _is_other_folder(word, folder)]
        for place in {folder, str(path.parent)}:
            _look_into(words, place, files, unknown)


# They say where a shell runs, and change from run to run.
_OF_THE_SHELL = {"BASH_SOURCE", "HOME", "OLDPWD", "PATH", "PWD", "RANDOM", "SECONDS", "SHLVL"}


def _is_other_folder(word: str, folder: str) -> bool:
    try:
        path = Path(folder, os.path.expandvars(word))
        return path.is_dir() and not (path / "config.json").is_file()
    except (OSError, ValueError):
        return False


def _first_line(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as opened:
        return opened.readline(200)


# Digests of what recipes built, kept beside it: they show a build that was changed since.


def write_build_digest(made: Path, entry: Path) -> None:
    """Write down what was made, which is going to be ``entry``.

    Raises:
        OSError: the disk refuses.
    """
    _beside(entry).write_text(digest_path(made) + "\n", encoding="utf-8")


def changed_since_build(entry: Path) -> bool | None:
    """Whether a build is another one than was made; None where that was not written down."""
    try:
        known = _beside(entry).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return digest_path(entry) != known


def _beside(entry: Path) -> Path:
    return entry.with_name(f"{entry.name}.sha256")


# Builds in use: what keeps a model that this process may read from being cleared out.


# Held until this process ends: a model may read its files at any time.
_held: dict[Path, int] = {}


def mark_used(entry: Path) -> None:
    """Hold a build, beside any other process that uses it, and say that it was used now.

    ``<entry>.used`` is locked; on a disk without locks, or that refuses, nothing is.
    """
    with contextlib.suppress(OSError):
        os.utime(entry, follow_symlinks=False)
    if entry in _held:
        return
    with contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(entry.with_name(f"{entry.name}.used"), flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        _held[entry] = descriptor


def this_run() -> str:
    """Eight hexadecimal digits of this run, the same in the worker processes that it starts."""
    return os.environ.setdefault("EVALGUARD_THIS_RUN", secrets.token_hex(4))


def clear_unused(builds: Path, digest: str) -> None:
    """Remove what runs that ended built of a recipe that every run builds."""
    for entry in builds.glob(f"{digest}{'[0-9a-f]' * 8}"):
        used = entry.with_name(f"{entry.name}.used")
        with contextlib.suppress(OSError), used.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry)
