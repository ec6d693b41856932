"""Digests of the files and the code that a model is loaded from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evalguard.conversion.digests import KnownDigests, digest_model, digest_path
from evalguard.conversion.installed_packages import (
    BESIDE,
    LIBRARIES,
    digest_environment,
    digest_packages,
)
from evalguard.conversion.planning import ConversionPlan
from evalguard.core.settings import Value, Variant, digest_of
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import split_revision
from evalguard.models.model_folders import hub_snapshot
from evalguard.run.loading.foreign_code import brings_code, digest_foreign_code
from evalguard.run.loading.library_patches import list_patches
from evalguard.run_token import RUN_KEY

# The hub takes larger files into its own store only (documented limit: 10 MB).
_LARGEST_IN_GIT = 20_000_000


def digest_weights(
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
    for name in _DIGESTED:
        source = model_args.get(name)
        if not isinstance(source, str) or not source:
            continue
        if Path(source).expanduser().exists():
            weights[name] = digest_model(Path(source).expanduser(), known)
        elif name == "pretrained" and variant.model in HF_TYPES:
            revision = str(model_args.get("revision") or "main")
            weights[name] = _hub_commit(
                source, revision, str(model_args.get("subfolder") or ""), known
            )
        elif name != "tokenizer":
            weights[name] = None
        elif commit := _hub_commit(source, "main", "", known):
            weights["tokenizer's commit"] = commit  # rules that are no code are in the identity
    for name, place in _other_files(model_args):
        weights[name] = digest_model(place, known)
    for checkpoint in checkpoints:
        source, revision = split_revision(checkpoint)
        folder = Path(source).expanduser()
        digest = digest_model(folder, known) if folder.exists() else None
        weights[f"weights:{checkpoint}"] = digest or _hub_commit(source, revision, "", known)
    if "pretrained" not in weights or None in weights.values():
        return None
    return weights


_DIGESTED = ("pretrained", "peft", "delta", "tokenizer")


def _other_files(model_args: Mapping[str, Value]) -> Iterator[tuple[str, Path]]:
    """Other arguments that name files or folders here, as ``gguf_file`` does."""
    for name, value in sorted(model_args.items()):
        if name not in _DIGESTED and isinstance(value, str) and os.sep in value:
            place = Path(value).expanduser()
            try:
                found = place.is_file() or place.is_dir()
            except OSError:  # too long to be a path
                continue
            if found:
                yield name, place


def _hub_commit(
    source: str, revision: str, subfolder: str, known: KnownDigests | None
) -> str | None:
    """A hub model by its commit, which stands for its files; None if it is not here."""
    snapshot = hub_snapshot(source, revision, subfolder)
    return None if snapshot is None else f"{source}@{snapshot.name}{_local_edits(snapshot, known)}"


def _local_edits(snapshot: Path, known: KnownDigests | None) -> str:
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


def digest_code(
    variant: Variant, wanted: ConversionPlan, known: KnownDigests | None = None
) -> dict[str, str]:
    """Digests of the libraries that a variant runs, what has patched them, and code of others.

    Raises:
        UsageError: an input of that code is not there.
    """
    patches = {} if brings_code(variant, wanted) else _digest_patches()
    foreign = digest_foreign_code(variant, wanted)
    every = foreign and RUN_KEY not in foreign  # it may import any package
    libraries = (
        digest_environment(known) if every else digest_packages((*LIBRARIES, *BESIDE), known)
    )
    return {**libraries, **patches, **foreign}


def _digest_patches() -> dict[str, str]:
    return {f"{PATCH_PREFIX}{file}": digest for file, digest in list_patches().items()}


# Files that patch a library: loading a model imports what is found to be patched.
PATCH_PREFIX = "in place of a library's: "
