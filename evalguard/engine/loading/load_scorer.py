"""Load a variant in this process: plan, build, load, edit, read back.

The adapters do not know each other; this is where they meet.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from evalguard.conversion.observed_reads import KnownDigests
from evalguard.conversion.planning import plan_conversion
from evalguard.conversion.readback import check_environment
from evalguard.core.scorer import ReassignableScorer, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.loading.edited_model import EditedModel
from evalguard.engine.loading.known_models import LoadPlan
from evalguard.models.loading import load_lm


def load_scorer(
    variant: Variant,
    policy: ScoringPolicy,
    *,
    cache_dir: Path,
    known: KnownDigests | None = None,
    reusable: bool = False,
) -> ReassignableScorer:
    """Load a variant with the settings of its assignment, and prove that every one took.

    Args:
        known: digests of big files from earlier runs; None: every file is read.
        reusable: whether other values are to be assigned to its settings later: weights that
            settings replace are kept for that.

    Raises:
        UsageError: a name or argument that does not exist, or code that is not allowed.
        SettingError: a setting that could not be applied or did not take; an ``env`` setting
            that this process was not started with.
        BuildError: the build recipe failed.
        EvaluationError: the model cannot be loaded.
    """
    from evalguard.models.lm_scorer import LMScorer

    # recipes, hooks and libraries may print; stdout belongs to results
    with contextlib.redirect_stdout(sys.stderr):
        check_environment(plan_conversion(variant).env)
        wanted = LoadPlan.of(variant, cache_dir=cache_dir, known=known)
        lm = load_lm(
            variant.model,
            wanted.model_args,
            wanted.plan.config_overrides,
            policy,
            trust_remote_code=variant.trust_remote_code,
            allow_pickle=variant.allow_pickle,
        )
        model = EditedModel(
            lm=lm,
            wanted=wanted,
            policy=policy,
            cache_dir=cache_dir,
            known=known,
        )
        if reusable:
            model.note()
        return LMScorer(
            lm,
            policy,
            model_type=variant.model,
            model_args=wanted.model_args,
            assigned=model.carry(wanted),
            reassigning=model.reassigned if reusable else None,
        )
