"""Where a model runs: in this process, or in a worker of its own."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.core.ray_plan import RayPlan
from evalguard.core.scorer import Scorer, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.loading.foreign_code import needs_worker
from evalguard.engine.loading.load_scorer import load_scorer as open_here
from evalguard.engine.loading.own_environment import prepare_worker
from evalguard.engine.loading.serving import with_lease, with_server
from evalguard.errors import WorkerError
from evalguard.store.atomic_files import safe_name
from evalguard.store.fact_cache import FileDigests, open_facts
from evalguard.worker.client import StartWorker, WorkerScorer, start_here
from evalguard.worker.ray_cluster import open_cluster

if TYPE_CHECKING:
    from evalguard.config.options import CompareOptions


def open_scorer(
    variant: Variant, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
) -> Scorer:
    """Load a variant where it has to run.

    A variant with ``env`` or ``call`` settings, or with a checkpoint's own code, needs a process of
    its own: libraries read their environment when they are imported, and such code may patch what
    the next model would use too.

    Raises:
        EvaluationError: if the model cannot be loaded or a setting did not take, or its server
            cannot be started.
    """
    variant, lease = with_server(variant, cache_dir)
    try:
        scorer = _open_asking(variant, policy, options, cache_dir=cache_dir)
    except BaseException:
        if lease is not None:
            lease.release()
        raise
    return with_lease(scorer, lease)


def _open_asking(
    variant: Variant, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
) -> Scorer:
    """Load a variant whose server runs, where it has one."""
    if not needs_worker(variant, options):
        known = FileDigests(open_facts(cache_dir)) if options.use_cache else None
        return open_here(variant, policy, cache_dir=cache_dir, known=known)
    worker_place = prepare_worker(variant, cache_dir)
    start = partial(
        WorkerScorer,
        worker_place.variant,
        policy,
        cache_dir=cache_dir,
        env=worker_place.env,
        python=worker_place.python,
        call_timeout=options.timeout,
        remember=options.use_cache,
        start=worker_starter(options),
        log=cache_dir / "logs" / f"worker-{os.getpid()}-{safe_name(variant.name)}.log",
    )
    try:
        return start()
    except WorkerError as error:
        if error.cause != "lost":
            raise
        return start()  # on another machine of the cluster


def worker_starter(options: CompareOptions) -> StartWorker:
    """What starts workers: this machine, or a cluster, which is connected where it is not yet.

    Raises:
        UsageError, EvaluationError: the cluster cannot be used.
    """
    if not options.execution:
        return start_here
    return open_cluster(RayPlan.parse(options.execution)).start_worker
