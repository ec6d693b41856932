"""Build recipes: make a model folder from settings, once, and never use a half-built one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import evalguard
from evalguard.conversion.installed_packages import digest_environment
from evalguard.conversion.observed_reads import digest_path
from evalguard.conversion.planning import ConversionPlan
from evalguard.conversion.user_functions import code_places, digest_code_at, digest_inputs
from evalguard.core.redaction import redacted_command
from evalguard.core.settings import (
    BuildRecipe,
    Value,
    Variant,
    digest_of,
    fill_placeholders,
    placeholders,
)
from evalguard.errors import BuildError, UsageError, nearest
from evalguard.plugins import OWN_RECIPES, check_recipe_inputs
from evalguard.run_token import this_run
from evalguard.start_up import list_start_up_files

# Held until this process ends: a model may read its files at any time. Several processes hold one
# build: a shared lock, which filelock has in late versions only, as a database.
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


def clear_unused(builds: Path, digest: str) -> None:
    """Remove what runs that ended built of a recipe that every run builds."""
    for entry in builds.glob(f"{digest}-{'[0-9a-f]' * 16}"):
        used = entry.with_name(f"{entry.name}.used")
        with contextlib.suppress(OSError), used.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry)


_LAST_LINES = 15
_REFUSAL = ".refusal"  # beside the output: why a recipe refuses its inputs
# What evalguard adds to a build; a release that changes none of it builds nothing anew.
RECIPES = Path(evalguard.__file__).parent / "recipes"
_CALL_PROCESS = (
    "import json, sys; job = json.load(sys.stdin); sys.path[:] = job['path'] or sys.path; "
    "from evalguard.conversion.call_process import run; run(job)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A recipe with its inputs resolved.

    Attributes:
        files: those that it names, with their digests.
        read: digests of its code, and of what somebody has said that this reads.
        declared: whether somebody has.
    """

    recipe: BuildRecipe
    inputs: Mapping[str, Value]
    files: Mapping[str, str]
    python: str = sys.executable
    variables: Mapping[str, str | None] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    declared: bool = False

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

    def command(self, values: Mapping[str, Value]) -> list[str]:
        """The command line."""
        if self.recipe.call:
            return [self.python, "-c", _CALL_PROCESS]
        return [fill_placeholders(item, values) for item in self.recipe.command]

    @property
    def entry(self) -> str:
        """The name of what it makes: this run's own, where nobody has said what it reads."""
        return self.digest if self.declared else f"{self.digest}-{this_run()}"

    @property
    def digest(self) -> str:
        return digest_of(
            {
                "command": list(self.recipe.command),
                "call": self.recipe.call,
                "output": self.recipe.output,
                "inputs": dict(self.inputs),
                "files": dict(self.files),
                "recipes": digest_path(RECIPES),
                "variables": dict(self.variables),
                "read": dict(self.read),
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
    and their contents are part of the cache key, as are the recipe, its inputs and the text of
    evalguard's own recipes. What else a recipe reads nobody can see: it is built anew by every run,
    unless the variant's ``inputs`` say what that is, as those of evalguard's own recipes do. Then
    these count, with its code by its folder, and all installed packages. ``python`` as a
    command's first word is this interpreter. A ``call`` recipe runs in a fresh interpreter as
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

    if variant.build is not None and not variant.allow_code:
        raise UsageError(
            f"'{variant.name}' is built by running code, and code from this guard file is not "
            "allowed to run",
            hint="name the guard file with --config and allow code, if you trust it",
        )
    job = _job(variant, plan, cache_dir, python, variables)
    builds = cache_dir.absolute() / "builds"
    builds.mkdir(parents=True, exist_ok=True)
    entry = builds / job.entry
    with FileLock(f"{builds / job.digest}.lock"):
        if not (entry / job.recipe.output).exists():
            _build_entry(job, builds, variant, timeout)
        mark_used(entry)
    return entry / job.recipe.output


def find_build(
    variant: Variant,
    plan: ConversionPlan,
    cache_dir: Path,
    *,
    python: str = sys.executable,
    variables: Mapping[str, str | None] | None = None,
) -> Path | None:
    """Return the path of what ``build`` has made before and would give now; None: nothing.

    Raises:
        BuildError: the variant has no recipe, or one that cannot run.
    """
    job = _job(variant, plan, cache_dir, python, variables)
    made = cache_dir.absolute() / "builds" / job.entry / job.recipe.output
    return made if made.exists() else None


def _job(
    variant: Variant,
    plan: ConversionPlan,
    cache_dir: Path,
    python: str,
    variables: Mapping[str, str | None] | None,
) -> _Job:
    if variant.build is None:
        raise BuildError(f"'{variant.name}' has no build recipe")
    job = replace(
        _resolve(variant.build, plan.build_inputs, python),
        python=python,
        variables=dict(variables or {}),
    )
    if variant.build.call:
        check_recipe_inputs(variant.build.call, plan.build_inputs)
    own = job.recipe.call.startswith(OWN_RECIPES)
    commits = {f"hub {name}": _hub_commit(name) for name in _hub_names(plan.build_inputs)}
    read = {} if own else digest_code_at(_code_of(job))
    declared = variant.inputs is not None or (
        own and "" not in commits.values() and not list_start_up_files()
    )
    # Nobody knows the packages of an interpreter that was named; those that evalguard made stay.
    here = python == sys.executable
    if not declared or not (here or Path(python).is_relative_to(cache_dir.absolute() / "envs")):
        return replace(job, read=read)
    read |= {**commits, **digest_inputs(variant), **(digest_environment() if here else {})}
    return replace(job, read=read, declared=True)


def is_built_by_every_run(variant: Variant) -> bool:
    """Whether a variant has a build of which nobody has said what it reads."""
    recipe = variant.build
    return recipe is not None and variant.inputs is None and not recipe.call.startswith(OWN_RECIPES)


def _code_of(job: _Job) -> list[Path]:
    """Where a recipe's code lies."""
    recipe = job.recipe
    if recipe.call:
        return code_places(recipe.call, recipe.folder)
    words = recipe.command[1:]
    modules = (later for word, later in pairwise(words) if word == "-m")
    places = [
        location for module in modules for location in code_places(f"{module}:", recipe.folder)
    ]
    return [*places, *(Path(file).parent for file in job.files if file in words)]


def _hub_names(value: Value | Mapping[str, Value]) -> Iterator[str]:
    """Ids of the hub in inputs; a folder of that name comes first."""
    if isinstance(value, str):
        if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", value) and not os.path.exists(value):
            yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _hub_names(item)


def _hub_commit(name: str) -> str:
    """The commit of a hub model that is on this machine, "" for none."""
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except ValueError:
        return ""
    return Path(cached).parent.name if isinstance(cached, str) else ""


def _build_entry(job: _Job, builds: Path, variant: Variant, timeout: float | None) -> None:
    """Build, and give what was made its name."""
    for stale in builds.glob(f".{job.digest}-*"):  # of a build that was killed
        shutil.rmtree(stale, ignore_errors=True)
    log = builds / f"{job.digest}.log"
    work = Path(tempfile.mkdtemp(prefix=f".{job.digest}-", dir=builds))
    try:
        output = work / job.recipe.output
        output.parent.mkdir(parents=True, exist_ok=True)
        _run(job, work, output, log, variant, timeout)
        if not output.exists():
            raise _failure(variant, f"made no '{job.recipe.output}'", log)
        if not job.declared:
            clear_unused(builds, job.digest)
        entry = builds / job.entry
        work.chmod(0o755)
        shutil.rmtree(entry, ignore_errors=True)  # nothing else would have found it
        os.rename(work, entry)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(
    job: _Job,
    work: Path,
    output: Path,
    log: Path,
    variant: Variant,
    timeout: float | None,
) -> None:
    command = job.command({**job.inputs, "output": str(output)})
    given = ""
    if job.recipe.call:
        given = json.dumps(
            {
                "path": job.import_path,
                "call": job.recipe.call,
                "folder": job.recipe.folder,
                "inputs": dict(job.inputs),
                "output": str(output),
                "refusal": str(work / _REFUSAL),
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
        refusal = work / _REFUSAL  # of a recipe; libraries write to the log before it
        refusal_file = refusal if refusal.is_file() else None
        raise _failure(variant, f"failed with exit status {status}", log, refusal_file)


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


def _failure(variant: Variant, what: str, log: Path, said: Path | None = None) -> BuildError:
    text = (said or log).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()[-_LAST_LINES:]
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
    command = tuple(_local(item, recipe.folder, files) for item in recipe.command)
    if command and command[0] in ("python", "python3"):
        command = (python, *command[1:])
    elif command:
        tool = shutil.which(command[0])
        if tool is not None:
            files[tool] = digest_path(Path(tool))
    for name in placeholders(command):
        if name not in resolved and name != "output":
            raise BuildError(
                f"the build command reads '{name}', which is not an input"
                f"{nearest(name, [*resolved, 'output'])}",
                hint=f"inputs: {', '.join(resolved) or 'none'}, and output",
            )
    absolute = BuildRecipe(
        command=command,
        call=recipe.call,
        output=recipe.output,
        inputs=resolved,
        folder=str(Path(recipe.folder).absolute()),
    )
    return _Job(recipe=absolute, inputs=resolved, files=files)


def _local_value(value: Value, folder: str, files: dict[str, str]) -> Value:
    """Make local paths absolute and note their digests, wherever they stand in an input."""
    if isinstance(value, str):
        return _local(value, folder, files)
    if isinstance(value, list):
        return [_local_value(item, folder, files) for item in value]
    if isinstance(value, dict):
        return {name: _local_value(item, folder, files) for name, item in value.items()}
    return value


def _local(item: str, folder: str, files: dict[str, str]) -> str:
    """Return an existing local path as an absolute one and note its digest; else ``item``.

    A bare word is taken for a file only if such a file is there: a folder must be written with a
    slash, so that an option's value does not turn into a path by accident. Of ``--base=PATH`` the
    value counts.
    """
    flag, equals, value = item.partition("=")
    if flag.startswith("-") and equals:
        return f"{flag}={_local(value, folder, files)}"
    path = Path(folder, item).absolute()
    try:
        exists = path.is_file() or ("/" in item and path.is_dir())
    except (OSError, ValueError):  # too long to be a path
        return item
    if not item or not exists:
        return item
    files[str(path)] = digest_path(path)
    return str(path)
