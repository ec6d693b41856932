"""Code that Python runs in every process before anything else, which may patch what scores."""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import importlib.util
import os
import site
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

from evalguard.core.settings import digest_of

_CUSTOM = ("sitecustomize", "usercustomize")


@functools.cache
def start_up_code() -> str:
    """Digest of what the ``site`` module runs: both customize modules, and lines of .pth files.

    With them count the modules that they import by name, but for Python's own; "" where there is
    nothing. What they reach in other ways is not seen: ``list_start_up_files``.
    """
    lines = sorted({line for _, of in _path_files() for line in of})
    digests: dict[str, str] = {}
    for name in (*_CUSTOM, *_imported("\n".join(lines))):
        _collect(name, digests)
    return digest_of([lines, sorted(digests.items())]) if lines or digests else ""


@functools.cache
def list_start_up_files() -> tuple[str, ...]:
    """Files of code that Python runs by itself and that came with no installed package.

    What such code reads, nobody knows. That is: both customize modules, lines of .pth files with
    the modules that they import, categories of warnings, and modules on PYTHONPATH that stand in
    for Python's own. What is as an installer recorded it, Python's own, and what tools that make
    environments write, is none.
    """
    if sys.flags.no_site:
        return ()
    listed: dict[str, None] = {}
    names = ["sitecustomize", *(["usercustomize"] if site.ENABLE_USER_SITE else [])]
    for file, lines in _path_files():
        if any(not line.startswith(_HARMLESS_LINES) for line in lines) and not _is_recorded(file):
            listed[str(file)] = None
            names += _imported("\n".join(lines))
    categories = (option.split(":")[2] for option in sys.warnoptions if option.count(":") >= 2)
    names += [category.partition(".")[0] for category in categories if "." in category]
    files = (_file_of(name) for name in names if name not in sys.stdlib_module_names)
    listed |= dict.fromkeys(str(file) for file in files if file and not _is_recorded(file))
    return (*listed, *_in_place_of_pythons_own())


# Of setuptools, without a record in old installations and packages of Debian.
_HARMLESS_LINES = (
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'", "import sys, types, os;p = ",
    "import sys, types, os;has_mfs", "import sys; sys.__plen", "import sys; new=sys.path[sys.__plen"
)  # fmt: skip
# Written by virtualenv and uv into every environment.
_OF_ENVIRONMENTS = ("_virtualenv.pth", "_virtualenv.py")
_STDLIB = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}


def _file_of(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or module == "evalguard":
        return None
    return Path(spec.origin) if spec.has_location and spec.origin else None


def _is_recorded(file: Path) -> bool:
    """Whether a file is as Python, an installer or the maker of an environment wrote it."""
    if os.path.realpath(file.parent) in _STDLIB:  # a distribution's sitecustomize
        return True
    if file.name in _OF_ENVIRONMENTS:
        return True
    for entry in sys.path:
        try:
            name = file.relative_to(entry).as_posix() if entry else ""
        except ValueError:
            continue
        for record in Path(entry).glob("*.dist-info/RECORD") if name else ():
            for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith(f"{name},"):
                    recorded = line.split(",")[1].partition("=")[2]
                    digest = hashlib.sha256(file.read_bytes()).digest()
                    return base64.urlsafe_b64encode(digest).decode().rstrip("=") == recorded
    return False


def _in_place_of_pythons_own() -> Iterator[str]:
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        inside = {os.path.realpath(entry), os.path.realpath(os.path.dirname(entry))}
        if inside & _STDLIB or os.path.basename(entry) in ("site-packages", "dist-packages"):
            continue
        for name in _names_in(entry):
            stem, _, suffix = name.partition(".")
            own = suffix == "py" or suffix.endswith("so")
            own = own or os.path.isfile(os.path.join(entry, name, "__init__.py"))
            zipped = os.path.isfile(entry)
            if (own or zipped) and (stem if suffix else name) in sys.stdlib_module_names:
                yield entry if zipped else os.path.join(entry, name)


def _names_in(place: str) -> list[str]:
    """Names at the top of a folder or a zip file; [] where there is none."""
    try:
        if os.path.isfile(place):
            with zipfile.ZipFile(place) as packed:
                return sorted({name.partition("/")[0] for name in packed.namelist()})
        return sorted(os.listdir(place))
    except (OSError, zipfile.BadZipFile):
        return []


def _path_files() -> Iterator[tuple[Path, list[str]]]:
    """Path files with lines that are code: those that begin with an import, as ``site`` has it."""
    for entry in sys.path:
        for file in sorted(Path(entry).glob("*.pth")) if entry else ():
            try:
                text = file.read_text(encoding="utf-8-sig", errors="replace")
            except OSError:
                continue
            lines = [line for line in text.splitlines() if line.startswith(("import ", "import\t"))]
            if lines:
                yield file, lines


def _collect(name: str, found: dict[str, str]) -> None:
    """Digest a module, or all of a package, and what it imports in its turn."""
    if name in found or name in sys.stdlib_module_names or name == "evalguard":
        return
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return
    origin = Path(spec.origin)
    folder = origin.parent if spec.submodule_search_locations else None
    try:
        texts = [
            f.read_bytes() for f in ([origin] if folder is None else sorted(folder.rglob("*.py")))
        ]
    except OSError:
        return
    found[name] = hashlib.sha256(b"\0".join(texts)).hexdigest()
    if (
        folder is None or name in _CUSTOM
    ):  # another package is a library, whose version and files stand elsewhere
        for inner in _imported(origin.read_text(encoding="utf-8", errors="replace")):
            _collect(inner, found)


def _imported(text: str) -> list[str]:
    """Names of modules, without what is in them, that a text imports anywhere in it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named.add(node.module.partition(".")[0])
    return sorted(named)
