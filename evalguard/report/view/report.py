"""ReportView: everything that a page about a comparison lays out, as text that is safe to show."""

from __future__ import annotations

from dataclasses import dataclass

from evalguard.gate_reason import GateState
from evalguard.limits import LimitState
from evalguard.report.tracked_words import TrackedView
from evalguard.report.view.bisection import BisectionView
from evalguard.report.view.caveats import Caveat
from evalguard.report.view.distribution import DistributionView
from evalguard.report.view.metric import MetricView, TaskView
from evalguard.report.view.side import SideView


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """An absolute limit of the gate: its state, and a line that begins with that.

    ``label`` is the figure and what it was measured on: "kl_mean on lastword"; ``found`` is the
    line without the state.
    """

    state: LimitState
    label: str
    line: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """A comparison as texts: rounded by its standard errors, without a character that acts.

    No text holds a control, bidirectional, invisible or unencodable character or a line break;
    markup is not escaped, that is each renderer's own. A text is "" (a tuple ()) where there is
    nothing to say.

    Attributes:
        title: "fla-port against orig".
        state: what the gate says, ``passed`` whether it lets the candidate through.
        headline: "REGRESSED: 4 regressed, 3 undecided".
        gate: "margin 1.0 sigma, fail on margin; an unchanged candidate would ...".
        verdict: headline, exit code, culprits and gate as one paragraph.
        first: the verdict in a line: state, worst metric, the gate's rule, exit code.
        cause: the culprits and what is left without them; or why no setting was searched for.
        spread: how far the distributions are apart, in a line.
        touching: those of the caveats that bear on the verdict.
        sentence: what it all means, ``lead`` without what a bisection adds to it, which is
            ``because``; ``next_step`` without a full stop, and its ``next_command``.
        tasks: with all their metrics; ``legend`` of their table; ``interval_header`` says what
            interval sigma has; ``hidden`` about subtasks that ``shown`` is False of.
        distributions: one per task, with ``distributions_legend``.
        across: all metrics together. ``answers``: flips and churn, of the first metrics that
            differ. ``stopping``: of a sequential run. ``floor``: the drift beside that of an
            unchanged model. ``influence``: which documents carry the drift that it is about.
        limits: absolute limits. ``accepted``: what waivers let through.
        caveats: numbered, notes about the whole run last; ``notes`` are these alone.
        left_out: what was not compared, and why.
        bisection: None where there was none, with ``bisection_reason`` where one was expected.
        environment: (name, value). ``resources``: what it took. ``tracked``: what became of it
            at experiment trackers.
    """

    title: str
    state: GateState
    passed: bool
    exit_code: int
    headline: str
    gate: str
    verdict: str
    first: str
    cause: str
    spread: str
    touching: tuple[Caveat, ...]
    sentence: str
    lead: str
    because: tuple[str, ...]
    next_step: str
    next_command: str
    base: SideView
    candidate: SideView
    tasks: tuple[TaskView, ...]
    legend: str
    interval_header: str
    hidden: tuple[str, ...]
    distributions: tuple[DistributionView, ...]
    distributions_legend: str
    across: str
    answers: tuple[str, ...]
    stopping: tuple[str, ...]
    floor: str
    influence: str
    limits: tuple[LimitView, ...]
    accepted: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]
    bisection: BisectionView | None
    bisection_reason: str
    environment: tuple[tuple[str, str], ...]
    command: str
    created: str
    version: str
    run_folder: str
    resources: str
    tracked: tuple[TrackedView, ...]

    @property
    def metrics(self) -> tuple[MetricView, ...]:
        """The metrics of all tasks."""
        return tuple(metric for task in self.tasks for metric in task.metrics)
