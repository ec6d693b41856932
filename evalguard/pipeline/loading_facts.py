"""What goes into loading a model: as long as none of it changes, the same model is loaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from evalguard.conversion.building import build
from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.planning import plan, with_build
from evalguard.execution.wire import VARIANT
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import split_revision
from evalguard.models.weights import current_commit
from evalguard.pipeline.weight_digests import code_digests, weights_of
from evalguard.redaction import is_secret
from evalguard.scorer import ScoringPolicy
from evalguard.settings import Value, Variant

# Where the layers go depends on the memory that is free; other loaders bring code of their own.
UNSETTLED = ("parallelize", "tp_plan", "device_map", "gpus", "autogptq", "gptqmodel")


def loading_facts(
    variant: Variant,
    policy: ScoringPolicy,
    *,
    cache_dir: Path,
    surroundings: Mapping[str, Value],
    worker: bool,
    known: KnownDigests | None = None,
) -> dict[str, Value] | None:
    """Everything that decides what is loaded for a variant; ``weights`` and ``code`` are digests.

    A build recipe is run if its output is not there yet: loading would need it too.

    Args:
        surroundings: machine, packages and environment.
        worker: whether the model gets a process of its own.
        known: digests of big files from earlier runs.

    Returns:
        None where something stays open: weights or code that cannot be proven, remote code, model
        types of other libraries, a placement by free memory, a hub branch that may have moved.

    Raises:
        EvalguardError: as loading does, for a variant that cannot be planned or built.
    """
    if variant.model not in HF_TYPES or variant.trust_remote_code:
        return None
    wanted = plan(variant)
    if any(wanted.model_args.get(name) for name in UNSETTLED):
        return None
    model_args = wanted.model_args
    if variant.build is not None:
        with contextlib.redirect_stdout(sys.stderr):
            model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
    weights = weights_of(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None or not _settled(model_args, weights, wanted.checkpoints):
        return None
    code = code_digests(variant, wanted, model_args, known)
    if code is None:
        return None
    told: Value = VARIANT.encode(variant)
    assert isinstance(told, dict)
    told.pop("name", None)
    # Only here are secrets no part of a model: what a setting is called says nothing of its value.
    told["model_args"] = {k: v for k, v in variant.model_args.items() if not is_secret(k)}
    return {
        "variant": told,
        "policy": asdict(policy),
        "weights": weights,
        "code": dict(code),
        "surroundings": dict(surroundings),
        "worker": worker,
    }


def _settled(
    model_args: Mapping[str, Value], weights: Mapping[str, Value], checkpoints: Sequence[str]
) -> bool:
    """Whether names of hub models stand for the files that loading would take now."""
    tokenizer = model_args.get("tokenizer")
    if isinstance(tokenizer, str) and tokenizer and "tokenizer" not in weights:
        return False  # another repository, whose commit is not looked at
    revision = str(model_args.get("revision") or "main")
    subfolder = str(model_args.get("subfolder") or "")
    named = [("pretrained", (str(model_args["pretrained"]), revision), subfolder)]
    named += [(f"weights:{one}", split_revision(one), "") for one in checkpoints]
    return all(
        _is_current(source, at, inside, weights[name]) for name, (source, at), inside in named
    )


def _is_current(source: str, revision: str, subfolder: str, digest: Value) -> bool:
    if Path(source).expanduser().exists():
        return True
    commit = current_commit(source, revision, subfolder)
    return commit is not None and str(digest).split()[0] == f"{source}@{commit}"
