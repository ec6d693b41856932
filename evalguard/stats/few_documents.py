"""Verdicts that rest on few documents: what the gate would say without them, or with more.

A mean is what it is because of its few largest documents where these are so far out that Cochran's
rule asks for more documents than there are. No test knows how many like them there are elsewhere.
So the verdict is tried on other documents: without the few that pull it most, where the long tail
points the way of the verdict; with so many more like the most extreme one, where it points the
other way. One that turns rests on them, and so does one that the plain t test would have turned.

An unchanged candidate wins a document by as much as it loses one, in all metrics at once. Flipping
the sign of a document in every metric together keeps their dependence, so that metrics of one
task, or the same metric twice, count for no more than they say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.amounts import finite_or_none
from evalguard.core.comparison import Comparison
from evalguard.core.findings import Finding
from evalguard.core.gate import GateResult
from evalguard.core.moments import Array, exact_sum, ratio_moments
from evalguard.core.verdict import SigmaScale
from evalguard.stats.clusters import FEWEST_FOR_T
from evalguard.stats.drift import Contributions, TaskContributions
from evalguard.stats.estimate import Estimate, t_estimate
from evalguard.stats.joint_null import flip_units
from evalguard.stats.sign_flip import RESAMPLES, SEED, limited_to_signs
from evalguard.stats.skewness import SKEW, careful_t, skewness, uncorrected

# All patterns of so few units are no more than the random ones that would be drawn.
_MOST_ENUMERATED = 13
_ENTRIES_A_CHUNK = 1 << 21
# Drifts that are equal but for rounding count as equal.
_DECIMALS = 9


def crossing_chance(
    metrics: Sequence[Contributions],
    margins: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> float:
    """Share of the joint flips in which any metric drifts by more than its margin, in sigma.

    It estimates how often an unchanged candidate that scatters like this one crosses a margin. The
    documents that metrics share flip together, so that metrics that move together count once. All
    patterns of at most 13 units that differ, else random ones, in chunks: memory does not grow
    with their number.

    Raises:
        ValueError: for no metric, one without a unit, or another number of margins.
    """
    if not metrics or not all(metric.unit > 0.0 for metric in metrics):
        raise ValueError("judging metrics together needs metrics, each with a standard error")
    if len(margins) != len(metrics):
        raise ValueError(f"{len(metrics)} metrics need as many margins, got {len(margins)}")
    from scipy import sparse  # as in flip_units

    values = flip_units(metrics).values
    values = values[np.any(values != 0.0, axis=1)]
    if values.shape[0] == 0:
        return 0.0
    moves = np.any(values != 0.0, axis=0)
    values = values[_order(values)]
    rows = sparse.csr_array(values[:, moves].T)
    limits = np.round(np.asarray(margins, dtype=np.float64)[moves], _DECIMALS)[:, None]
    crossed, total = 0, 0
    for signs in _patterns(values.shape[0], resamples, seed):
        above = np.round(rows @ signs, _DECIMALS) > limits
        crossed, total = crossed + int(np.sum(above.any(axis=0))), total + signs.shape[1]
    return crossed / total


def _patterns(units: int, resamples: int, seed: int) -> Iterator[Array]:
    """Signs of the units, (units, patterns) a chunk; the data's own first among random ones."""
    if units <= _MOST_ENUMERATED:
        flipped = np.arange(1 << units)[None, :] >> np.arange(units)[:, None] & 1
        yield 1.0 - 2.0 * flipped.astype(np.float64)
        return
    rng = np.random.default_rng(seed)
    yield np.ones((units, 1))
    most = max(8, _ENTRIES_A_CHUNK // units)
    for start in range(0, resamples, most):
        rows = min(most, resamples - start)
        drawn = rng.integers(0, 256, (units, -(-rows // 8)), dtype=np.uint8)
        flipped = np.unpackbits(drawn, axis=1, count=rows).view(np.int8)
        yield (1 - 2 * flipped).astype(np.float64)


def _order(values: Array) -> NDArray[np.intp]:
    """An order of units by their values but for a common sign, so that none else matters."""
    first = np.take_along_axis(values, np.argmax(values != 0.0, axis=1)[:, None], axis=1)
    return np.lexsort((values * np.sign(first)).T)


# Of so many documents at most, or of 1% of all, a verdict may be said to rest on them.
FEW_DOCUMENTS = 3
FEW_SHARE = 0.01
_NAMED = 4  # in the sentence
_KEPT = 20  # in the data
# More findings than these are one line: the first screen has no room for each.
_METRICS = 2
Turn = Literal["without", "with more", "by plain t"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FewDocuments:
    """The few documents of a metric that its verdict rests on.

    Attributes:
        documents: (task, doc_id), the most extreme first; all of the clusters, where there are any.
        count: units, documents or clusters (``noun``), of which there are ``of``.
        turn: what turns the verdict: these taken away, ``more`` like the first one, or a t test
            that takes no account of them, with ``p_value``.
        fails: whether the metric fails the gate.
        sigma: the drift then; None by plain t.
        skewness, needed: of Cochran's rule.
    """

    documents: tuple[tuple[str, int], ...]
    count: int
    of: int
    noun: str
    turn: Turn
    fails: bool
    skewness: float
    needed: float
    more: int = 0
    sigma: float | None = None
    p_value: float | None = None


def find_few_documents(
    compared: Sequence[tuple[Comparison, Contributions | None]], gate: GateResult
) -> tuple[Finding, ...]:
    """What to say of gated metrics whose verdict rests on few documents, those that fail first.

    Args:
        compared: every comparison, with its outcome before the gate's policy, and its documents.
    """
    dependent = []
    for comparison, of in compared:
        if comparison.key in gate.gated and of is not None and comparison.p_value is not None:
            holm = gate.holm_p_values[gate.gated.index(comparison.key)]
            fails = gate.state_of(comparison.key) == "regressed"
            few = rests_on(comparison, of, fails=fails, fail_on=gate.fail_on, holm_p_value=holm)
            if few is not None:
                dependent.append((comparison, few))
    dependent.sort(key=lambda pair: not pair[1].fails)
    findings = [_finding(comparison, few) for comparison, few in dependent[:_METRICS]]
    return (*findings, *_others([comparison for comparison, _ in dependent[_METRICS:]]))


def rests_on(
    comparison: Comparison,
    of: Contributions,
    *,
    fails: bool,
    fail_on: str,
    holm_p_value: float | None,
) -> FewDocuments | None:
    """The few documents that one metric's verdict rests on; None where it rests on all.

    Args:
        comparison: with a p-value.
        fails: whether it fails the gate.
        fail_on, holm_p_value: the gate's policy, and the metric's p-value adjusted over its gate.
    """
    c, own, margin = comparison, comparison.p_value, comparison.margin
    stopped = c.stopping is not None and c.stopping.early
    if own is None or margin is None or of.unit <= 0.0 or c.bit_identical or stopped:
        return None
    units = _Units.of(of)
    if units is None:
        return None
    factor = holm_p_value / own if own > 0.0 and holm_p_value is not None else 1.0
    rule = _Rule(fail_on=fail_on, margin=margin, confidence=c.confidence, holm=max(1.0, factor))
    scale = SigmaScale(unit=of.unit, log_sign=of.log_sign)
    verdicts = rule.fails(c.sigma or 0.0, _low(c), own), units.fails(rule, scale)
    if verdicts != (fails, fails):  # a waiver, or a method that documents alone do not repeat
        return None
    return _by_plain_t(c, units, rule, fails=fails) or _turned(units, rule, scale, fails=fails)


def _low(c: Comparison) -> float:
    return c.sigma_interval[0] if c.sigma_interval else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The gate's policy for one metric; ``holm`` is what its p-value is multiplied by."""

    fail_on: str
    margin: float
    confidence: float
    holm: float

    def fails(self, sigma: float, low: float, p_value: float) -> bool:
        real = p_value * self.holm <= (1.0 - self.confidence) / 2.0
        above = sigma > self.margin
        return {
            "margin": above,
            "significant": above and low > 0.0,
            "certain": low > self.margin,
            "any-degradation": above or real,
        }.get(self.fail_on, above and real)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Units:
    """Documents, or clusters of them, in a drift.

    Attributes:
        values, shares: float64, shape (n,): what each adds to the drift, and its part of the
            weights, which sum to 1.
        residuals: values - drift * shares, of each task.
        members: the documents of each, as (task, doc_id).
    """

    values: Array
    shares: Array
    residuals: Array
    members: tuple[tuple[tuple[str, int], ...], ...]
    noun: str
    skewness: float
    needed: float

    @classmethod
    def of(cls, of: Contributions) -> _Units | None:
        """Those of a metric; None where they have no long tail, as answers have none."""
        if all(_of_one_size(part.values, part.shares) for part in of.parts):
            return None
        residuals = np.concatenate([_by_unit(part, part.residuals) for part in of.parts])
        skew = skewness(residuals, None)
        if skew.needed <= residuals.shape[0]:
            return None
        # The weights of a group's tasks are not known here; they matter to texts of one task.
        shares = [_by_unit(part, part.shares) / len(of.parts) for part in of.parts]
        return cls(
            values=np.concatenate([_by_unit(part, part.values) for part in of.parts]),
            shares=np.concatenate(shares),
            residuals=residuals,
            members=tuple(unit for part in of.parts for unit in _members(part)),
            noun="clusters" if any(part.clusters for part in of.parts) else "documents",
            skewness=skew.value,
            needed=skew.needed,
        )

    @property
    def count(self) -> int:
        return int(self.values.shape[0])

    def fails(self, rule: _Rule, scale: SigmaScale, rows: NDArray[np.int64] | None = None) -> bool:
        """Whether these rows, which may repeat, fail the gate."""
        estimate = self._estimate(rule.confidence, rows)
        sigma, low = scale.sigma_of(estimate.point), scale.sigma_of(estimate.low)
        return rule.fails(sigma, low, estimate.p_value)

    def drift(self, rows: NDArray[np.int64]) -> float:
        """The drift of these rows."""
        return exact_sum(self.values[rows]) / exact_sum(self.shares[rows])

    def _estimate(self, confidence: float, rows: NDArray[np.int64] | None) -> Estimate:
        values = self.values if rows is None else self.values[rows]
        shares = self.shares if rows is None else self.shares[rows]
        ratio = ratio_moments(values, shares)
        plain = t_estimate(
            ratio.point,
            ratio.stderr,
            df=values.shape[0] - 1,
            confidence=confidence,
            method="paired-t",
        )
        return careful_t(limited_to_signs(plain, values, shares, 1.0), values, shares, 1.0)


def _by_unit(part: TaskContributions, values: Array) -> Array:
    if not part.clusters:
        return values
    _, rows = np.unique(np.asarray(part.clusters), return_inverse=True)
    sums: Array = np.bincount(rows, values)  # type: ignore[assignment]
    return sums


def _members(part: TaskContributions) -> list[tuple[tuple[str, int], ...]]:
    documents = [(part.task, doc_id) for doc_id in part.doc_ids.tolist()]
    if not part.clusters:
        return [(document,) for document in documents]
    members: dict[str, list[tuple[str, int]]] = {label: [] for label in sorted(part.clusters)}
    for label, document in zip(part.clusters, documents, strict=True):
        members[label].append(document)
    return [tuple(some) for some in members.values()]


def _of_one_size(values: Array, shares: Array) -> bool:
    sizes = np.abs(values[values != 0.0])
    return sizes.size == 0 or bool(np.ptp(sizes) <= 1e-9 * sizes[0] and np.ptp(shares) == 0.0)


def _turned(units: _Units, rule: _Rule, scale: SigmaScale, *, fails: bool) -> FewDocuments | None:
    """Whether few documents less, or more, turn the verdict."""
    of_losses = units.skewness > 0.0
    order = np.argsort(-units.residuals if of_losses else units.residuals, kind="stable")
    every, most = np.arange(units.count), max(FEW_DOCUMENTS, int(FEW_SHARE * units.count))
    along = of_losses == fails
    most = min(most, units.count - 2)

    def rows(count: int) -> NDArray[np.int64]:
        if along:
            return np.delete(every, order[:count])
        return np.concatenate([every, np.repeat(order[:1], count)])

    if most < 1 or exact_sum(units.shares[rows(most)]) <= 0.0:  # none with any weight is left
        return None
    count = _fewest(most, lambda count: units.fails(rule, scale, rows(count)) != fails)
    if count is None:
        return None
    named = order[:count] if along else order[: _half(units, of_losses=of_losses)]
    return FewDocuments(
        documents=_documents(units, named),
        count=len(named),
        of=units.count,
        noun=units.noun,
        turn="without" if along else "with more",
        more=0 if along else count,
        fails=fails,
        sigma=scale.sigma_of(units.drift(rows(count))),
        skewness=units.skewness,
        needed=units.needed,
    )


def _fewest(most: int, turned: Callable[[int], bool]) -> int | None:
    """The smallest count up to ``most`` that turns; None where not even that does."""
    if not turned(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if turned(middle) else (middle, high)
    return high


def _by_plain_t(c: Comparison, units: _Units, rule: _Rule, *, fails: bool) -> FewDocuments | None:
    """Whether the metric would fail by the t test that takes no account of the long tail."""
    if fails or SKEW not in c.method or c.sigma is None:
        return None
    plain = next(
        (companion for companion in c.companions if companion.method == uncorrected(c.method)), None
    )
    if plain is None or plain.sigma_interval is None:
        return None
    if not rule.fails(c.sigma, plain.sigma_interval[0], plain.p_value):
        return None
    named = np.argsort(units.residuals, kind="stable")[: _half(units, of_losses=False)]
    return FewDocuments(
        documents=_documents(units, named),
        count=len(named),
        of=units.count,
        noun=units.noun,
        turn="by plain t",
        fails=False,
        p_value=plain.p_value,
        skewness=units.skewness,
        needed=units.needed,
    )


def _half(units: _Units, *, of_losses: bool) -> int:
    """How many of the largest losses, or gains, make up half of all of them."""
    sizes = np.sort(np.maximum(units.values if of_losses else -units.values, 0.0))[::-1]
    summed = np.cumsum(sizes)
    return int(np.searchsorted(summed, summed[-1] / 2.0 * (1.0 - 1e-12))) + 1


def _documents(units: _Units, rows: NDArray[np.int64]) -> tuple[tuple[str, int], ...]:
    return tuple(document for row in rows.tolist() for document in units.members[row])


def _finding(c: Comparison, few: FewDocuments) -> Finding:
    ids = [f"{task}/{doc_id}" if c.subtasks else doc_id for task, doc_id in few.documents]
    shown = _list(ids)
    documents = f"{few.count:,} of {few.of:,} {few.noun} ({shown})"
    clause = _SENTENCES[few.turn, few.fails](few)
    return Finding(
        kind="rests_on_documents",
        text=f"this verdict rests on {documents}{clause}; compare more",
        task=c.task,
        filter=c.filter,
        metric=c.metric,
        values={
            "documents": few.count,
            "of": few.of,
            "noun": few.noun,
            "doc_ids": tuple(ids[:_KEPT]),
            "turned": few.turn,
            "more": few.more,
            "fails": few.fails,
            "sigma": finite_or_none(few.sigma),
            "plain_p_value": few.p_value,
            "skewness": few.skewness,
            "documents_needed": math.ceil(few.needed),
        },
    )


def _list(names: Sequence[str | int]) -> str:
    return ", ".join(str(name) for name in names[:_NAMED]) + (
        ", ..." if len(names) > _NAMED else ""
    )


def _sigma(few: FewDocuments) -> str:
    return f"{0.0 if few.sigma is None else few.sigma:+.2g} sigma"


def _plain_test(few: FewDocuments) -> str:
    signs = few.noun == "clusters" and few.of < FEWEST_FOR_T
    return "sign flips have" if signs else "plain t has"


_SENTENCES: dict[tuple[Turn, bool], Callable[[FewDocuments], str]] = {
    ("without", True): lambda few: f": without them {_sigma(few)}, which passes",
    ("without", False): lambda few: f" that gain much: without them it fails at {_sigma(few)}",
    ("with more", True): lambda few: (
        f" that gain half of all: with {few.more} more like the first it would not fail"
    ),
    ("with more", False): lambda few: (
        f" that lose half of all: with {few.more} more like the first it would fail"
    ),
    ("by plain t", False): lambda few: (
        f" that gain half of all; {_plain_test(few)} p = {few.p_value:.2g}, too sure of them"
    ),
}


def _others(comparisons: Sequence[Comparison]) -> tuple[Finding, ...]:
    if not comparisons:
        return ()
    names = tuple(f"{c.task} {c.metric}" for c in comparisons)
    shown = _list(names)
    verb = (
        "verdict of 1 more metric rests"
        if len(names) == 1
        else (f"verdicts of {len(names)} more metrics rest")
    )
    return (
        Finding(
            kind="rests_on_documents",
            text=f"the {verb} on few documents too: {shown}",
            values={"metrics": names[:_KEPT]},
        ),
    )
