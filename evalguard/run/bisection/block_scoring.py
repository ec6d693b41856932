"""Blocks of documents, as a comparison cut them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.settings import digest_of
from evalguard.harness.document_subset import documents_of
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests

CutBlocks = Callable[[TaskRequests], list[RequestBlock]]
DocumentParts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentBlock:
    """Documents that are answered together: one block, or one for each kind of request.

    Attributes:
        documents: (k,) rows of the base's table.
        doc_ids: of all documents of the blocks, with or without a value in that table.
        blocks: places of its blocks among all blocks of the task.
        digest: of what is asked.
    """

    documents: NDArray[np.intp]
    doc_ids: tuple[int, ...]
    blocks: tuple[int, ...]
    digest: str


def cut_as_compared(
    requests: TaskRequests, cut: CutBlocks, parts: DocumentParts
) -> list[RequestBlock]:
    """Cut requests as compare did.

    Args:
        parts: doc_ids that a sequential run asked look by look; (): all were asked at once.
    """
    if not parts:
        return cut(requests)
    return [block for part in parts for block in cut(documents_of(requests, part))]


def join_document_blocks(
    blocks: Sequence[RequestBlock], rows: Sequence[int]
) -> tuple[DocumentBlock, ...]:
    """Put together the blocks that share documents; a task may ask in several kinds of requests.

    Args:
        rows: doc_ids of the base's table, in its order.

    Returns:
        Every row in one of them; blocks without any row are left out.
    """
    row_of = {doc_id: row for row, doc_id in enumerate(rows)}
    found = []
    for places in _connected_places([block.doc_ids for block in blocks]):
        doc_ids = tuple(sorted({doc_id for place in places for doc_id in blocks[place].doc_ids}))
        documents = [row_of[doc_id] for doc_id in doc_ids if doc_id in row_of]
        if documents:
            digests = [blocks[place].digest for place in places]
            found.append(
                DocumentBlock(
                    documents=np.array(documents, dtype=np.intp),
                    doc_ids=doc_ids,
                    blocks=tuple(places),
                    digest=digests[0] if len(digests) == 1 else digest_of(digests),
                )
            )
    return tuple(found)


def _connected_places(members: Sequence[Sequence[int]]) -> list[list[int]]:
    """Places whose members overlap, directly or through others; in order of the first."""
    group_of: dict[int, list[int]] = {}
    groups: list[list[int]] = []
    for place, ids in enumerate(members):
        met = {id(group): group for one in ids if (group := group_of.get(one)) is not None}
        merged = [*sorted(other for group in met.values() for other in group), place]
        groups = [group for group in groups if id(group) not in met] + [merged]
        for one in (one for other in merged for one in members[other]):
            group_of[one] = merged
    return sorted(groups)
