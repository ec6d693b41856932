"""Which floor belongs to which model, task and environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalguard.core.comparison import Comparison
from evalguard.core.scorer import ModelDescription
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value, digest_of

# Of a score's identity, what makes the model; the rest is how and where it computes.
_MODEL_KEYS = ("model", "weights", "tokenizer", "code", "settings", "dtype")
# model_args that say how or where to compute, or that the effective dtype stands for.
_VARIED_KEYS = frozenset({"attn_implementation", "device", "dtype"})
_COMPUTING_PACKAGES = ("torch", "transformers")


def floor_model_key(description: ModelDescription) -> str:
    """Digest of what makes a model's scores, but for what a floor varies; "" if unproven."""
    identity = description.identity
    if identity is None:
        return ""
    arguments = identity.get("model_args")
    kept = arguments if isinstance(arguments, Mapping) else {}
    return digest_of(
        {
            **{name: identity.get(name) for name in _MODEL_KEYS},
            "model_args": {k: v for k, v in kept.items() if k not in _VARIED_KEYS},
        }
    )


def floor_environment(description: ModelDescription) -> dict[str, Value]:
    """What rounding depends on: device, dtype, torch's switches, the packages that compute."""
    packages = description.environment.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    identity = description.identity or {}
    return {
        "device": description.environment.get("device") or description.device,
        "dtype": description.dtype,
        "arithmetic": identity.get("arithmetic"),
        **{name: versions.get(name) for name in _COMPUTING_PACKAGES},
    }


def floor_task_keys(tables: Sequence[ScoreTable]) -> dict[str, str]:
    """Digest per task of its first document, prompt and target, which all its metrics share.

    The number of documents is not a part of it: a floor measured on a few counts for all.
    """
    first: dict[str, ScoreTable] = {}
    for table in tables:
        if table.n and (table.task not in first or table.doc_ids[0] < first[table.task].doc_ids[0]):
            first[table.task] = table
    return {task: _task_key(table) for task, table in first.items()}


def floor_group_keys(keys: Mapping[str, str], comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Digest of the tasks in each group whose aggregate was compared, from theirs."""
    return {
        aggregate.task: digest_of([keys[task] for task in aggregate.subtasks])
        for aggregate in comparisons
        if aggregate.subtasks and all(task in keys for task in aggregate.subtasks)
    }


def _task_key(table: ScoreTable) -> str:
    hashes = (table.doc_hashes[0], table.prompt_hashes[0], table.target_hashes[0])
    return digest_of([table.task, *hashes, table.run.get("generation_kwargs")])
