"""Where a model's files lie, which a recipe may have made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evalguard.conversion.building import find_build
from evalguard.conversion.planning import plan_conversion, with_build
from evalguard.core.settings import Value, Variant
from evalguard.engine.loading.own_environment import is_runtime
from evalguard.errors import EvaluationError


def find_built_arguments(variant: Variant, cache_dir: Path) -> Mapping[str, Value]:
    """model_args of a variant, with what its recipe has made in its place.

    Raises:
        SettingError: settings that cannot be planned.
        EvaluationError: what its recipe made is not there (any more).
    """
    plan = plan_conversion(variant)
    if variant.build is None:
        return plan.model_args
    if is_runtime(variant) and variant.environment is not None:
        from evalguard.worker.environments import prepare_worker_interpreter, worker_variables

        own = prepare_worker_interpreter(
            variant.environment, plan.packages, cache_dir, name=variant.name
        )
        env = {**worker_variables(cache_dir), **plan.env}
        made = find_build(variant, plan, cache_dir, python=own.python, variables=env)
    elif is_runtime(variant):
        made = find_build(variant, plan, cache_dir, variables=dict(plan.env))
    else:
        made = find_build(variant, plan, cache_dir)
    if made is None:
        raise EvaluationError("what its recipe built is not kept")
    return with_build(plan.model_args, str(made))
