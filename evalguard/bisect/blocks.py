"""Blocks: the one order in which documents are asked, cut where a measurement may pause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.bisect.oracle import Floats, Indices

MOST_BLOCKS = 16
FEWEST_DOCUMENTS = 16  # in a block: fewer show no variance


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Documents in the order in which they are asked; every measurement is a prefix of it.

    Attributes:
        order: (n_documents,) indices.
        ends: (n_blocks,) lengths of the prefixes at which a measurement may pause; the last is
            n_documents.
        lumpiness: variance of the candidate's drift among documents that stand in for each other,
            which is how unevenly it falls into the blocks.
    """

    order: Indices
    ends: tuple[int, ...]
    lumpiness: float

    def up_to(self, share: float) -> int:
        """Length of the shortest prefix that holds this share of the documents."""
        wanted = share * self.ends[-1] - 1e-9
        return next(end for end in self.ends if end >= wanted)


def stratified(drift: Floats, rng: np.random.Generator) -> Blocks:
    """Spread documents with a similar drift of the candidate evenly over the blocks.

    ``drift``: (n_documents,) of the candidate. Every run of neighbours in its order gives one
    document to each block, so that drift on a few documents falls into all blocks alike.
    """
    n = drift.size
    count = 1
    while count < MOST_BLOCKS and n >= 2 * count * FEWEST_DOCUMENTS:
        count *= 2
    ranked = rng.permutation(n)
    ranked = ranked[np.argsort(-drift[ranked], kind="stable")]
    block = np.concatenate([rng.permutation(count) for _ in range(-(-n // count))])[:n]
    order = ranked[np.argsort(block, kind="stable")]
    ends = np.cumsum(np.bincount(block, minlength=count))
    whole = drift[ranked[: n - n % count]].reshape(-1, count)
    within = float(np.mean(np.var(whole, axis=1, ddof=1))) if count > 1 else 0.0
    return Blocks(order=order, ends=tuple(int(end) for end in ends), lumpiness=within)
