"""Virtual environments of models: made from requirements, kept by content, and found again."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.core.settings import OwnEnvironment, digest_of
from evalguard.errors import BuildError, UsageError, nearest

_MARKER = "evalguard-environment.json"
_LAST_LINES = 12
# What tells an interpreter apart; run in it, whatever its version.
_PROBE = (
    "import json, platform, sys, sysconfig; print(json.dumps([sys.executable, "
    "platform.python_version(), platform.python_implementation(), sysconfig.get_platform()]))"
)
# Variables that would let this process's environment reach into another interpreter.
_FOREIGN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
_OLDEST = (3, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that runs a model.

    Attributes:
        python: its path.
        version: "3.11.7".
        packages: what pip has installed in it, sorted; () of an interpreter that was named.
    """

    python: str
    version: str
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEnvironment:
    """An environment in the cache.

    Attributes:
        requirements: that it was made for.
        size: bytes; ``last_used``: seconds since 1970.
    """

    path: str
    requirements: tuple[str, ...]
    python: str
    size: int
    last_used: float


def prepare_worker_interpreter(
    own: OwnEnvironment, packages: Mapping[str, str], cache_dir: Path, *, name: str
) -> Interpreter:
    """``prepare_interpreter``, with numpy, which a worker needs whatever its model's library does.

    Raises:
        UsageError, BuildError: as there.
    """
    interpreter = prepare_interpreter(own, packages, cache_dir, name=name)
    brought = {_package_name(package.rpartition("-")[0]) for package in interpreter.packages}
    if not own.requirements or "numpy" in brought:
        return interpreter
    both = replace(own, requirements=(*own.requirements, "numpy"))
    return prepare_interpreter(both, packages, cache_dir, name=name)


def prepare_interpreter(
    own: OwnEnvironment, packages: Mapping[str, str], cache_dir: Path, *, name: str
) -> Interpreter:
    """Return the interpreter of a model, making its virtual environment if it is not there.

    Two processes that need one environment wait for each other. An environment whose interpreter
    does not start any more is made anew. pip's and uv's own variables and configuration hold
    (indexes, ``--no-index``, ``--find-links``), so that it works where there is no network.

    Args:
        packages: version of each package that a setting names.
        name: of the model, for errors.

    Raises:
        UsageError: there is no such interpreter, or it is too old.
        BuildError: the packages cannot be installed together; with what pip said.
    """
    base = find_python(own.python)
    if not own.requirements:
        return base
    wanted = pin_requirements(own.requirements, packages)
    from filelock import FileLock

    folder = cache_dir.absolute() / "envs"
    folder.mkdir(parents=True, exist_ok=True)
    key = digest_of([base.version, *_contents(wanted)])
    entry = folder / key
    with FileLock(f"{entry}.lock"):
        interpreter = _read_kept(entry)
        if interpreter is None:
            shutil.rmtree(entry, ignore_errors=True)
            interpreter = _make(entry, base, wanted, name=name)
        with contextlib.suppress(OSError):
            os.utime(entry / _MARKER)
    return interpreter


def find_python(python: str) -> Interpreter:
    """Return the interpreter of a name or path; "" is this process's.

    Raises:
        UsageError: there is none, or it is older than 3.10.
    """
    path = sys.executable if not python else shutil.which(python)
    if path is None:
        raise UsageError(
            f"there is no Python interpreter '{python}'",
            hint="python: names one on PATH (python3.12), or gives its path",
        )
    try:
        output = subprocess.run(
            [path, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True,
            env=clean_environment(),
        ).stdout  # fmt: skip
        executable, version, *_ = json.loads(output)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(f"'{python}' does not run as a Python interpreter: {error}") from error
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise UsageError(f"'{python}' is Python {version}; a model needs 3.10 or later")
    # Of a virtual environment the link, not what it leads to: only the link has its packages.
    return Interpreter(python=path if python else executable, version=version)


def pin_requirements(requirements: Sequence[str], packages: Mapping[str, str]) -> tuple[str, ...]:
    """Return requirements with these packages at these versions.

    A version may be followed by what it needs beside it: "2.3.0 typeguard<3" is one value of a
    setting, so that packages that only fit together change together.

    Raises:
        UsageError: a package that is not among the requirements.
    """
    names = [_package_name(requirement) for requirement in requirements]
    pinned = list(requirements)
    for package, pin in packages.items():
        version, *beside = pin.split()
        plain = _normalized(package)
        if plain not in names:
            raise UsageError(
                f"package.{package}: the model's requirements name no such package"
                f"{nearest(plain, names)}",
                hint=f"add {package} to requirements",
                target=f"package.{package}",
            )
        index = names.index(plain)
        marker = requirements[index].partition(";")[1:]
        extras = requirements[index].partition("[")[2].partition("]")[0]
        own = f"{package}[{extras}]" if extras else package
        pinned[index] = f"{own}=={version}{''.join(marker)}"
        for companion in beside:
            companion_name = _package_name(companion)
            if companion_name in names:
                pinned[names.index(companion_name)] = companion
            else:
                pinned.append(companion)
    return tuple(pinned)


def _package_name(requirement: str) -> str:
    letters = requirement.strip()
    end = next((i for i, c in enumerate(letters) if not (c.isalnum() or c in "-_.")), len(letters))
    return _normalized(letters[:end])


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _contents(requirements: Sequence[str]) -> list[str]:
    """Requirements, with a digest beside each that is a local file or folder."""
    contents = []
    for requirement in requirements:
        path = Path(requirement.removeprefix("-r").strip()).expanduser()
        contents.append(requirement)
        if ("/" in requirement or requirement.startswith("-r")) and path.is_file():
            contents.append(hashlib.sha256(path.read_bytes()).hexdigest())
    return contents


def _read_kept(entry: Path) -> Interpreter | None:
    """An environment that is whole: it was finished, and its interpreter starts."""
    try:
        record = json.loads((entry / _MARKER).read_text(encoding="utf-8"))
        python = str(entry / "bin" / "python")
        subprocess.run([python, "-c", ""], check=True, timeout=60, env=clean_environment(),
                       capture_output=True)  # fmt: skip
        return Interpreter(
            python=python, version=str(record["version"]), packages=tuple(record["packages"])
        )
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return None


def _make(entry: Path, base: Interpreter, wanted: Sequence[str], *, name: str) -> Interpreter:
    """Make an environment in its place: it cannot be moved. The marker says that it is whole."""
    log = entry.with_suffix(".log")
    python = str(entry / "bin" / "python")
    uv = shutil.which("uv")
    install = (
        [[uv, "venv", "--quiet", "--python", base.python, str(entry)],
         [uv, "pip", "install", "--quiet", "--python", python]]
        if uv
        else [[base.python, "-m", "venv", str(entry)],
              [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]]
    )  # fmt: skip
    with log.open("wb") as sink:
        try:
            for command in (install[0], [*install[1], *_arguments(wanted)]):
                if _run(command, sink):
                    raise _failure(name, wanted, log)
        except BaseException:
            shutil.rmtree(entry, ignore_errors=True)
            raise
    packages = list_packages(entry)
    marker = {"requirements": list(wanted), "version": base.version, "packages": list(packages)}
    (entry / _MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
    return Interpreter(python=python, version=base.version, packages=packages)


def _arguments(wanted: Sequence[str]) -> Iterator[str]:
    for requirement in wanted:
        if requirement.startswith("-r"):
            yield from ("-r", requirement[2:].strip())
        else:
            yield requirement


def _run(command: Sequence[str], sink: object) -> int:
    """Run to the end, with everything that it started ended by Ctrl-C."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,  # type: ignore[call-overload]
        start_new_session=True, env=clean_environment(),
    )  # fmt: skip
    try:
        return int(process.wait())
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def _failure(name: str, wanted: Sequence[str], log: Path) -> BuildError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    excerpt = [
        line for line in lines if line.startswith(("ERROR", "error", "  ╰─▶", "  × "))
    ] or lines
    end = "".join(f"\n  {line[:200]}" for line in excerpt[-_LAST_LINES:])
    return BuildError(
        f"the environment of '{name}' cannot be made of {', '.join(wanted)}:{end}",
        hint=f"the whole log: {log}; versions that exclude each other cannot be built together, "
        "and without a network PIP_FIND_LINKS or PIP_INDEX_URL say where packages are",
    )


def list_packages(entry: Path) -> tuple[str, ...]:
    """Name and version of every package of an environment, as its metadata folder is called."""
    folders = (entry / "lib").glob("python*/site-packages/*.dist-info")
    return tuple(sorted(folder.name.removesuffix(".dist-info") for folder in folders))


def clean_environment() -> dict[str, str]:
    """This process's environment without what would reach into another interpreter."""
    return {n: v for n, v in os.environ.items() if n not in _FOREIGN_VARIABLES}


def worker_variables(cache_dir: Path) -> dict[str, str | None]:
    """Changes to the environment with which a worker runs in another interpreter.

    evalguard is not installed there: its files are found through a folder that holds a link to
    this package, and nothing else of this environment.
    """
    return {
        **dict.fromkeys(_FOREIGN_VARIABLES),
        "PYTHONPATH": str(_link_package(cache_dir)),
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
    }


def _link_package(cache_dir: Path) -> Path:
    spec = importlib.util.find_spec("evalguard")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    folder = cache_dir.absolute() / "envs" / f"worker-{digest_of(str(package))}"
    link = folder / "evalguard"
    if not link.is_symlink() or os.readlink(link) != str(package):
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder)) / "evalguard"
        made.symlink_to(package, target_is_directory=True)
        made.replace(link)
        made.parent.rmdir()
    return folder


def list_environments(cache_dir: Path) -> list[KeptEnvironment]:
    """Environments in a cache, the most recently used first."""
    environments = []
    for marker in (cache_dir / "envs").glob(f"*/{_MARKER}"):
        try:
            record = json.loads(marker.read_text(encoding="utf-8"))
            used = marker.stat().st_mtime
        except (OSError, ValueError):
            continue
        environments.append(
            KeptEnvironment(
                path=str(marker.parent),
                requirements=tuple(map(str, record.get("requirements", ()))),
                python=str(record.get("version", "")),
                size=_size(marker.parent),
                last_used=used,
            )
        )
    return sorted(environments, key=lambda environment: -environment.last_used)


def remove_environments(
    cache_dir: Path, names: Sequence[str], *, older_than: float | None = None
) -> list[KeptEnvironment]:
    """Remove environments by the beginning of their folder's name, or by age; return them.

    Args:
        names: "" or several beginnings; none: all that are old enough.
        older_than: seconds since they were used last.

    Raises:
        UsageError: a name that is none's.
    """
    from filelock import FileLock

    environments = list_environments(cache_dir)
    now = time.time()
    for name in names:
        if not any(Path(environment.path).name.startswith(name) for environment in environments):
            raise UsageError(
                f"no environment is called '{name}'", hint="evalguard envs ls lists them"
            )
    gone = [
        environment
        for environment in environments
        if (not names or any(Path(environment.path).name.startswith(name) for name in names))
        and (older_than is None or now - environment.last_used > older_than)
    ]
    for removed in gone:
        entry = Path(removed.path)
        with FileLock(f"{entry}.lock"):
            (entry / _MARKER).unlink(missing_ok=True)  # from here on nobody takes it for whole
            shutil.rmtree(entry, ignore_errors=True)
        for file in (entry.with_suffix(".log"), Path(f"{entry}.lock")):
            file.unlink(missing_ok=True)
    return gone


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total
