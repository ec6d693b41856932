"""Estimates: the mean drift of an assignment over all documents, by what part of them shows.

The same documents that make the drift of one assignment more than it is on average do so to
others like it. Where one like it is known on all documents, that is corrected (a regression
estimator: Cochran 1977, Sampling Techniques, 7.2); else the same draw of documents would look
like as many measurements as there are assignments.

Of accuracy most documents score under a candidate as they do under the base. There, what changes
can be counted: the same documents change again wherever their cause is in, and where half of the
settings come and go without changing a single one, no jitter stands against what the others do.

They differ in settings that do nothing. Their jitter is the same jitter: it does not average out
over them, and that they agree says nothing about how large it is.

Numerical differences of an assignment average out over documents. On part of the documents there
is, beside them, the draw of the documents: the same setting hurts some more than others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtr, stdtrit

from evalguard.core.question import Floats, Indices, Mask
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
    remaining = [int(at) for at in rng.permutation(len(given))]
    taken: list[int] = []
    carried = 0.0
    while remaining:
        best = min(remaining, key=lambda at: abs(carried + excess[at]))
        remaining.remove(best)
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


_HALF = 0.5  # of the settings: who comes and goes with so many others shows their jitter
_LEAST = 0.1  # of the pairs of assignments: up to three culprits come and go in the others
_TENTH = 1.28  # standard deviations of a normal distribution
_UNSEEN = 0.5  # changes that are counted beside those seen, for and against (Jeffreys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """The candidate's drift, (n,), in the order in which documents are asked; mostly 0."""

    drift: Floats

    @classmethod
    def of(cls, drift: Floats, *, counted: bool = False) -> Flips | None:
        """None where too many documents change, or none does; ``counted``: as ``few_change``."""
        return cls(drift=drift) if few_change(drift, counted=counted) else None

    @property
    def size(self) -> float:
        """Root mean square of a change."""
        return float(np.sqrt(np.sum(self.drift**2) / np.count_nonzero(self.drift)))

    @property
    def glance(self) -> float:
        """Variance of a mean over all documents that is known but for half a change."""
        return (_UNSEEN * self.size / self.drift.size) ** 2

    def jitter(self, masks: list[Mask], drifts: list[Floats]) -> float | None:
        """Variance over documents of what settings do that are not guilty; None if not known.

        Pairs of assignments differ by jitter, or by a culprit too: the tenth that differs least by
        jitter only. Those that count let half of the settings come in or go out together. Of the
        documents that the candidate changes, some may not be seen yet.

        ``drifts``: of the assignments ``masks``, each over a prefix; the base is among them unsaid.
        """
        n, changed = self.drift.size, np.cumsum(self.drift != 0.0)
        sides = [(np.zeros_like(masks[0]), np.zeros(n)), *zip(masks, drifts, strict=True)]
        pairs: list[tuple[float, Mask]] = []
        for at, (mask, drift) in enumerate(sides):
            for earlier, its in sides[:at]:
                common = min(drift.size, its.size)
                if seen := changed[common - 1]:
                    apart = drift[:common] - its[:common]
                    unseen = _UNSEEN * self.size**2 * (1.0 - seen / changed[-1]) / n
                    pairs.append((float(apart @ apart) / common + unseen, mask != earlier))
        moved = np.zeros_like(masks[0])
        for rank, (least, which) in enumerate(sorted(pairs, key=lambda pair: pair[0]), start=1):
            moved |= which
            if moved.sum() >= _HALF * moved.size and rank >= _LEAST * len(pairs):
                return self._mean_of(least)
        return None

    def _mean_of(self, least: float) -> float:
        """What a variance is on average of which the tenth that is least is this; 0 of 0.

        Changes are counted: of a mean c, the tenth is about c - 1.28 sqrt(c).
        """
        change = self.size**2 / self.drift.size  # a change
        below = _TENTH / 2.0
        return change * (below + float(np.sqrt(below**2 + least / change))) ** 2 if least else 0.0

    def estimate(self, drift: Floats, jitter: float) -> tuple[float, float]:
        """Mean drift over all documents, and its variance, of what is known on a prefix, (k,).

        Of the documents that the candidate changes, those to come are changed in the same share;
        that share is known by those that were seen (a beta posterior). The others jitter, and half
        a change may be among them.
        """
        k, n = drift.size, self.drift.size
        seen, unseen = self.drift[:k], self.drift[k:]
        changed = seen != 0.0
        count = int(np.count_nonzero(changed))
        alike = float(np.clip(drift @ seen / (seen @ seen), 0.0, 1.0)) * count if count else 0.0
        weight = count + 2.0 * _UNSEEN
        share = (alike + _UNSEEN) / weight
        uneven = share * (1.0 - share)
        beside = drift[~changed]
        mean = (float(drift.sum()) + share * float(unseen.sum())) / n
        variance = (
            float(unseen.sum()) ** 2 * uneven / (weight + 1.0) + float(unseen @ unseen) * uneven
        )
        rest = max(jitter, float(beside @ beside) / max(beside.size, 1))
        rest += _UNSEEN * self.size**2 / n
        return mean, (variance + (n - k) * rest) / n**2 + jitter / n


ALIKE = 1e-4  # of the variance over documents: what twins may differ by, squared


def twins(drifts: list[Floats]) -> NDArray[np.intp]:
    """For each assignment the number of the longest that it is a twin of, itself if of none; (m,).

    ``drifts``: for each its per-document drift over a prefix of one common order.
    """
    of = np.arange(len(drifts))
    head = min(drift.size for drift in drifts)
    heads = np.array([drift[:head] for drift in drifts])
    squares = np.einsum("mk,mk->m", heads, heads)
    apart = squares[:, None] + squares[None, :] - 2.0 * heads @ heads.T
    near = apart <= 10.0 * ALIKE * np.minimum.outer(squares, squares)
    if np.count_nonzero(near) <= len(drifts):
        return of
    for index in sorted(of.tolist(), key=lambda at: -drifts[at].size):
        for match in np.flatnonzero(near[index] & (of == np.arange(of.size))).tolist():
            longer = drifts[match].size >= drifts[index].size
            if match != index and longer and are_twins(drifts[index], drifts[match]):
                of[of == of[index]] = match
                break
    return of


def are_twins(one: Floats, other: Floats) -> bool:
    """Whether two assignments drift alike on every document that both are measured on."""
    common = min(one.size, other.size)
    apart = one[:common] - other[:common]
    return float(apart @ apart) <= ALIKE * common * float(np.var(one[:common]))


FEWEST = 8  # documents that show how far they scatter
_CONCENTRATED = 1.5  # times the smallest variance: drift sits on few documents
_ENOUGH_PAIRS = 64  # documents to compare two assignments on
_OWN_WEIGHT = 30.0  # documents that the variance of all assignments together counts for


class Jitter:
    """Error variances of the assignments of a search, each one's statistics computed once.

    ``n``: documents in all; ``lumpiness``: as of ``Blocks``.
    """

    def __init__(self, n: int, lumpiness: float) -> None:
        self._n, self._lumpiness = n, lumpiness
        self._sizes: Floats = np.empty(0)
        self._spread: Floats = np.empty(0)
        self._between: dict[tuple[int, int], tuple[int, float]] = {}

    def error_variances(self, drifts: list[Floats]) -> tuple[Floats, Floats]:
        """Variance of each mean drift about the mean over all n documents, and what of it would be
        left on all of them; (m,), (m,).

        ``drifts``: for each assignment its per-document drift over a prefix of one common order;
        from call to call more may come, and prefixes grow.

        With f the share measured and v the variance over documents, v/(fn) would do for a sample of
        something inexhaustible. Here only jitter is: the variance of the mean is
        (f j + (1 - f) max(v, lumpiness)) / (fn), where j, the jitter, is v itself or, if drift sits
        on few documents, the variance of the difference to the assignment that shares them best.
        """
        self._update(drifts)
        own = self._own(self._sizes, self._spread)
        smallest = float(np.min(own[own > 0.0], initial=np.inf))
        jitter = own.copy()
        for index in np.flatnonzero(own > _CONCENTRATED * smallest).tolist():
            jitter[index] = min(own[index], self._least_between(index, drifts, smallest))
        share = self._sizes / self._n
        whole = np.maximum(own, self._lumpiness)
        variance: Floats = (share * jitter + (1.0 - share) * whole) / self._sizes
        return variance, jitter / self._n

    def _update(self, drifts: list[Floats]) -> None:
        """Compute the variances over documents that are new."""
        sizes = np.array([drift.size for drift in drifts], dtype=np.float64)
        new = sizes.size - self._sizes.size
        known = np.concatenate([self._sizes, np.zeros(new)])
        self._spread = np.concatenate([self._spread, np.zeros(new)])
        for index in np.flatnonzero(sizes != known):
            self._spread[index] = _variance(drifts[index])
        self._sizes = sizes

    def _least_between(self, one: int, drifts: list[Floats], smallest: float) -> float:
        """Variance of the difference to the assignment that shares the drift best.

        A twin shares the jitter too: then it is taken for no larger than the smallest variance.
        """
        least = np.inf
        for index, drift in enumerate(drifts):
            common = min(drift.size, drifts[one].size)
            if index == one or common < _ENOUGH_PAIRS:
                continue
            pair = (one, index) if one < index else (index, one)
            if self._between.get(pair, (0, 0.0))[0] != common:
                difference = drifts[one][:common] - drift[:common]
                self._between[pair] = (common, _variance(difference))
            twins = self._between[pair][1] <= ALIKE * self._spread[one]
            least = min(least, smallest if twins else self._between[pair][1])
        return least

    def _own(self, sizes: Floats, spread: Floats) -> Floats:
        """Each variance over documents, steadied by the others'; (m,).

        The smallest of many estimates from few documents is too small: it counts as what it is the
        median of.
        """
        full = spread[sizes >= min(self._n, _ENOUGH_PAIRS)]
        degrees = min(self._n, _ENOUGH_PAIRS) - 1
        # a quantile of chi-squared; importing scipy.stats takes half a second
        least = 2.0 * gammaincinv(degrees / 2.0, 1.0 - 0.5 ** (1.0 / full.size)) / degrees
        pooled = float(np.sum(sizes * spread) / np.sum(sizes))
        steady = min(pooled, float(np.min(full)) / min(float(least), 1.0))
        own = (sizes * spread + _OWN_WEIGHT * steady) / (sizes + _OWN_WEIGHT)
        return np.where(spread > 0.0, own, 0.0)


def _variance(values: Floats) -> float:
    """As numpy's with ddof=1, in a third of the time: it is asked thousands of times."""
    off = values - np.add.reduce(values) / values.size
    return float(np.add.reduce(off * off)) / max(values.size - 1, 1)


def deviations(z: float, n: int) -> float:
    """Standard errors, estimated on n documents, that are as rare as ``z`` exact ones."""
    return float(-stdtrit(n - 1, ndtr(-z)))  # a quantile of Student's t


_FEWEST = 15  # documents that show how far an assignment resembles another
_MANY = 32
_LEFT = 0.5  # share of the variance that another must leave at most, to be used
_LEFT_OF_FEW = 0.25  # ... by what less than _MANY documents show
_ROUNDING = 1e-9  # of the mean: documents that scatter less are alike
_MOST = 3  # others that an assignment is corrected by
_Estimate = tuple[float, float]  # mean and variance


class Estimates:
    """Of the assignments of a search, each one's computed again only where something changed."""

    def __init__(self, jitter: Jitter, flips: Flips | None) -> None:
        self._jitter, self._flips = jitter, flips
        self._known: dict[int, tuple[tuple[int, int], _Estimate | None]] = {}

    def of(self, masks: list[Mask], drifts: list[Floats], n: int) -> tuple[Floats, Floats]:
        """Mean drift of each assignment over all n documents, and its error variance; (m,), (m,).

        ``drifts``: of the assignments ``masks``, as of ``Jitter.error_variances``.
        """
        variances, least = self._jitter.error_variances(drifts)
        if _eliminated(masks, drifts, n):
            variances, least = np.maximum(variances - least, 0.0), np.zeros_like(least)
        if self._flips is not None:
            return self._counted(self._flips, masks, drifts, n * least)
        means = np.array([np.mean(drift) for drift in drifts])
        known = np.array([drift for drift in drifts if drift.size == n]).reshape(-1, n)
        for index, drift in enumerate(drifts):
            if _FEWEST < drift.size < n:
                estimate = self._corrected(index, drift, known)
                if estimate is not None and estimate[1] < variances[index]:
                    means[index], variances[index] = estimate[0], max(estimate[1], least[index])
        return means, variances

    def _counted(
        self, flips: Flips, masks: list[Mask], drifts: list[Floats], jitter: Floats
    ) -> tuple[Floats, Floats]:
        """Likewise, where few documents change."""
        known = flips.jitter(masks, drifts)
        each = jitter if known is None else np.minimum(jitter, known)
        estimates = [
            (float(np.mean(drift)), float(own) / drift.size)
            if drift.size == flips.drift.size
            else flips.estimate(drift, float(own))
            for drift, own in zip(drifts, each, strict=True)
        ]
        means, variances = zip(*estimates, strict=True)
        return np.array(means), np.array(variances)

    def _corrected(self, one: int, drift: Floats, known: Floats) -> _Estimate | None:
        state = (drift.size, len(known))
        if one not in self._known or self._known[one][0] != state:
            self._known[one] = (state, correct_estimates(drift, known))
        return self._known[one][1]


def _eliminated(masks: list[Mask], drifts: list[Floats], n: int) -> bool:
    """Whether all settings but one change no score, or there is one: then nobody else jitters."""
    return masks[0].size == 1 or any(
        drift.size == n and mask.sum() >= mask.size - 1 and not drift.any()
        for mask, drift in zip(masks, drifts, strict=True)
    )


def correct_estimates(drift: Floats, known: Floats) -> _Estimate | None:
    """Mean over all documents and its variance, by those that resemble it; None if none does.

    ``drift``: (k,), on the first k documents; ``known``: (p, n), of others on all of them.
    """
    k = drift.size
    centred, columns = _centred(drift), _centred(known[:, :k])
    used = _alike(centred, columns, _LEFT if k >= _MANY else _LEFT_OF_FEW)
    if not used:
        return None
    chosen = columns[used]
    square = np.linalg.pinv(chosen @ chosen.T)
    slopes = square @ (chosen @ centred)
    residual = centred - slopes @ chosen
    off = known[used].mean(axis=1) - known[used, :k].mean(axis=1)
    spread = float(residual @ residual) / max(k - 1 - len(used), 1)
    return float(drift.mean() + slopes @ off), spread * float(1.0 / k + off @ square @ off)


def _alike(drift: Floats, columns: Floats, enough: float) -> list[int]:
    """Which of ``columns``, (p, k), explain ``drift``, (k,): each leaves ``enough`` at most."""
    used: list[int] = []
    residual, basis = drift, columns
    before = float(residual @ residual)
    while before > 0.0 and len(used) < min(_MOST, len(columns)):
        length = np.maximum(np.einsum("pk,pk->p", basis, basis), 1e-9 * before)
        explained = (basis @ residual) ** 2 / length
        best = int(np.argmax(explained))
        if explained[best] < (1.0 - enough) * before:
            break
        direction = basis[best] / np.sqrt(length[best])
        residual = residual - (direction @ residual) * direction
        basis = basis - np.outer(basis @ direction, direction)
        used.append(best)
        before = float(residual @ residual)
    return used


def _centred(drift: Floats) -> Floats:
    """About the mean over the last axis; 0 where nothing but rounding is left."""
    mean = drift.mean(axis=-1, keepdims=True)
    off = drift - mean
    real = np.sqrt(np.mean(off**2, axis=-1, keepdims=True)) > _ROUNDING * np.abs(mean)
    centred: Floats = np.where(real, off, 0.0)
    return centred
