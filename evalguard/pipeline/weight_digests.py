"""Digests of the files and the code that a model is loaded from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from evalguard.conversion.code import code_digest
from evalguard.conversion.digests import KnownDigests, digest_path
from evalguard.conversion.planning import ConversionPlan
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
            weights[name] = digest_path(Path(source).expanduser(), known)
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


def code_digests(variant: Variant, wanted: ConversionPlan) -> dict[str, str]:
    """Digests of the functions that a variant's settings call."""
    return {
        call.function: code_digest(call.function, folder=variant.code_folder)
        for call in wanted.calls
    }
