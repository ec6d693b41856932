"""Entry point of a worker process: ``python -m evalguard.engine.worker_main``.

Started by ``evalguard.worker.client``, not by people. The protocol has two pipes of its own;
stdout and stderr are the worker's log, so that nothing a library prints can disturb it.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
from collections.abc import Sequence
from pathlib import Path

from evalguard import tools
from evalguard.core.scorer import Scorer
from evalguard.garbage import freeze_gc_at_exit, raise_gc_threshold
from evalguard.worker.messages import Load
from evalguard.worker.process_family import dump_stack_on_signal
from evalguard.worker.server import OpenScorer, serve_scorer


def load_in_process(load: Load) -> Scorer:
    """Load a variant in this process."""
    # Not before it is needed: torch takes long to import, and the parent waits for a hello.
    from evalguard.engine.loading.own_environment import is_runtime
    from evalguard.engine.loading.runtime_in_worker import load_runtime_scorer
    from evalguard.store.fact_cache import FileDigests, open_facts

    cache_dir = Path(load.cache_dir)
    known = FileDigests(open_facts(cache_dir)) if load.remember else None
    if is_runtime(load.variant):
        return load_runtime_scorer(load.variant, load.policy, known=known)
    if load.traced:
        traced: Scorer = tools.fetch("load_traced")(load)
        return traced
    from evalguard.engine.loading.load_scorer import load_scorer

    return load_scorer(
        load.variant, load.policy, cache_dir=cache_dir, known=known, reusable=load.reusable
    )


def main(
    arguments: Sequence[str] | None = None,
    *,
    open_scorer: OpenScorer = load_in_process,
) -> int:
    """Answer the calls of the parent process until it closes; return the exit code."""
    parser = argparse.ArgumentParser(prog="evalguard.engine.worker_main", description=__doc__)
    parser.add_argument("--requests", type=int, required=True, metavar="FD")
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    parser.add_argument("--beat", type=float, default=1.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    dump_stack_on_signal()
    serve_scorer(options.requests, options.replies, open_scorer, beat=options.beat)
    return 0


if __name__ == "__main__":
    raise_gc_threshold()
    try:
        sys.exit(main())
    finally:
        freeze_gc_at_exit()
