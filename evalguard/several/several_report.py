"""SeveralReport: several candidates of one base, and the steps between them, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import Figure
from evalguard.core.exit_code import gravest_exit_code
from evalguard.core.gate_state import GateState, Key
from evalguard.errors import EXIT_FAILED

SCHEMA = "evalguard.compare-several/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDrift:
    """What one step of a chain adds to the drift of a metric; positive is worse.

    Attributes:
        sigma: in standard errors of the chain's base, so that the steps to a candidate add up to
            its drift; None where there is no number.
        interval: paired two-sided interval of it, at the confidence of the gate.
        p_value: one-sided, that a step without effect looks at least this much worse.
        n: documents used.
    """

    task: str
    filter: str
    metric: str
    sigma: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    n: int

    @property
    def key(self) -> Key:
        """(task, filter, metric)."""
        return self.task, self.filter, self.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A candidate against the candidate before it in the chain, on the same documents.

    ``report`` is their own comparison, in standard errors of the candidate before.
    """

    report: CompareReport
    drifts: tuple[StepDrift, ...]

    @property
    def names(self) -> tuple[str, str]:
        """Names of the candidate before and of this one."""
        return self.report.base.name, self.report.candidate.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NoVerdict:
    """A candidate that could not be loaded or scored; ``hint`` says what to do."""

    name: str
    reason: str
    hint: str = ""
    exit_code: int = EXIT_FAILED


# What a step of a chain is: to another library or model type, to fewer bits; "": neither, or both.
StepKind = Literal["engine", "quantisation", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPart:
    """What one step on the way to a candidate adds to its mean KL from the base.

    Attributes:
        step: names of the model before and after it.
        kl: in nats a token: mean KL(base || after) - mean KL(base || before).
        share: of the candidate's mean KL; the shares of all its steps add up to 1.
    """

    step: tuple[str, str]
    kind: StepKind
    kl: Figure
    share: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class KlSplit:
    """A candidate's mean KL from the base, over all tasks, split over the steps of its chain."""

    candidate: str
    parts: tuple[KlPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralReport:
    """Several candidates, each judged against one base by its own gate.

    Attributes:
        base: its name.
        candidates: in the order in which they were given.
        steps: of a chain, but for those that begin at the base: they are its first candidates'
            comparisons.
        kl_splits: of the candidates of a chain whose distributions were compared and moved.
        notes: why there are no steps where some were asked for.
    """

    base: str
    candidates: tuple[CompareReport | NoVerdict, ...]
    steps: tuple[Step, ...] = ()
    kl_splits: tuple[KlSplit, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def reports(self) -> tuple[CompareReport, ...]:
        """Of the candidates that have a verdict."""
        return tuple(
            candidate for candidate in self.candidates if isinstance(candidate, CompareReport)
        )

    @property
    def state(self) -> GateState:
        """The gravest state of all candidates."""
        states = {state_of(candidate) for candidate in self.candidates}
        gravest: tuple[GateState, ...] = ("regressed", "failed", "undecided")
        return next((state for state in gravest if state in states), "passed")

    @property
    def exit_code(self) -> int:
        """That of the gravest candidate."""
        return gravest_exit_code(report.exit_code for report in self.candidates)

    def path(self, candidate: str) -> tuple[tuple[str, str], ...]:
        """Return the steps from the base to a candidate, each by its two names."""
        before = {step.names[1]: step.names[0] for step in self.steps}
        path = [candidate]
        while path[-1] in before:
            path.append(before[path[-1]])
        ends = [self.base, *reversed(path)]
        return tuple(pairwise(ends))


def state_of(candidate: CompareReport | NoVerdict) -> GateState:
    """Return what a candidate came to."""
    return "failed" if isinstance(candidate, NoVerdict) else candidate.gate.state


def step_drifts(of_step: Sequence[Comparison], of_chain: Sequence[Comparison]) -> list[StepDrift]:
    """Return the drifts of a step in standard errors of the chain's base.

    A drift is a difference of two values of a metric over a standard error, so that those of the
    steps add up where they are over the same one: with values x0, x1, x2 and the base's standard
    error s, (x2 - x0) / s = (x1 - x0) / s + (x2 - x1) / s.

    Args:
        of_step: comparisons of the step's two candidates.
        of_chain: comparisons of any of them with the base.
    """
    scale = {comparison.key: comparison.base_stderr for comparison in of_chain}
    return [_step_drift(comparison, scale.get(comparison.key)) for comparison in of_step]


def _step_drift(comparison: Comparison, base_stderr: float | None) -> StepDrift:
    sigma, interval = comparison.sigma, comparison.sigma_interval
    if comparison.bit_identical:
        sigma, interval = 0.0, (0.0, 0.0)
    elif sigma is not None and comparison.base_stderr and base_stderr:
        factor = comparison.base_stderr / base_stderr
        sigma *= factor
        interval = None if interval is None else (interval[0] * factor, interval[1] * factor)
    elif comparison.flips == (0, 0):  # of bases that do not scatter: no score changes
        sigma, interval = 0.0, (0.0, 0.0)
    else:
        sigma, interval = None, None
    return StepDrift(
        task=comparison.task,
        filter=comparison.filter,
        metric=comparison.metric,
        sigma=sigma,
        interval=interval,
        p_value=comparison.p_value,
        n=comparison.n_used,
    )
