"""Execution: a model in a worker process of its own, behind the Scorer protocol.

``WorkerScorer`` is the parent's side, ``server.serve`` the worker's.
"""

from evalguard.execution.client import WorkerScorer
from evalguard.execution.line import Line
from evalguard.execution.process import kill_workers_of, stuck_workers_of
from evalguard.execution.process_memory import peak_memory

__all__ = ["Line", "WorkerScorer", "kill_workers_of", "peak_memory", "stuck_workers_of"]
