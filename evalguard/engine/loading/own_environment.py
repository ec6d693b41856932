"""Models that run outside evalguard's environment, or outside lm-eval."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.conversion.planning import plan_conversion, with_build
from evalguard.core.settings import Variant
from evalguard.errors import UsageError
from evalguard.models.arguments import CLIENT_TYPES, HF_TYPES
from evalguard.models.runtimes.types import RUNTIME_TYPES, RuntimeType, describe_installation

EDIT_KINDS = ("attr", "dtype", "call")
UNSUPPORTED = ("weights", "module", "generation", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Where a variant's worker runs.

    Attributes:
        variant: with what its recipe built in its place.
        python: the worker's interpreter.
        env: changes to its environment.
    """

    variant: Variant
    python: str
    env: Mapping[str, str | None]


def is_runtime(variant: Variant) -> bool:
    """Whether a variant is loaded by one of evalguard's runtimes, in a worker."""
    own_environment = variant.environment is not None and variant.serve is None
    return variant.model in RUNTIME_TYPES or own_environment


def asks_server(variant: Variant) -> bool:
    """Whether a variant is a client of a server: it computes nothing, and needs no process."""
    return variant.model in CLIENT_TYPES and not plan_conversion(variant).needs_worker


def shares_prefixes(variant: Variant) -> bool:
    """Whether a variant may be scored by the fast Hugging Face path, which shares prefixes."""
    return variant.model in HF_TYPES and variant.environment is None


def shows_distributions(variant: Variant) -> bool:
    """Whether a variant's type shows whole distributions."""
    return variant.model in HF_TYPES or is_runtime(variant)


def check_runtime(variant: Variant) -> None:
    """Refuse, before anything is scored, a model that cannot run where it is to run.

    Raises:
        UsageError: its package is not here, its interpreter is none, or its type has no runtime.
    """
    if not is_runtime(variant):
        return
    kind = find_runtime_type(variant)
    own = variant.environment
    if own is not None:
        from evalguard.worker.environments import find_python

        find_python(own.python)
    elif kind.missing:
        raise UsageError(
            f"model type '{variant.model}' needs {', '.join(kind.missing)}, which is not installed "
            "here",
            hint=describe_installation(kind.requirements),
        )


def find_runtime_type(variant: Variant) -> RuntimeType:
    model_type = "transformers" if variant.model in HF_TYPES else variant.model
    if model_type not in RUNTIME_TYPES:
        raise UsageError(
            f"model type '{variant.model}' runs in evalguard's own environment only",
            hint="leave out python and requirements, or use one of: hf, "
            + ", ".join(name for name in RUNTIME_TYPES if name != "transformers"),
        )
    return RUNTIME_TYPES[model_type]


def prepare_worker(variant: Variant, cache_dir: Path) -> WorkerPlace:
    """Make the environment of a variant, and build it there, if that is not done yet.

    Raises:
        EvalguardError: as ``prepare_interpreter`` and ``build``.
    """
    plan = plan_conversion(variant)
    if not is_runtime(variant):
        return WorkerPlace(variant=variant, python=sys.executable, env=plan.env)
    python, env = sys.executable, dict(plan.env)
    if variant.environment is not None:
        from evalguard.worker.environments import prepare_worker_interpreter, worker_variables

        interpreter = prepare_worker_interpreter(
            variant.environment, plan.packages, cache_dir, name=variant.name
        )
        python, env = interpreter.python, {**worker_variables(cache_dir), **env}
    if variant.build is not None:
        from evalguard.conversion.building import build

        with contextlib.redirect_stdout(sys.stderr):
            made = build(variant, plan, cache_dir, python=python, variables=env)
        variant = replace(variant, model_args=with_build(variant.model_args, str(made)))
    return WorkerPlace(variant=variant, python=python, env=env)
