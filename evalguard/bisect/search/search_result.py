"""BisectResult: who makes the drift, what each costs, how sure that is, and what it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evalguard.bisect.search.components import Kind
from evalguard.core.question import Refusal

LAUNCH = 0.05  # of a full evaluation: what it costs to launch an assignment
Outcome = Literal["scored"] | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One measurement of a search; what was measured before a search started is none of its own.

    Attributes:
        settings: those at their candidate value, all others at reference.
        documents: how many were scored now.
        drift_sigma: of all scored so far, positive is worse; None if they were not scored.
        outcome: scored, or why not in one of a few words.
        cost: in full evaluations.
        documents_so_far: scored in all under this assignment.
        error_sigma: its standard error, as an estimate for all documents.
        reason: why not, in words; "" if scored.
    """

    settings: tuple[str, ...]
    documents: int
    documents_so_far: int
    drift_sigma: float | None
    error_sigma: float | None
    outcome: Outcome
    reason: str = ""
    cost: float


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
Status = Literal["minimal", "diffuse", "masked", "not_reproduced", "stopped", "unexplained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A setting that is shown, on all documents, to make drift.

    Attributes:
        name: of the setting.
        sigma_alone: drift with it alone at its candidate value, on a quarter of the documents or
            more; None if that was not measured: it cannot be built, or the proof did without.
        alone_error_sigma: standard error of that, as an estimate for all documents; None likewise.
        alone_share: share of the documents that it was measured on; 0.0 if it was not.
        sigma_in_context: what it adds where all other culprits are at their candidate value.
        shapley_sigma: its share: what it adds on average over all orders of the culprits.
        error_sigma: standard error of its effect (jitter).
        role: additive; together: acts with its partners only; redundant: its partner does the same.
        partners: the settings that it acts with only, or that do the same; none of an additive one.
    """

    name: str
    sigma_alone: float | None
    alone_error_sigma: float | None
    alone_share: float
    sigma_in_context: float
    shapley_sigma: float
    error_sigma: float
    role: Kind
    partners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Neighbouring settings, and what they do as one, estimated: all that diffuse drift shows.

    Attributes:
        settings: their names.
        sigma: drift that they make.
        error_sigma: its standard error.
    """

    settings: tuple[str, ...]
    sigma: float
    error_sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A setting that is suspected and not proven.

    Attributes:
        probability: that it makes drift on these documents.
        p_value: of the one-sided paired test of its own effect, on all documents; None where that
            was not measured. Not adjusted: a setting is named where Holm's adjusted value over the
            settings searched is at most 0.05.
        name: of the setting.
    """

    name: str
    probability: float
    p_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectResult:
    """What a search found. All drifts as reported (see ``Yardstick``), positive is worse.

    Attributes:
        status: minimal: the culprits are proven, without them the gate passes, and none can be
            left out. masked: likewise, and some hide what others do. diffuse: spread over many
            settings, of which none can be named. not_reproduced: the candidate is inside the
            margin and nothing hides another's drift. stopped: interrupted, or out of budget.
            unexplained: what is proven does not bring the drift inside the margin; ``untestable``
            says whether that is because assignments could not be built.
        culprits: proven, the largest share first.
        drift_sigma: of the candidate; NaN if it was not measured.
        unexplained_sigma: drift that is left with all culprits at reference; NaN likewise.
        suspects: not proven, the likeliest first.
        parts: of diffuse drift.
        repaired: settings that keep their candidate value in the repaired candidate, which was or
            would have been measured: all but the culprits and what cannot be built without them.
        eliminated: whether the repaired candidate scores every document as the base does, bit by
            bit: then the culprits hold all of the drift, and no jitter of others stands against
            it. Whether that drift is more than chance is for the gate to say.
        inert: settings of assignments that scored every document measured as the base does, but
            for culprits and suspects: what acts only with a partner does nothing by itself.
        probes: all measurements, in order.
        cost: of the probes, in full evaluations; base and candidate are not in it.
    """

    status: Status
    culprits: tuple[Culprit, ...] = ()
    drift_sigma: float
    unexplained_sigma: float
    suspects: tuple[Suspect, ...] = ()
    parts: tuple[Part, ...] = ()
    repaired: tuple[str, ...] = ()
    eliminated: bool = False
    inert: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()
    cost: float = 0.0

    @property
    def untestable(self) -> tuple[Probe, ...]:
        """Probes of assignments that could not be built or run, with the reason of each."""
        return tuple(probe for probe in self.probes if probe.outcome != "scored")


Unit = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """``size``: the base's standard error, in units of the scores.

    ``unit``: from a mean drift in yardsticks to what is reported, monotone; None: as it is. Where a
    metric is not a mean over documents but a monotone function of one, decisions are taken on the
    mean, and what is reported are differences of the metric.
    """

    size: float
    unit: Unit | None = None

    def reported(self, sigma: float) -> float:
        """What a drift of so many yardsticks is reported as; 0 is 0."""
        return sigma if self.unit is None else self.unit(sigma) - self.unit(0.0)

    def reported_with_error(self, sigma: float, error: float) -> tuple[float, float]:
        """Likewise, with its standard error: half of what lies between one below and one above."""
        above, below = self.reported(sigma + error), self.reported(sigma - error)
        return self.reported(sigma), abs(above - below) / 2.0
