"""What a search measures with: an oracle, and what it says when an assignment cannot be built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evalguard.core.settings import Constraint, Value
from evalguard.errors import EvalguardError, UsageError

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]  # (n_settings,): which settings have their candidate value
Question = tuple[frozenset[str], Indices]

Refusal = Literal["cannot_build", "crashed", "out_of_memory", "timed_out", "not_finite"]


class Untestable(EvalguardError):
    """An assignment that cannot be built or run. It is neither good nor bad.

    ``reason`` says why in words, ``kind`` in one of a few.
    """

    def __init__(self, reason: str, *, kind: Refusal = "cannot_build", hint: str = "") -> None:
        super().__init__(reason, hint=hint)
        self.reason = reason
        self.kind: Refusal = kind


class Oracle(Protocol):
    """Scores documents under an assignment of the settings; the same question, the same answer."""

    @property
    def n_documents(self) -> int:
        """How many documents there are."""

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        """Scores of these documents, higher is better, one each and in their order.

        Exactly ``candidate_settings`` have their candidate value, all others their reference.
        ``documents`` are indices below ``n_documents``, always whole blocks of one fixed order.

        Raises:
            Untestable: this assignment cannot be built or run.
        """


@runtime_checkable
class BlockOracle(Oracle, Protocol):
    """An oracle that scores documents in blocks of its own."""

    @property
    def blocks(self) -> Sequence[Indices]:
        """Every document once, in blocks that are scored together, each about a random sample.

        Every question is a union of whole blocks.
        """


@runtime_checkable
class ParallelOracle(Oracle, Protocol):
    """An oracle that can answer several questions at once."""

    def measure_all(self, questions: Sequence[Question]) -> list[Floats | Untestable]:
        """As many answers, in their order; an Untestable is returned, not raised."""


@runtime_checkable
class ValueOracle(Oracle, Protocol):
    """An oracle that knows values of settings beside reference and candidate."""

    def measure_values(self, values: Mapping[str, Value], documents: Indices) -> Floats:
        """As ``measure``: these settings have these values, all others their candidate's."""


def request_scores(oracle: Oracle, questions: Sequence[Question]) -> list[Floats | Untestable]:
    """Ask an oracle, at once where it can; scores that are no numbers are no answer.

    Raises:
        UsageError: it did not answer with one score for each document.
        KeyboardInterrupt: from the oracle.
    """
    if len(questions) > 1 and isinstance(oracle, ParallelOracle):
        answers: list[Floats | Untestable] = oracle.measure_all(questions)
    else:
        answers = [_request_scores(oracle, *question) for question in questions]
    found = [check_reply(answer) for answer in answers]
    for (_, documents), scores in zip(questions, found, strict=True):
        if not isinstance(scores, Untestable) and scores.shape != documents.shape:
            raise UsageError(
                f"an oracle was asked about {documents.size} documents, and answered with scores "
                f"of shape {scores.shape}"
            )
    return found


def _request_scores(
    oracle: Oracle, settings: frozenset[str], documents: Indices
) -> Floats | Untestable:
    try:
        return oracle.measure(settings, documents)
    except Untestable as refusal:
        return refusal


def check_reply(answer: Floats | Untestable) -> Floats | Untestable:
    """An answer; scores that are no numbers are none."""
    if isinstance(answer, Untestable):
        return answer
    scores = np.asarray(answer, dtype=np.float64)
    if np.isfinite(scores).all():
        return scores
    return Untestable("its scores are not all finite", kind="not_finite")


# Which assignments can be built: declared constraints, and rules learnt from those that could not.
#
# A rule that is not declared is taken to be of the form "a needs b": where a has its candidate
# value, b must have it too. All at candidate can be built and all at reference too, so every
# failure takes one setting in and another out.


LIKELY_FAILS = 0.7
_UNEXPLAINED = 0.5  # chance to fail of a neighbour of a failure that no rule explains
_SUCCESSES = 4.0  # assignments that are taken to have been built before anything is tried


class Buildable:
    """What is known about which assignments can be built."""

    def __init__(self, settings: tuple[str, ...], constraints: Sequence[Constraint]) -> None:
        self._settings, self._constraints = settings, tuple(constraints)
        n = len(settings)
        self._possible: Mask = ~np.eye(n, dtype=np.bool_)  # [a, b]: "a needs b" is not excluded
        self._failed: dict[bytes, Mask] = {}
        self._built: dict[bytes, Mask] = {}

    def learn(self, mask: Mask, *, built: bool) -> None:
        """Take note that an assignment could be built, or could not."""
        if built:
            self._possible[np.ix_(mask, ~mask)] = False
            self._built[mask.tobytes()] = mask.copy()
        else:
            self._failed[mask.tobytes()] = mask.copy()

    def refused(self, mask: Mask) -> bool:
        """Whether it is known that this assignment cannot be built."""
        if mask.tobytes() in self._failed:
            return True
        values = self._values(mask)
        return any(rule.violated_by(values) for rule in self._constraints)

    def risks(self, masks: Mask) -> Floats:
        """The chance that each of these assignments, (m, n), cannot be built; (m,)."""
        risk = self._usual(masks)
        for failed in self._failed.values():
            rules = self._explaining(failed)
            if rules.any():
                hit = np.sum((masks @ rules.astype(np.float64)) * ~masks, axis=1)
                risk = np.maximum(risk, hit / rules.sum())
            else:
                risk = np.maximum(risk, _UNEXPLAINED * ((masks != failed).sum(1) <= 2))
        if self._failed or self._constraints:
            known = np.array([self.refused(mask) for mask in masks], dtype=np.bool_)
            risk = np.where(known, 1.0, risk)
        return risk

    def _usual(self, masks: Mask) -> Floats:
        """How often assignments like these failed: a step from base or candidate, or far from both.

        Near ones are tried on their own merits: they are what proves an answer.
        """
        near = _near(masks)
        risk = np.zeros(len(masks))
        if not self._failed:
            return risk
        failed = _near(np.array(list(self._failed.values())))
        built = _near(np.array(list(self._built.values())))
        for which in (True, False):
            failures = float(np.sum(failed == which))
            tried = failures + float(np.sum(built == which)) + _SUCCESSES
            risk[near == which] = failures / tried
        known = np.array([mask.tobytes() in self._built for mask in masks], dtype=np.bool_)
        return np.where(known, 0.0, risk)

    def likely(self, *masks: Mask) -> bool:
        """Whether all of these can be built, as far as is known."""
        return bool(np.all(self.risks(np.array(masks)) < LIKELY_FAILS))

    def completed(self, mask: Mask) -> Mask:
        """The assignment with what it needs put in; if nothing helps, as it is."""
        return self._mended(mask, put_in=True)

    def reduced(self, mask: Mask) -> Mask:
        """The assignment with what lacks something taken out; if nothing helps, as it is."""
        return self._mended(mask, put_in=False)

    def _mended(self, mask: Mask, *, put_in: bool) -> Mask:
        """Follow the rules that are most often met, one setting after the other."""
        mended = mask.copy()
        for _ in range(mask.size):
            if self.likely(mended):
                return mended
            if self._followed(mended, put_in=put_in):
                continue
            rules = self._broken(mended)
            if not rules.any():
                return mask
            if put_in:
                mended[np.argmax(rules.sum(0))] = True
            else:
                mended[np.argmax(rules.sum(1))] = False
        return mask

    def _followed(self, mask: Mask, *, put_in: bool) -> bool:
        """Do in ``mask`` what a declared constraint demands, if it is of the wanted direction."""
        wanted = "candidate" if put_in else "reference"
        for rule in self._constraints:
            if rule.violated_by(self._values(mask)):
                for name, value in rule.then.items():
                    at = self._settings.index(name)
                    if value == wanted and mask[at] != put_in:
                        mask[at] = put_in
                        return True
        return False

    def _broken(self, mask: Mask) -> Floats:
        """[a, b]: how strongly the failures say that this assignment breaks "a needs b"."""
        n = mask.size
        weight = np.zeros((n, n))
        for failed in self._failed.values():
            rules = self._explaining(failed)
            weight += rules / max(int(rules.sum()), 1)
        for needing, needed in self._declared():
            weight[needing, needed] += 1.0
        return np.where(mask[:, None] & ~mask[None, :], weight, 0.0)

    def _declared(self) -> list[tuple[int, int]]:
        """(a, b): a needs b, of constraints that say so."""
        number = {name: at for at, name in enumerate(self._settings)}
        pairs = []
        for rule in self._constraints:
            for one, value in rule.when.items():
                for other, wanted in rule.then.items():
                    if value == wanted == "candidate":
                        pairs.append((number[one], number[other]))
                    elif value == wanted == "reference":
                        pairs.append((number[other], number[one]))
        return pairs

    def _values(self, mask: Mask) -> dict[str, str]:
        return {
            name: "candidate" if inside else "reference"
            for name, inside in zip(self._settings, mask, strict=True)
        }

    def _explaining(self, failed: Mask) -> Mask:
        """[a, b]: rules that explain a failure and that nothing excludes."""
        explaining: Mask = self._possible & failed[:, None] & ~failed[None, :]
        return explaining


def _near(masks: Mask) -> Mask:
    """Which differ from base or candidate in one setting at most; ``masks``: (m, n)."""
    inside = masks.sum(axis=1)
    near: Mask = (inside <= 1) | (inside >= masks.shape[1] - 1)
    return near


# What a search tells while it runs: for progress on a screen.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """Something is about to be measured: these settings at their candidate value.

    ``documents`` are asked now, of those that were not measured before; ``cost`` is theirs, in
    full evaluations.
    """

    settings: tuple[str, ...]
    documents: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnded:
    """A measurement ended, as ``probe`` says; ``spent`` is the cost of all so far."""

    probe: Probe
    spent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """These settings are no longer suspected. A later measurement may change that."""

    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """This setting is shown to be guilty on all documents."""

    setting: str
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the rest is expected to cost, in full evaluations, and who is suspected most."""

    remaining: float
    suspects: tuple[str, ...]


Event = ProbeStarted | ProbeEnded | Cleared | Accepted | Expected
Listener = Callable[[Event], None]


# Probe: one measurement of a search.


LAUNCH = 0.05  # of a full evaluation: what it costs to launch an assignment

Outcome = Literal["scored"] | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One measurement: documents scored under an assignment that had not been scored before.

    Attributes:
        settings: those at their candidate value, in the order in which they were declared.
        documents: how many were scored now.
        documents_so_far: how many are scored under this assignment in all.
        drift_sigma: drift of those, as reported, positive is worse; NaN if they were not scored.
        error_sigma: its standard error as an estimate for all documents; NaN likewise.
        outcome: scored, or why not: cannot_build, crashed, out_of_memory, timed_out, not_finite.
        untestable: the same in words; empty if scored.
        cost: in full evaluations: the share of the documents, and LAUNCH the first time.
    """

    settings: tuple[str, ...]
    documents: int
    documents_so_far: int
    drift_sigma: float
    error_sigma: float
    outcome: Outcome
    untestable: str
    cost: float


# Twins: assignments that score every document alike, and so are one measurement.
#
# They differ in settings that do nothing. Their jitter is the same jitter: it does not average out
# over them, and that they agree says nothing about how large it is.


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
    for one in sorted(of.tolist(), key=lambda at: -drifts[at].size):
        for other in np.flatnonzero(near[one] & (of == np.arange(of.size))).tolist():
            longer = drifts[other].size >= drifts[one].size
            if other != one and longer and are_twins(drifts[one], drifts[other]):
                of[of == of[one]] = other
                break
    return of


def are_twins(one: Floats, other: Floats) -> bool:
    """Whether two assignments drift alike on every document that both are measured on."""
    common = min(one.size, other.size)
    apart = one[:common] - other[:common]
    return float(apart @ apart) <= ALIKE * common * float(np.var(one[:common]))
