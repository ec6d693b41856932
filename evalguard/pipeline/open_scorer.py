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
from evalguard.store import FileDigests, open_facts, safe_name


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
    if not needs_worker(variant, options):
        known = FileDigests(open_facts(cache_dir)) if options.use_cache else None
        return open_here(variant, policy, cache_dir=cache_dir, known=known)
    return WorkerScorer(
        variant,
        policy,
        cache_dir=cache_dir,
        env=needs.env,
        call_timeout=options.timeout,
        log=cache_dir / "logs" / f"worker-{os.getpid()}-{safe_name(variant.name)}.log",
    )


def needs_worker(variant: Variant, options: CompareOptions) -> bool:
    """Whether a variant is to run in a process of its own."""
    return options.worker == "always" or plan(variant).needs_worker
