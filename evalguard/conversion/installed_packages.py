"""Packages that are installed, by their files: one is edited in place, and its version stays."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from evalguard.conversion.observed_reads import SETTLED_NS, KnownDigests, digest_path
from evalguard.core.settings import Value, digest_of

# What models are made of, and what reads their texts.
LIBRARIES = (
    "accelerate", "auto_round", "awq", "bitsandbytes", "causal_conv1d", "compressed_tensors",
    "einops", "fla", "flash_attn", "gptqmodel", "jinja2", "lm_eval", "mamba_ssm", "numpy",
    "optimum", "peft", "rwkv", "safetensors", "sentencepiece", "tiktoken", "tokenizers", "torch",
    "torchao", "transformers", "vllm", "xformers",
)  # fmt: skip
# What those call, of the packages that they bring with them.
BESIDE = (
    "cuda", "datasets", "evaluate", "filelock", "google", "huggingface_hub", "kernels",
    "llama_cpp", "mpmath", "networkx", "nvidia", "onnxruntime", "packaging", "psutil", "regex",
    "requests", "scipy", "sympy", "tqdm", "triton", "typing_extensions", "xllamacpp", "yaml",
)  # fmt: skip


def loaded_packages() -> tuple[str, ...]:
    """Names of the packages that this process has imported, but for Python's own and evalguard."""
    names = {name.partition(".")[0] for name in tuple(sys.modules)}
    return tuple(
        sorted(
            name
            for name in names - {*sys.stdlib_module_names, "evalguard", "__main__", "__mp_main__"}
            if getattr(sys.modules.get(name), "__spec__", None) is not None
        )
    )


def installed_versions() -> dict[str, Value]:
    """Versions of all packages of this interpreter, by name."""
    versions = (
        (distribution.name, distribution.version)
        for distribution in importlib.metadata.distributions()
    )
    return {str(name): str(version) for name, version in sorted(versions) if name}


def digest_packages(names: Sequence[str], known: KnownDigests | None = None) -> dict[str, str]:
    """Digests of installed packages, by the names of their modules; of this process, once.

    What was imported stays what it is, whatever is edited afterwards. A package that an installer
    has recorded counts by its version and by the files that are no longer as they were recorded;
    any other one (editable, or put in front by PYTHONPATH) by its code.
    """
    for name in names:
        if name not in _read_packages:
            _read_packages[name] = " ".join(_digest_module(name, known))
    return {f"package {name}": _read_packages[name] for name in names if _read_packages[name]}


def digest_environment(known: KnownDigests | None = None) -> dict[str, str]:
    """Digests of all packages that are installed: code of others may import any of them."""
    names = {top for _, top in _owners()}
    return digest_packages(tuple(sorted({*names, *LIBRARIES, *BESIDE} - {"evalguard"})), known)


def _digest_module(name: str, known: KnownDigests | None) -> Iterator[str]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    places = _places_of(spec)
    if any(map(_is_in_package, places)):
        # Ray puts a folder of its own in front of the path, and with it another psutil: a process
        # that was started for a model, or a run without Ray, has the installed one.
        elsewhere = [entry for entry in sys.path if not _is_in_package(os.path.join(entry, name))]
        places = _places_of(PathFinder.find_spec(name, elsewhere)) or places
    for path in places:
        recorded = _owners().get((os.path.dirname(path), os.path.basename(path)))
        if recorded:
            for package in recorded:
                yield _recorded_digest(package, known)
        elif os.path.isdir(path):
            yield _package_digest(Path(path), known)
        else:  # in a zip file, perhaps
            files = [
                ancestor for ancestor in (Path(path), *Path(path).parents) if ancestor.is_file()
            ]
            yield from (digest_path(file, known) for file in files[:1])


def _places_of(spec: ModuleSpec | None) -> list[str]:
    """Folders of a package, or the file of a module; [] for what is built in."""
    if spec is None:
        return []
    return [*(spec.submodule_search_locations or ())] or ([spec.origin] if spec.origin else [])


_Owners = Mapping[tuple[str, str], tuple[str, ...]]


def _is_in_package(place: str, owners: _Owners | None = None) -> bool:
    """Whether it lies in a folder of another installed package, which has brought it."""
    owners = _owners() if owners is None else owners
    return any((str(ancestor.parent), ancestor.name) in owners for ancestor in Path(place).parents)


@functools.cache
def _owners() -> _Owners:
    """(folder, file or folder in it) -> the ``.dist-info`` of packages that have files there.

    Of packages that others bring in folders of their own, none: only who imports the others sees
    them.
    """
    owners: dict[tuple[str, str], tuple[str, ...]] = {}
    for folder in dict.fromkeys(os.path.abspath(entry) for entry in sys.path if entry):
        try:
            inside = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
        except OSError:
            continue
        for name in inside:
            package = os.path.join(folder, name)
            for top in set(_TOP.findall(_record(package))):
                owners[folder, top] = (*owners.get((folder, top), ()), package)
    return {at: of for at, of in owners.items() if not _is_in_package(os.path.join(*at), owners)}


_TOP = re.compile(r'^"?([^/,"\n]+)', re.MULTILINE)


def _record(package: str) -> str:
    try:
        return Path(package, "RECORD").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _rows(package: str) -> Iterator[tuple[str, str, str]]:
    """Path, hash and size of the files that a package's RECORD lists and a model may read."""
    for line in _record(package).splitlines():
        path, hashed, size = line.rsplit(",", 2) if line.count(",") > 1 else ("", "", "")
        if hashed and not path.endswith(_NEVER_READ) and not path.startswith(_ELSEWHERE):
            yield path.strip('"'), hashed, size


def _recorded_digest(package: str, known: KnownDigests | None) -> str:
    """A package's version, and a digest of its files that are not as recorded.

    All are read once while their sizes and times stand still.
    """
    if package not in _read_packages:
        folder = os.path.dirname(package)
        wanted = list(_rows(package))
        states = [_state_of(os.path.join(folder, path)) for path, _, _ in wanted]
        extra = sorted(_unrecorded({path for path, _, _ in wanted}, folder))
        listing = hashlib.sha256(repr([wanted, states, extra]).encode()).digest()
        state = [int.from_bytes(listing[:6], "big"), int.from_bytes(listing[6:12], "big")]
        edits = None if known is None else known.get(package, state)
        if not edits:
            edited = [
                [path, digest]
                for (path, recorded, size), file_state in zip(wanted, states, strict=True)
                if (digest := _edited(os.path.join(folder, path), recorded, size, file_state))
            ]
            edited += [[path, digest_path(Path(folder, path))] for path, _ in extra]
            edits = digest_of(edited) if edited else "as recorded"
            newest = max((max(file_state[1:3]) for file_state in states if file_state), default=0)
            if known is not None and newest < time.time_ns() - SETTLED_NS:
                known.put(package, state, edits)
        _read_packages[package] = f"{os.path.basename(package)} {edits}"
    return _read_packages[package]


# What no model reads: of torch alone, half of its files.
_NEVER_READ = (
    "/METADATA", ".cmake", ".cuh", ".h", ".hpp", ".md", ".pyc", ".pyi", ".rst",
)  # fmt: skip
# Programs; and tasks, of which all that is asked stands in a key.
_ELSEWHERE = ("../", "/", "lm_eval/tasks/")
_CODE = (".py", ".so", ".pyd")


def _state_of(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _unrecorded(recorded: Set[str], place: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Code in a package's folders that no installer put there: it may stand in for what did."""
    for folder in {os.path.dirname(path) for path in recorded if path.endswith(_CODE)} - {""}:
        try:
            names = os.listdir(os.path.join(place, folder))
        except OSError:
            continue
        for name in names:
            path = f"{folder}/{name}"
            if name.endswith(_CODE) and path not in recorded and path not in _all_files(place):
                yield path, _state_of(os.path.join(place, path))


@functools.cache
def _all_files(place: str) -> frozenset[str]:
    """What the records of a folder list: packages share folders."""
    packages = {
        package for (folder, _), of in _owners().items() if folder == place for package in of
    }
    return frozenset(path for package in packages for path, _, _ in _rows(package))


def _edited(path: str, recorded: str, size: str, state: tuple[int, ...] | None) -> str:
    """Digest of a file that is not as recorded; "" for one that is."""
    if state is None:
        return "missing"
    kind, _, digest = recorded.partition("=")
    if kind != "sha256":  # of an old installer
        return digest_path(Path(path))
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    same = base64.urlsafe_b64encode(hasher.digest()).rstrip(b"=").decode() == digest.rstrip("=")
    return "" if same and size in ("", str(state[0])) else hasher.hexdigest()


_read_packages: dict[str, str] = {}


def _package_digest(folder: Path, known: KnownDigests | None) -> str:
    """Digest of a package's Python files; read once while their sizes and times stand still."""
    files = sorted(_python_files(str(folder)))
    listing = hashlib.sha256(repr(files).encode()).digest()
    state = [int.from_bytes(listing[:6], "big"), int.from_bytes(listing[6:12], "big")]
    resolved = str(folder.resolve())
    digest = None if known is None else known.get(resolved, state)
    if not digest:
        whole = hashlib.sha256()
        for name, *_ in files:
            content = digest_path(Path(name), known)
            whole.update(f"{os.path.relpath(name, folder)}\0{content}\n".encode())
        digest = whole.hexdigest()
        if known is not None:
            known.put(resolved, state, digest)
    return digest


def _python_files(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """Every Python file below a folder, with its size and the times of its last changes."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _python_files(entry.path)
            elif entry.name.endswith((".py", ".so")):
                state = entry.stat()
                yield entry.path, state.st_size, state.st_mtime_ns, state.st_ctime_ns
