"""Digests of the files that a model is loaded from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evalguard.conversion.digests import KnownDigests, digest_path
from evalguard.models.arguments import HF_TYPES
from evalguard.models.weights import hub_commit
from evalguard.settings import Value, Variant


def weights_of(
    variant: Variant, model_args: Mapping[str, Value], known: KnownDigests | None = None
) -> dict[str, Value] | None:
    """Digests of a model's files, which need not be loaded; None where they prove nothing.

    Args:
        known: digests of big files from earlier runs.
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
            commit = hub_commit(source, revision, str(model_args.get("subfolder") or ""))
            weights[name] = f"{source}@{commit}" if commit else None
        elif name != "tokenizer":  # the tokenizer's own digest is in the identity
            weights[name] = None
    if "pretrained" not in weights or None in weights.values():
        return None
    return weights
