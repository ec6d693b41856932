"""Build recipes: make a model folder from settings, once, and never use a half-built one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import evalguard
from evalguard.conversion import watched_command
from evalguard.conversion.build_digests import write_build_digest
from evalguard.conversion.builds_in_use import clear_unused, mark_used, this_run
from evalguard.conversion.digests import digest_path
from evalguard.conversion.observed_reads import MOST_KEPT, ObservedReads, package_versions
from evalguard.conversion.planning import ConversionPlan, fill_placeholders, placeholders
from evalguard.core.redaction import redacted_command
from evalguard.core.settings import BuildRecipe, Value, Variant, digest_of
from evalguard.errors import BuildError, UsageError, nearest

_LAST_LINES = 15
# What evalguard adds to a build; a release that changes none of it builds nothing anew.
RECIPES = Path(evalguard.__file__).parent / "recipes"
_CALL_PROCESS = (
    "import json, sys; job = json.load(sys.stdin); sys.path[:] = job['path'] or sys.path; "
    "from evalguard.conversion.call_process import run; run(job)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A recipe with its inputs resolved; ``files``: those that it names, with their digests."""

    recipe: BuildRecipe
    inputs: Mapping[str, Value]
    files: Mapping[str, str]
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
    def is_watched(self) -> bool:
        """Whether it runs Python, so that what it reads is seen."""
        return bool(self.recipe.call) or _python_words(self.recipe.command) is not None

    def command(self, values: Mapping[str, Value], reads: Path, work: Path) -> list[str]:
        """The command line, which writes down what it reads where that is watched."""
        if self.recipe.call:
            words: tuple[list[str], list[str]] | None = ([], ["-c", _CALL_PROCESS])
        else:
            words = _python_words(self.recipe.command)
        if words is None:
            return [fill_placeholders(item, values) for item in self.recipe.command]
        own = json.dumps([str(work), *(path for path in self.files if os.path.exists(path))])
        filled = [fill_placeholders(item, values) for item in words[1]]
        program = self.python if self.recipe.call else self.recipe.command[0]
        return [program, *words[0], watched_command.__file__, str(reads), own, *filled]

    def reads(self, told: Mapping[str, object]) -> ObservedReads:
        """What a watched run has told.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: that is none.
        """
        return ObservedReads.of(told, self.package_versions)

    def package_versions(self, names: Sequence[str]) -> dict[str, str]:
        """Versions of packages; another interpreter's are in its environment's name."""
        return (
            package_versions(names) if self.python == sys.executable else dict.fromkeys(names, "")
        )

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
    evalguard's own recipes. A Python command (``python FILE``, ``python -m``, ``python -c``) and a
    ``call`` are watched: what they read besides is checked before the build is used again, and
    where they do what nobody can check, every run builds anew. Of other commands
    what they read is not known: name it in ``inputs`` (``describe_build`` says so). ``python`` as a
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
    job = _job(variant, plan, python, variables)
    builds = cache_dir.absolute() / "builds"
    builds.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{builds / job.digest}.lock"):
        entry = _find_entry(job, builds)
        if entry is None:
            entry = _build_entry(job, builds, variant, timeout)
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
    job = _job(variant, plan, python, variables)
    entry = _find_entry(job, cache_dir.absolute() / "builds")
    return None if entry is None else entry / job.recipe.output


def _job(
    variant: Variant,
    plan: ConversionPlan,
    python: str,
    variables: Mapping[str, str | None] | None,
) -> _Job:
    if variant.build is None:
        raise BuildError(f"'{variant.name}' has no build recipe")
    resolved = _resolve(variant.build, plan.build_inputs, python)
    return replace(resolved, python=python, variables=dict(variables or {}))


def describe_build(variant: Variant, plan: ConversionPlan, cache_dir: Path) -> tuple[str, ...]:
    """What a person must know of how far a variant's build is kept; () where nothing."""
    if variant.build is None:
        return ()
    job = _resolve(variant.build, plan.build_inputs)
    if not job.is_watched:
        return (
            f"its build runs {job.recipe.command[0]}, which is no Python: a change of what it "
            "reads is seen only where inputs: names that",
        )
    kept = _read_kept(job, cache_dir.absolute() / "builds")
    reasons = kept[0][1].reasons if kept else ()
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return (f"every run builds it anew: {reasons[0]}{more}",) if reasons else ()


def _find_entry(job: _Job, builds: Path) -> Path | None:
    """A build that was made of what is there now; None: there is none."""
    if not job.is_watched:
        entry = builds / job.digest
        return entry if (entry / job.recipe.output).exists() else None
    for name, reads in _read_kept(job, builds):
        entry = builds / name
        ours = (
            name.endswith(this_run())
            if reads.reasons
            else reads.holds(job.environment, job.package_versions)
        )
        if ours and (entry / job.recipe.output).exists():
            return entry
    return None


def _read_kept(job: _Job, builds: Path) -> list[tuple[str, ObservedReads]]:
    """Builds of a recipe, each with what it was seen to read; the latest first."""
    try:
        told = json.loads((builds / f"{job.digest}{_READS}").read_text(encoding="utf-8"))
        return [(str(one["entry"]), job.reads(one["reads"])) for one in told]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


_READS = ".reads.json"


def _keep_reads(job: _Job, builds: Path, name: str, reads: ObservedReads) -> None:
    kept = [one for one in _read_kept(job, builds) if one[0] != name]
    told = [
        {"entry": entry, "reads": of.plain} for entry, of in [(name, reads), *kept[: MOST_KEPT - 1]]
    ]
    written = builds / f".{job.digest}{_READS}"
    written.write_text(json.dumps(told), encoding="utf-8")
    written.replace(builds / f"{job.digest}{_READS}")


def _build_entry(job: _Job, builds: Path, variant: Variant, timeout: float | None) -> Path:
    """Build, and give what was made its name."""
    for stale in builds.glob(f".{job.digest}-*"):  # of a build that was killed
        shutil.rmtree(stale, ignore_errors=True)
    log = builds / f"{job.digest}.log"
    work = Path(tempfile.mkdtemp(prefix=f".{job.digest}-", dir=builds))
    told = builds / f".{job.digest}.reads"
    try:
        output = work / job.recipe.output
        output.parent.mkdir(parents=True, exist_ok=True)
        told.unlink(missing_ok=True)
        _run(job, work, output, told, log, variant, timeout)
        if not output.exists():
            raise _failure(variant, f"made no '{job.recipe.output}'", log)
        entry = builds / job.digest
        reads = _told_reads(job, told) if job.is_watched else None
        if reads is not None and reads.reasons:
            clear_unused(builds, job.digest)
            entry = builds / (job.digest + this_run())
        elif reads is not None:
            entry = builds / digest_of([job.digest, reads.digest])
        work.chmod(0o755)
        write_build_digest(work, entry)
        shutil.rmtree(entry, ignore_errors=True)  # nothing else would have found it
        os.rename(work, entry)
        if reads is not None:
            _keep_reads(job, builds, entry.name, reads)
        return entry
    finally:
        shutil.rmtree(work, ignore_errors=True)
        told.unlink(missing_ok=True)


def _told_reads(job: _Job, told: Path) -> ObservedReads:
    try:
        return job.reads(json.loads(told.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ObservedReads(reasons=("it ended in a way in which it cannot say what it read",))


def _run(
    job: _Job,
    work: Path,
    output: Path,
    told: Path,
    log: Path,
    variant: Variant,
    timeout: float | None,
) -> None:
    command = job.command({**job.inputs, "output": str(output)}, told, work)
    given = ""
    if job.recipe.call:
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
        found = path.is_file() or ("/" in item and path.is_dir())
    except (OSError, ValueError):  # too long to be a path
        return item
    if not item or not found:
        return item
    files[str(path)] = digest_path(path)
    return str(path)


_INTERPRETER = re.compile(r"(.*/)?python(3(\.\d+)?)?")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def _python_words(command: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """A Python command's options, and what it runs with arguments; None: it is another one."""
    if not command or not _INTERPRETER.fullmatch(command[0]):
        return None
    options: list[str] = []
    rest = list(command[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        bundle = re.fullmatch(r"-([A-Za-z]*)([cm])(.*)", word)
        if bundle and word not in _WITH_VALUE and not word.startswith(("-W", "-X", "--")):
            more = [f"-{bundle[1]}"] if bundle[1] else []
            value = [bundle[3]] if bundle[3] else []
            return [*options, *more], [f"-{bundle[2]}", *value, *rest]
        options.append(word)
        if word in _WITH_VALUE and rest:
            options.append(rest.pop(0))
    return (options, rest) if rest and rest[0] != "-" else None
