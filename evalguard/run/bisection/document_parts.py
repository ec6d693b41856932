"""In which parts a comparison asked its documents: all at once, or look by look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests
from evalguard.run.bisection.block_scoring import (
    CutBlocks,
    DocumentParts,
    cut_as_compared,
)
from evalguard.run.sample_size.sequential import TURN_GROWTH
from evalguard.stats.sequential.looks import FACTOR, document_order, planned_looks


def find_document_parts(
    requests: TaskRequests,
    cut: CutBlocks,
    doc_ids: Sequence[int],
    *,
    seed: int,
    is_kept: Callable[[RequestBlock], bool],
) -> DocumentParts | None:
    """Find out in which parts a run that may have stopped early asked its documents.

    How far it got is in its scores; of the looks that may have led there, those were taken whose
    blocks are all kept.

    Args:
        doc_ids: that were scored in the end.
        seed: of the documents' order.
        is_kept: whether the answers of one of the compared models to a block are kept.

    Returns:
        The parts, () for all documents at once; None where nothing proves any.
    """
    for parts in _possible_parts(requests, frozenset(doc_ids), seed):
        if all(is_kept(block) for block in cut_as_compared(requests, cut, parts)):
            return parts
    return None


def _possible_parts(
    requests: TaskRequests, scored: frozenset[int], seed: int
) -> Iterator[DocumentParts]:
    order = document_order(requests.doc_ids, task=requests.task, seed=seed)
    if len(scored) == len(order):
        yield ()
    for factor in (FACTOR, TURN_GROWTH):
        looks = planned_looks(len(order), factor=factor)
        # From any look on, all that is left may have been asked at once.
        reached = [looks[:at] for at in range(1, len(looks) + 1)]
        for ends in [*reached, *((*before, len(order)) for before in ((), *reached))]:
            if frozenset(order[: ends[-1]]) == scored:
                yield _split_documents(order, ends)


def _split_documents(order: Sequence[int], ends: Sequence[int]) -> DocumentParts:
    return [order[start:end] for start, end in zip((0, *ends), ends, strict=False) if start < end]
