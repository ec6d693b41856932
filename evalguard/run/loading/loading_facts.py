"""What goes into loading a model: as long as none of it changes, the same model is loaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from evalguard.conversion.building import build
from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.planning import plan_conversion, with_build
from evalguard.core.redaction import is_secret
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.models.checkpoint_files import split_revision
from evalguard.models.model_folders import find_current_commit
from evalguard.run.loading.foreign_code import list_remote_code
from evalguard.run.loading.loaded_files import digest_code, digest_weights
from evalguard.run.loading.own_environment import shares_prefixes
from evalguard.worker.wire_types import VARIANT

# Where the layers go depends on the memory that is free; other loaders bring code of their own.
PLACEMENT_ARGUMENTS = ("parallelize", "tp_plan", "device_map", "gpus", "autogptq", "gptqmodel")


def collect_loading_facts(
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
        None where something stays open: weights that cannot be proven, model types of other
        libraries, a placement by free memory, a hub branch that may have moved.

    Raises:
        EvalguardError: as loading does, for a variant that cannot be planned or built.
    """
    wanted = plan_conversion(variant)
    code_of = list_remote_code(variant, wanted.model_args, wanted.checkpoints)
    if not shares_prefixes(variant) or any(map(_is_elsewhere, code_of)):
        return None
    if any(wanted.model_args.get(name) for name in PLACEMENT_ARGUMENTS):
        return None
    model_args = wanted.model_args
    if variant.build is not None:
        with contextlib.redirect_stdout(sys.stderr):
            model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
    weights = digest_weights(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None or not _has_settled(model_args, weights, wanted.checkpoints):
        return None
    code = digest_code(variant, wanted, known)
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


def _is_elsewhere(reference: str) -> bool:
    """Whether a checkpoint names code that is not on this machine, or that a branch may change."""
    place = reference.rpartition("--")[0]
    return reference == "?" or bool(place and not Path(place).expanduser().is_dir())


def _has_settled(
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
    commit = find_current_commit(source, revision, subfolder)
    return commit is not None and str(digest).split()[0] == f"{source}@{commit}"
