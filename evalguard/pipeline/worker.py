"""Entry point of a worker process: ``python -m evalguard.pipeline.worker``.

Started by ``evalguard.execution.client``, not by people. The protocol has two pipes of its own;
stdout and stderr are the worker's log, so that nothing a library prints can disturb it.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
from collections.abc import Sequence
from pathlib import Path

from evalguard.execution.server import OpenScorer, serve
from evalguard.scorer import Scorer, ScoringPolicy
from evalguard.settings import Variant


def open_in_process(
    variant: Variant, policy: ScoringPolicy, *, cache_dir: Path, reusable: bool
) -> Scorer:
    """Load a variant in this process."""
    # Not before it is needed: torch takes long to import, and the parent waits for a hello.
    from evalguard.pipeline.loading import open_scorer

    return open_scorer(variant, policy, cache_dir=cache_dir, reusable=reusable)


def main(
    arguments: Sequence[str] | None = None, *, open_scorer: OpenScorer = open_in_process
) -> int:
    """Answer the calls of the parent process until it closes; return the exit code."""
    parser = argparse.ArgumentParser(prog="evalguard.pipeline.worker", description=__doc__)
    parser.add_argument("--requests", type=int, required=True, metavar="FD")
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    parser.add_argument("--beat", type=float, default=1.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    serve(options.requests, options.replies, open_scorer, beat=options.beat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
