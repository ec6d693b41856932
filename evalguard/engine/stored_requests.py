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
    tables = {table.task: table for table in sorted(base.run.tables, key=lambda one: one.n)}
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
    return [*tables, *(left.task for left in base.run.not_compared)]


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
    having = [one for one in asked if one.doc_id in set(table.doc_ids.tolist())]
    # A metric that not every document has is not a sign of other documents.
    told = having if len(having) == table.n else asked
    ones = np.ones(len(told))
    bare = replace(table, clusters=(), token_hashes=(), answers=(), cut=(), reading=None)
    other = replace(
        bare,
        doc_ids=np.array([one.doc_id for one in told], dtype=np.int64),
        values=np.zeros(len(told)),
        weights=table.weights if len(told) == table.n or table.weights is None else ones,
        doc_hashes=tuple(one.doc_hash for one in told),
        prompt_hashes=tuple(one.prompt_hash for one in told),
        target_hashes=tuple(one.target_hash for one in told),
        asked_hashes=tuple(one.asked_hash for one in told) if table.asked_hashes else (),
        run={**requests.run, "rolling_bos": choices.policy.rolling_bos},
        source="this run",
    )
    try:
        pair(bare, other, allow=choices.allow)
    except MisalignedRunsError as error:
        raise MisalignedRunsError(
            f"the stored base {base.name} ({base.run.path}) was not asked the same: {error}",
            hint=error.hint,
        ) from error
