"""Whether a stored base was asked what the candidate will be asked: seen before a model is loaded.

Token ids are not among it: only a loaded candidate shows them, and pairing looks at every document.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evalguard.core.pairing import pair
from evalguard.core.scores import ScoreTable
from evalguard.engine.choices import Choices
from evalguard.engine.executor import Executor
from evalguard.engine.interrupts import interruptible
from evalguard.engine.sources import BaselineSource
from evalguard.errors import MisalignedRunsError, UsageError, nearest
from evalguard.harness.requests import TaskRequests
from evalguard.harness.scored_answers import requested_documents


def check_stored_requests(base: BaselineSource, executor: Executor, choices: Choices) -> None:
    """Refuse a stored base that answered something else.

    Prompts that a chat template makes are the model's own: of these only the tasks are compared.

    Raises:
        UsageError: for tasks of which it has no scores, with those of which it has.
        MisalignedRunsError: for other documents, prompts, targets or task options.
    """
    tables = {table.task: table for table in sorted(base.run.tables, key=lambda table: table.n)}
    _check_tasks(base, executor, asked=dict.fromkeys((*_tasks_of_base(base), *tables)))
    if executor.chat:
        return
    for task in executor.tasks.names:
        if task in tables:
            with interruptible(f"building the requests of {task}"):
                requests = executor.tasks.requests(task)
            _check_documents(base, tables[task], requests, choices)


def _tasks_of_base(base: BaselineSource) -> list[str]:
    tables = [table.task for table in base.run.tables]
    return [*tables, *(skipped.task for skipped in base.run.not_compared)]


def _check_tasks(base: BaselineSource, executor: Executor, *, asked: dict[str, None]) -> None:
    absent = [task for task in executor.tasks.names if task not in asked]
    if absent:
        shown = ", ".join(absent[:5]) + (f" and {len(absent) - 5} more" if absent[5:] else "")
        raise UsageError(
            f"of the stored base {base.name} ({base.run.path}) no scores of {shown} are kept"
            f"{nearest(absent[0], asked)}",
            hint=f"its tasks: {', '.join(asked) or 'none'}",
        )


def _check_documents(
    base: BaselineSource, table: ScoreTable, requests: TaskRequests, choices: Choices
) -> None:
    """Pair the documents without scores: what forbids it is what would forbid it at the end."""
    asked = requested_documents(requests)
    having = [document for document in asked if document.doc_id in set(table.doc_ids.tolist())]
    # A metric that not every document has is not a sign of other documents.
    documents = having if len(having) == table.n else asked
    unit_weights = np.ones(len(documents))
    bare = replace(table, clusters=(), token_hashes=(), answers=(), cut=(), reading=None)
    expected = replace(
        bare,
        doc_ids=np.array([document.doc_id for document in documents], dtype=np.int64),
        values=np.zeros(len(documents)),
        weights=table.weights
        if len(documents) == table.n or table.weights is None
        else unit_weights,
        doc_hashes=tuple(document.doc_hash for document in documents),
        prompt_hashes=tuple(document.prompt_hash for document in documents),
        target_hashes=tuple(document.target_hash for document in documents),
        asked_hashes=tuple(document.asked_hash for document in documents)
        if table.asked_hashes
        else (),
        run={**requests.run, "rolling_bos": choices.policy.rolling_bos},
        source="this run",
    )
    try:
        pair(bare, expected, allow=choices.allow)
    except MisalignedRunsError as error:
        raise MisalignedRunsError(
            f"the stored base {base.name} ({base.run.path}) was not asked the same: {error}",
            hint=error.hint,
        ) from error
