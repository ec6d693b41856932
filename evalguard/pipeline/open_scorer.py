"""Where a model runs: in this process, or in a worker of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from evalguard.conversion import plan
from evalguard.execution import WorkerScorer
from evalguard.pipeline.loading import open_scorer as open_here
from evalguard.pipeline.options import CompareOptions
from evalguard.scorer import Scorer, ScoringPolicy
from evalguard.settings import Variant
from evalguard.store import safe_name


class Opener(Protocol):
    """Loads a variant, as ``open_scorer`` does."""

    def __call__(
        self, variant: Variant, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
    ) -> Scorer: ...


def open_scorer(
    variant: Variant, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
) -> Scorer:
    """Load a variant where it has to run.

    A variant with ``env`` or ``call`` settings needs a process of its own: libraries read their
    environment when they are imported, and a hook may patch what the next model would use too.

    Raises:
        EvaluationError: if the model cannot be loaded or a setting did not take.
    """
    needs = plan(variant)
    if options.worker != "always" and not needs.needs_worker:
        return open_here(variant, policy, cache_dir=cache_dir)
    return WorkerScorer(
        variant,
        policy,
        cache_dir=cache_dir,
        env=needs.env,
        call_timeout=options.timeout,
        log=cache_dir / "logs" / f"worker-{os.getpid()}-{safe_name(variant.name)}.log",
    )
