"""Some of a task's documents, asked exactly as in a run over all of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from evalguard.harness.requests import TaskRequests


def random_subset(requests: TaskRequests, size: int, *, seed: int) -> TaskRequests:
    """Return the requests of ``size`` documents, drawn at random without replacement.

    Requests are picked after lm-eval has built all of them. Its own ``samples`` would number the
    documents anew from 0 (and, given unsorted, mislabel them), and its few-shot sampler, which goes
    through the documents in turn, would give them other examples than the whole run does.

    Args:
        requests: of all documents.
        size: documents to keep; all of them are kept where there are no more.
        seed: the same seed draws the same documents of tasks with equally many.

    Returns:
        Requests with lm-eval's doc_ids, ascending; ``run`` says how many documents there are.
    """
    if size >= requests.n_documents:
        return requests
    drawn = np.random.default_rng(seed).choice(requests.n_documents, size=size, replace=False)
    part = documents_of(requests, [requests.doc_ids[position] for position in drawn.tolist()])
    return replace(part, drawn_from=0, run={**requests.run, "limit": size})


def documents_of(requests: TaskRequests, doc_ids: Collection[int]) -> TaskRequests:
    """Return the requests of some documents, asked exactly as among all of them.

    Args:
        requests: of all documents.
        doc_ids: lm-eval's, in any order; each is one of ``requests``.

    Returns:
        Requests with these documents, ascending, which know how many they were drawn from;
        everything else is that of all documents.
    """
    kept = frozenset(doc_ids)
    return replace(
        requests,
        doc_ids=tuple(doc_id for doc_id in requests.doc_ids if doc_id in kept),
        requests=tuple(r for r in requests.requests if r.doc_id in kept),
        drawn_from=requests.drawn_from or requests.n_documents,
        instances=tuple(i for i in requests.instances if i.doc_id in kept),
        documents={key: value for key, value in requests.documents.items() if key in kept},
    )
