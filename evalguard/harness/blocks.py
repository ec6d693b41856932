"""Blocks: requests cut into pieces of whole documents, of similar length among themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from evalguard.scorer import Request, RequestKind
from evalguard.settings import digest_of

_Document = tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole documents of one task, all requests of one kind: the unit of caching and progress.

    ``digest`` covers the requests' full content, so that equal digests mean equal questions.
    """

    index: int
    requests: tuple[Request, ...]
    digest: str
    doc_ids: tuple[int, ...]

    @property
    def kind(self) -> RequestKind:
        """The one kind of all requests."""
        return self.requests[0].kind


def cut_blocks(
    requests: Sequence[Request], lengths: Mapping[int, int], *, size: int, window: int
) -> list[Block]:
    """Cut requests into blocks of ``size`` documents, always at the same places.

    Batches never cross a block, so a block of documents of similar length needs less padding. The
    documents are taken ``window`` at a time in their order, and each window's are sorted by length,
    the longest first: what does not fit into memory shows early. A run over the first documents has
    the whole windows' blocks in common with a run over all of them. Inside a block the documents
    keep their order.

    Args:
        requests: of one task, those of one kind after those of another, by document.
        lengths: of every document, in any unit.
        size, window: numbers of documents.

    Raises:
        ValueError: if a block would have no document.
    """
    if size < 1 or window < 1:
        raise ValueError(f"a block needs at least 1 document, got {size} in a window of {window}")
    blocks: list[Block] = []
    for _, of_kind in groupby(requests, key=lambda request: request.kind):
        documents = [tuple(of) for _, of in groupby(of_kind, key=lambda request: request.doc_id)]
        for start in range(0, len(documents), window):
            for part in _parts(documents[start : start + window], lengths, size):
                blocks.append(_block(len(blocks), part))
    return blocks


def _parts(
    documents: Sequence[_Document], lengths: Mapping[int, int], size: int
) -> Iterator[list[_Document]]:
    """One window's documents in blocks, the longest first."""
    longest_first = sorted(documents, key=lambda document: -lengths[document[0].doc_id])
    for start in range(0, len(documents), size):
        yield sorted(longest_first[start : start + size], key=lambda document: document[0].doc_id)


def _block(index: int, documents: Sequence[_Document]) -> Block:
    requests = tuple(request for document in documents for request in document)
    return Block(
        index=index,
        requests=requests,
        digest=requests_digest(requests),
        doc_ids=tuple(document[0].doc_id for document in documents),
    )


def requests_digest(requests: Sequence[Request]) -> str:
    """Digest of everything that requests ask, as ``Block.digest`` is of a block's."""
    return digest_of([[r.task, r.kind, r.doc_id, r.index, list(r.arguments)] for r in requests])


def text_lengths(requests: Sequence[Request]) -> dict[int, int]:
    """Characters of the longest request of each document; the same for every model."""
    lengths: dict[int, int] = {}
    for request in requests:
        characters = sum(len(part) for part in request.arguments if isinstance(part, str))
        lengths[request.doc_id] = max(characters, lengths.get(request.doc_id, 0))
    return lengths
