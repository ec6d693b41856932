"""The documents that a task's requests ask about, as all models see them, before any answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from evalguard.harness.asked_document import AskedDocument, asked_document
from evalguard.harness.requests import TaskRequests
from evalguard.harness.surroundings import lm_eval_surroundings, task_code
from evalguard.scorer import Request


def asked_documents(task_requests: TaskRequests) -> tuple[AskedDocument, ...]:
    """Hash every document once; what was made for one model serves all whose requests are the same.

    Raises:
        EvaluationError: if the task's own code fails on a document.
    """
    with lm_eval_surroundings():
        return tuple(_asked(task_requests))


def _asked(task_requests: TaskRequests) -> Iterator[AskedDocument]:
    known, task = task_requests.asked, task_requests.lm_eval_task
    requests: dict[int, list[Request]] = defaultdict(list)
    for request in task_requests.requests:
        requests[request.doc_id].append(request)
    in_order = sorted(task_requests.instances, key=lambda instance: instance.idx)
    firsts = {instance.doc_id: instance for instance in reversed(in_order)}
    for doc_id, doc in task_requests.documents.items():
        asked, own = known.get(doc_id), tuple(requests[doc_id])
        if asked is None or asked.doc is not doc or asked.requests != own:
            with task_code(f"task '{task_requests.task}': its own code fails on document {doc_id}"):
                asked = asked_document(task, doc, firsts[doc_id], own)
            known[doc_id] = asked
        yield asked
