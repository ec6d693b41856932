"""Documents of a task that no comparison of these models has scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from evalguard.errors import UsageError
from evalguard.harness.requests import RenderChat, TaskRequests
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks
from evalguard.run.loading.task_code import note_task_code
from evalguard.run.tracing.moved_documents import MovedDocuments
from evalguard.run.tracing.traced_documents import DocumentChoice, RequestedSequence


def choose_first(
    tasks: Sequence[str],
    options: TaskOptions,
    choice: DocumentChoice,
    *,
    render_chat: RenderChat | None,
) -> MovedDocuments:
    """Return the first documents of the first task, or those that are named.

    Raises:
        UsageError: a document that the task does not have.
        EvaluationError: the task cannot be loaded.
    """
    loaded = load_tasks(tasks[:1], options=replace(options, limit=_least_limit(choice)))
    note_task_code(loaded.executed)
    name = loaded.names[0]
    requests = loaded.requests(name, render_chat=render_chat)
    ids = choice.ids or requests.doc_ids[: choice.limit]
    missing = [one for one in ids if one not in requests.doc_ids]
    if missing:
        raise UsageError(
            f"--documents {missing[0]}: task {name} has no such document",
            hint=f"it has {requests.n_total}, from 0 to {requests.n_total - 1}",
        )
    first: dict[int, RequestedSequence] = {}
    for one in _named_requests(requests):
        assert one.request is not None
        first.setdefault(one.request.doc_id, one)
    kept = tuple(first[one] for one in ids[: choice.limit])
    which = f"{len(kept)} of {name}" + (" named" if choice.ids else ", its first ones")
    return MovedDocuments(sequences=kept, chosen=which)


def _least_limit(choice: DocumentChoice) -> float:
    return max((*choice.ids, choice.limit - 1)) + 1


def _named_requests(requests: TaskRequests) -> Iterator[RequestedSequence]:
    for request in requests.requests:
        yield RequestedSequence(name=f"{request.task} {request.doc_id}", request=request)
