"""lm-eval's tasks: their requests as plain data, and their scores as ScoreTables."""

from evalguard.harness.asked_documents import asked_documents
from evalguard.harness.blocks import Block, BlockCut, requests_digest
from evalguard.harness.options import TaskOptions
from evalguard.harness.requests import TaskRequests
from evalguard.harness.tables import TaskScores, score_tables
from evalguard.harness.tasks import TaskSet, load_tasks, task_names

__all__ = [
    "Block",
    "BlockCut",
    "TaskOptions",
    "TaskRequests",
    "TaskScores",
    "TaskSet",
    "asked_documents",
    "load_tasks",
    "requests_digest",
    "score_tables",
    "task_names",
]
