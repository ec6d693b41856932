"""Blocks: the one order in which documents are asked, cut where a measurement may pause."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.bisect.oracle import Floats, Indices
from evalguard.errors import UsageError

MOST_BLOCKS = 16
_ENOUGH = 24  # documents that change, or all that do: what a measurement sees at least
_GLANCES = 4  # parts of the documents that change; a glance at one of them tells most ...
_GLANCED = 2  # ... with so many of them at least
_FEW = 0.5  # share of the documents that may change, of scores that change in few
FEWEST_DOCUMENTS = 16  # in a block: fewer show no variance


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Documents in the order in which they are asked; every measurement is a prefix of it.

    Attributes:
        order: (n_documents,) indices.
        ends: (n_blocks,) lengths of the prefixes at which a measurement may pause; the last is
            n_documents.
        lumpiness: how unevenly the candidate's drift falls into the blocks: the variance of a
            document that would make a prefix of independent documents as uneven.
    """

    order: Indices
    ends: tuple[int, ...]
    lumpiness: float

    def up_to(self, share: float) -> int:
        """Length of the prefix that is nearest to this share of the documents."""
        wanted = share * self.ends[-1]
        at = bisect_left(self.ends, wanted)
        if at and wanted - self.ends[at - 1] <= self.ends[at] - wanted:
            return self.ends[at - 1]
        return self.ends[at]


def blocks_for(
    given: Sequence[Indices] | None,
    drift: Floats,
    rng: np.random.Generator,
    *,
    counted: bool = False,
) -> Blocks:
    """The order for a candidate's ``drift``, (n_documents,), and blocks that an oracle may give.

    ``counted``: as of ``find_culprits``.

    Raises:
        UsageError: where these do not hold every document once.
    """
    if few_change(drift, counted=counted):
        return changed_first(given, drift, rng, counted=counted)
    return stratify_blocks(drift, rng) if given is None else order_documents(given, drift, rng)


def few_change(drift: Floats, *, counted: bool = False) -> bool:
    """Whether most documents score as the base's, bit by bit, but not all; ``drift``: (n,).

    Where documents are ``counted``, as many as they may be that all change alike, as those that
    begin to loop. Of accuracy so many are told apart sooner by their mean.
    """
    moved = drift[drift != 0.0]
    if not 0 < moved.size < drift.size:
        return False
    few = moved.size <= _FEW * drift.size
    return few or (counted and bool(np.all(moved == moved[0])))


def changed_apart(order: Indices, changing: int) -> list[Indices]:
    """Cut documents into blocks, those that change apart from the others: a few of them alone.

    ``order``: those that the candidate changes come first, ``changing`` of them.
    """
    first = max(changing // _GLANCES, _GLANCED)
    return [
        order[:changing][:first],
        *np.array_split(order[first:changing], max((changing - first) // _ENOUGH, 1)),
        *np.array_split(order[changing:], _count(order.size)),
    ]


def changed_first(
    blocks: Sequence[Indices] | None,
    drift: Floats,
    rng: np.random.Generator,
    *,
    counted: bool = False,
) -> Blocks:
    """Order documents so that a short prefix holds those that the candidate changes.

    The others can only tell of jitter. Given blocks are ordered by their share of such documents.
    No measurement pauses before it has seen enough of them: what a few show would mislead, as all
    assignments are asked about the same few. Where documents are ``counted``, a few tell much.

    Raises:
        UsageError: where the blocks do not hold every document once.
    """
    if blocks is None:
        mixed = rng.permutation(drift.size)
        order = mixed[np.argsort(drift[mixed] == 0.0, kind="stable")]
        given = changed_apart(order, int(np.count_nonzero(drift)))
    else:
        given = _checked(blocks, drift.size)
        changed = [np.count_nonzero(drift[block]) / block.size for block in given]
        given = [given[at] for at in np.argsort(-np.array(changed), kind="stable")]
    ends = np.cumsum([block.size for block in given])
    order = np.concatenate(given)
    seen = np.cumsum(drift[order] != 0.0)[ends - 1]
    enough = 1 if counted else min(_ENOUGH, int(seen[-1]))
    paused = ends[seen >= enough].tolist()
    return Blocks(order=order, ends=tuple(paused), lumpiness=0.0)


def stratify_blocks(drift: Floats, rng: np.random.Generator) -> Blocks:
    """Spread documents with a similar drift of the candidate evenly over the blocks.

    ``drift``: (n_documents,) of the candidate. Every run of neighbours in its order gives one
    document to each block, so that drift on a few documents falls into all blocks alike.
    """
    n = drift.size
    count = _count(n)
    ranked = rng.permutation(n)
    ranked = ranked[np.argsort(-drift[ranked], kind="stable")]
    block = np.concatenate([rng.permutation(count) for _ in range(-(-n // count))])[:n]
    order = ranked[np.argsort(block, kind="stable")]
    ends = np.cumsum(np.bincount(block, minlength=count))
    whole = drift[ranked[: n - n % count]].reshape(-1, count)
    within = float(np.mean(np.var(whole, axis=1, ddof=1))) if count > 1 else 0.0
    return Blocks(order=order, ends=tuple(int(end) for end in ends), lumpiness=within)


def order_documents(blocks: Sequence[Indices], drift: Floats, rng: np.random.Generator) -> Blocks:
    """Order given blocks so that every prefix drifts about as all documents do together.

    ``drift``: (n_documents,) of the candidate.

    Raises:
        UsageError: where the blocks do not hold every document once.
    """
    given = _checked(blocks, drift.size)
    excess = np.array([float(np.sum(drift[block] - drift.mean())) for block in given])
    left = [int(at) for at in rng.permutation(len(given))]
    taken: list[int] = []
    carried = 0.0
    while left:
        best = min(left, key=lambda at: abs(carried + excess[at]))
        left.remove(best)
        taken.append(best)
        carried += excess[best]
    sizes = np.array([block.size for block in given])
    uneven = float(np.sum(excess**2 / sizes)) / (sizes.size - 1) if sizes.size > 1 else 0.0
    return Blocks(
        order=np.concatenate([given[at] for at in taken]),
        ends=tuple(int(end) for end in np.cumsum(sizes[taken])),
        lumpiness=uneven,
    )


def _count(n: int) -> int:
    """How many blocks n documents are cut into: a power of 2."""
    count = 1
    while count < MOST_BLOCKS and n >= 2 * count * FEWEST_DOCUMENTS:
        count *= 2
    return count


def _checked(blocks: Sequence[Indices], n: int) -> list[Indices]:
    """Given blocks without empty ones.

    Raises:
        UsageError: where they do not hold every document once.
    """
    given = [np.asarray(block, dtype=np.intp) for block in blocks if len(block)]
    held = np.concatenate(given) if given else np.empty(0, dtype=np.intp)
    if not np.array_equal(np.sort(held), np.arange(n)):
        raise UsageError(
            f"the {len(given)} blocks of an oracle hold {held.size} documents, "
            f"and it has {n}, each in one block"
        )
    return given
