"""Digests of the files and the code that a model is loaded from."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evalguard.conversion.code import code_digest, unknown_code
from evalguard.conversion.digests import KnownDigests, digest_path
from evalguard.conversion.planning import ConversionPlan
from evalguard.conversion.sources import read_sources
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import split_revision
from evalguard.models.weights import hub_snapshot
from evalguard.settings import Value, Variant, digest_of

# The hub takes larger files into its own store only (documented limit: 10 MB).
_LARGEST_IN_GIT = 20_000_000


def weights_of(
    variant: Variant,
    model_args: Mapping[str, Value],
    known: KnownDigests | None = None,
    *,
    checkpoints: Sequence[str] = (),
) -> dict[str, Value] | None:
    """Digests of a model's files, which need not be loaded; None where they prove nothing.

    Args:
        known: digests of big files from earlier runs.
        checkpoints: others that settings take weights from, under ``weights:NAME``.
    """
    weights: dict[str, Value] = {}
    for name in ("pretrained", "peft", "delta", "tokenizer"):
        source = model_args.get(name)
        if not isinstance(source, str) or not source:
            continue
        if Path(source).expanduser().exists():
            weights[name] = _folder(Path(source).expanduser(), known)
        elif name == "pretrained" and variant.model in HF_TYPES:
            revision = str(model_args.get("revision") or "main")
            weights[name] = _commit(source, revision, str(model_args.get("subfolder") or ""), known)
        elif name != "tokenizer":  # the tokenizer's own digest is in the identity
            weights[name] = None
    for checkpoint in checkpoints:
        source, revision = split_revision(checkpoint)
        folder = Path(source).expanduser()
        digest = digest_path(folder, known) if folder.exists() else None
        weights[f"weights:{checkpoint}"] = digest or _commit(source, revision, "", known)
    if "pretrained" not in weights or None in weights.values():
        return None
    return weights


def _folder(path: Path, known: KnownDigests | None) -> str:
    """Digest of a model folder, and of weights that its index names and that are hidden in it."""
    digest = digest_path(path, known)
    more = [[name, digest_path(path / name, known)] for name in sorted(set(_hidden(path)))]
    return digest_of([digest, *more]) if more else digest


def _hidden(folder: Path) -> Iterator[str]:
    """Weights that an index names and that a digest of the folder leaves out: hidden ones."""
    for index in folder.glob("*.index.json") if folder.is_dir() else ():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # whoever loads it will say so
        for name in names:
            hidden = any(part.startswith(".") for part in Path(str(name)).parts)
            if hidden and (folder / str(name)).is_file():
                yield str(name)


def _commit(source: str, revision: str, subfolder: str, known: KnownDigests | None) -> str | None:
    """A hub model by its commit, which stands for its files; None if it is not here."""
    snapshot = hub_snapshot(source, revision, subfolder)
    return None if snapshot is None else f"{source}@{snapshot.name}{_edits(snapshot, known)}"


def _edits(snapshot: Path, known: KnownDigests | None) -> str:
    """What was changed by hand in the local copy of a hub's commit, "" if nothing was.

    The hub's cache calls every file by what it downloaded: a large one by its SHA-256, a small one
    by git's name for it.
    """
    edited: list[Value] = []
    for file in sorted(path for path in snapshot.rglob("*") if path.is_file()):
        name, digest = file.resolve().name, digest_path(file, known)
        if name != digest and name != _git_name(file):
            edited.append([file.relative_to(snapshot).as_posix(), digest])
    return f" edited {digest_of(edited)}" if edited else ""


def _git_name(file: Path) -> str:
    """Git's name of a file; "" for one that is too large to be kept in git itself."""
    if file.stat().st_size > _LARGEST_IN_GIT:
        return ""
    content = file.read_bytes()
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


# Packages that models are made of: an engineer edits them in place, and the version stays.
_LIBRARIES = ("transformers", "tokenizers", "lm_eval", "accelerate", "peft")


def code_digests(
    variant: Variant,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    known: KnownDigests | None = None,
) -> dict[str, str] | None:
    """Digests of the code that a variant runs: hooks, a checkpoint's own, the libraries.

    None where what it depends on cannot be known: ``unknown_dependencies`` says what.
    """
    if unknown_dependencies(variant, wanted, model_args):
        return None
    digests = {
        call.function: code_digest(call.function, folder=variant.code_folder)
        for call in wanted.calls
    }
    for file in _remote_code(variant, model_args):
        digests[f"remote code {file.name}"] = read_sources(file, file.parent).digest
    return {**digests, **_libraries(known)}


def unknown_dependencies(
    variant: Variant, wanted: ConversionPlan, model_args: Mapping[str, Value]
) -> tuple[str, ...]:
    """What a variant's code depends on that its text does not tell, each with its place."""
    found: dict[str, None] = {}
    for call in wanted.calls:
        found |= dict.fromkeys(unknown_code(call.function, folder=variant.code_folder))
    for file in _remote_code(variant, model_args):
        found |= dict.fromkeys(read_sources(file, file.parent).unknown)
    return tuple(found)


def _remote_code(variant: Variant, model_args: Mapping[str, Value]) -> Iterator[Path]:
    """Python files of local checkpoints that their configs name, ``OTHER--module.Class`` too."""
    if not variant.trust_remote_code:
        return
    for name in ("pretrained", "tokenizer"):
        folder = Path(str(model_args.get(name) or "")).expanduser()
        if not model_args.get(name) or not folder.is_dir():
            continue
        for config in ("config.json", "tokenizer_config.json", "generation_config.json"):
            for reference in _auto_map(folder / config):
                place, _, module = reference.rpartition("--")
                home = Path(place).expanduser() if place else folder
                file = home / f"{module.partition('.')[0]}.py"
                if file.is_file():
                    yield file


def _auto_map(config: Path) -> Iterator[str]:
    try:
        found = json.loads(config.read_text(encoding="utf-8")).get("auto_map") or {}
    except (OSError, ValueError, AttributeError):
        return
    for value in found.values() if isinstance(found, dict) else ():
        several = value if isinstance(value, list) else [value]
        yield from (one for one in several if isinstance(one, str))


def _libraries(known: KnownDigests | None) -> dict[str, str]:
    """Digests of the Python files of installed libraries, by name; of this process, once.

    What was imported stays what it is, whatever is edited afterwards.
    """
    if _read_libraries:
        return dict(_read_libraries)
    digests = {}
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        for place in () if spec is None else spec.submodule_search_locations or ():
            digests[f"package {name}"] = _package_digest(Path(place), known)
    _read_libraries.update(digests)
    return digests


_read_libraries: dict[str, str] = {}


def _package_digest(folder: Path, known: KnownDigests | None) -> str:
    """Digest of a package's Python files; read once while their sizes and times stand still."""
    files = sorted(_python_files(str(folder)))
    listing = hashlib.sha256(repr(files).encode()).digest()
    state = [int.from_bytes(listing[:6], "big"), int.from_bytes(listing[6:12], "big")]
    place = str(folder.resolve())
    found = None if known is None else known.get(place, state)
    if not found:
        whole = hashlib.sha256()
        for name, *_ in files:
            content = hashlib.sha256(Path(name).read_bytes()).hexdigest()
            whole.update(f"{os.path.relpath(name, folder)}\0{content}\n".encode())
        found = whole.hexdigest()
        if known is not None:
            known.put(place, state, found)
    return found


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
