"""``plan``: what a comparison would show and cost, from a pilot on a sample of its documents."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import evalguard
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.plan_report import ExpectedDrift, PilotFacts, PlanReport, Role, TaskCost
from evalguard.core.scorer import ModelDescription, Request, Response, Scorer, ScoringPolicy
from evalguard.core.scores import NotCompared
from evalguard.core.settings import Value, Variant
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, UsageError
from evalguard.report.plan import plan_document, render_plan
from evalguard.run.choices import Choices, with_workers
from evalguard.run.compare import resolve_request
from evalguard.run.loading.lazy_scorer import open_scorer
from evalguard.run.meter import NOTHING_CACHED, interruptible
from evalguard.run.options import CompareOptions, make_options
from evalguard.run.record import read_environment
from evalguard.run.sample_size.pilot import PlanAim, plan_metrics
from evalguard.run.scoring.scoring import ScoredSide, score_sides
from evalguard.run.sources import ModelSource, Source
from evalguard.stats.finite_totals import expected_total
from evalguard.stats.metric_plan import MetricPlan

DEFAULT_PILOT = 64
DEFAULT_POWER = 0.8
_ROLES: tuple[Role, Role] = ("base", "candidate")


def plan(
    base: str | Path,
    candidate: str | Path,
    options: CompareOptions | None = None,
    *,
    pilot: int = DEFAULT_PILOT,
    power: float = DEFAULT_POWER,
    **given: Any,
) -> PlanResult:
    """Tell what a comparison would show, and what it would cost, before it runs.

    Both models score a random sample of every task's documents; nothing is judged or kept. Finished
    scores in the cache are not used, because nothing could be timed then. Two finished lm-eval runs
    are a pilot of all their documents.

    Args:
        base, candidate, options, given: as for ``evalguard.compare``; ``limit`` is that of the run
            to be planned, and ``seed`` also draws the sample.
        pilot: documents of the sample, per task.
        power: chance to see a drift that is there.

    Raises:
        UsageError, EvaluationError, Interrupted: as ``evalguard.compare``.
    """
    options = make_options(options, **given)
    options = dataclasses.replace(
        options,
        use_cache=False,
        verify_scorer=0,
        distributions="off",
        reference=None,
        reference_top_k=None,
    )
    if pilot < 2:
        raise UsageError(f"a pilot of {pilot} documents shows no scatter", hint="take 64 or more")
    with interruptible("reading what is to be planned", hint=NOTHING_CACHED):
        sources, choices = resolve_request(str(base), str(candidate), options)
        options = with_workers(options, choices)
    aim = PlanAim.of(choices.gate, power)
    sampled = dataclasses.replace(choices.task_options, sample=pilot)
    choices = dataclasses.replace(choices, task_options=sampled)
    watch = ScorerStopwatch()
    with interruptible("scoring the pilot", hint=NOTHING_CACHED):
        scored = score_sides(sources, choices, options, opener=watch.open)
    scored = _drop_unplannable(scored[0]), _drop_unplannable(scored[1])
    metrics, failed = plan_metrics(scored, sources, choices, aim)
    roles = _scored_roles(sources)
    facts = PilotFacts(kind="lm-eval runs")
    if roles:
        facts = PilotFacts(kind="sample", documents=pilot, seed=sampled.seed)
    report = PlanReport(
        base=scored[0].identity,
        candidate=scored[1].identity,
        metrics=metrics,
        costs=_task_costs(watch, roles, metrics, confidence=aim.confidence),
        load_seconds=dict(zip(roles, watch.load_seconds[-len(roles) :], strict=True)),
        pilot=facts,
        aim=aim.facts(metrics),
        exit_code=EXIT_FAILED if failed or not metrics else EXIT_PASSED,
        not_compared=tuple(dict.fromkeys(left for side in scored for left in side.not_compared)),
        notes=_plan_notes((*choices.notes, *_clusters_note(choices)), scored),
        **sign_plan(options),
    )
    return PlanResult(report)


def _drop_unplannable(side: ScoredSide) -> ScoredSide:
    """Leave out metrics whose scatter only resampling shows: a plan knows no formula for them."""
    left_out = tuple(
        NotCompared(
            task=table.task,
            filter=table.filter,
            metric=table.metric,
            reason="it is compared by a bootstrap, whose precision is not planned yet",
        )
        for table in side.tables
        if table.rescoring is not None
    )
    return dataclasses.replace(
        side,
        tables=tuple(table for table in side.tables if table.rescoring is None),
        not_compared=(*side.not_compared, *left_out),
    )


def _clusters_note(choices: Choices) -> tuple[str, ...]:
    if not choices.clusters.declared:
        return ()
    return (
        "documents are planned as independent: a random pilot cannot see how alike those of one "
        "cluster are, so that a comparison by clusters may need more",
    )


def sign_plan(options: CompareOptions) -> dict[str, Any]:
    """When, with what and by which command a plan was made."""
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": read_environment(),
        "command": redacted_text(options.command),
        "version": evalguard.__version__,
    }


def _plan_notes(own: tuple[str, ...], scored: tuple[ScoredSide, ScoredSide]) -> tuple[str, ...]:
    told = [_told_of(side) for side in scored]
    of_sides = (
        note if all(note in one for one in told) else f"{side.identity.name}: {note}"
        for side, notes in zip(scored, told, strict=True)
        for note in notes
    )
    return tuple(dict.fromkeys((*own, *of_sides)))


def _told_of(side: ScoredSide) -> tuple[str, ...]:
    """What is to be said of a side; a plan has no findings of its own."""
    of_model = () if side.description is None else side.description.findings
    return (*(one.text for one in (*side.findings, *of_model)), *side.notes)


def _scored_roles(sources: Sequence[Source]) -> list[Role]:
    pairs = zip(_ROLES, sources, strict=True)
    return [role for role, source in pairs if isinstance(source, ModelSource)]


def _task_costs(
    watch: ScorerStopwatch,
    roles: Sequence[Role],
    metrics: Sequence[MetricPlan],
    *,
    confidence: float,
) -> tuple[TaskCost, ...]:
    """What the planned run costs, task by task; a task without metrics costs what it costs too."""
    planned = {metric.pilot.task: metric.n for metric in metrics}
    return tuple(
        scorer.tasks[task].cost(task, role, n, confidence=confidence)
        for task, n in planned.items()
        for role, scorer in zip(roles, watch.scorers[-len(roles) :], strict=True)
        if task in scorer.tasks
    )


# Pace: how long models take to load and to score, and how many tokens they read.


# What is slow only once (kernels, threads, caches of a processor) is over after these.
_WARM_REQUESTS = 4


@dataclass(slots=True)
class ModelTiming:
    """What one model did for one task. ``hidden`` if any response did not tell its tokens."""

    seconds: float = 0.0
    tokens: dict[int, int] = field(default_factory=dict)
    hidden: bool = False

    def add(self, seconds: float, requests: Sequence[Request], answers: Sequence[Response]) -> None:
        """Count a scored block."""
        self.seconds += seconds
        for request, response in zip(requests, answers, strict=True):
            self.tokens[request.doc_id] = self.tokens.get(request.doc_id, 0) + response.n_tokens
            self.hidden = self.hidden or response.n_tokens == 0

    def cost(self, task: str, role: Role, n: int, *, confidence: float) -> TaskCost:
        """What n documents would need, of which these are a random sample."""
        tokens = np.array(list(self.tokens.values()), dtype=np.float64)
        measured = tokens if not self.hidden else np.ones_like(tokens)
        amount, low, high = expected_total(measured, n, confidence=confidence)
        per_unit = self.seconds / float(np.sum(measured))
        return TaskCost(
            task=task,
            role=role,
            pilot_documents=tokens.shape[0],
            pilot_seconds=self.seconds,
            pilot_tokens=None if self.hidden else int(np.sum(tokens)),
            n=n,
            seconds=ExpectedDrift(
                amount=amount * per_unit, low=low * per_unit, high=high * per_unit
            ),
            tokens=None if self.hidden else ExpectedDrift(amount=amount, low=low, high=high),
        )


class TimedScorer:
    """A scorer that measures its own pace, after a few requests to warm up for each kind."""

    def __init__(self, scorer: Scorer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._scorer = scorer
        self._clock = clock
        self._warm: set[str] = set()
        self.tasks: dict[str, ModelTiming] = defaultdict(ModelTiming)

    def describe(self) -> ModelDescription:
        """Return what was loaded."""
        return self._scorer.describe()

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed."""
        return self._scorer.encode(requests)

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score a block of requests and take the time."""
        kind = requests[0].kind
        if kind not in self._warm:
            self._warm.add(kind)
            self._scorer.score(requests[:_WARM_REQUESTS])
        start = self._clock()
        answers = self._scorer.score(requests)
        self.tasks[requests[0].task].add(self._clock() - start, requests, answers)
        return answers

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template."""
        return self._scorer.render_chat(messages, add_generation_prompt)

    def close(self) -> None:
        """Release the model."""
        self._scorer.close()


@dataclass(slots=True)
class ScorerStopwatch:
    """Opens scorers, in the order they are asked for, and keeps what they measured."""

    clock: Callable[[], float] = time.perf_counter
    load_seconds: list[float] = field(default_factory=list)
    scorers: list[TimedScorer] = field(default_factory=list)

    def open(
        self, variant: Variant, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
    ) -> Scorer:
        """Load a variant where it has to run, and take the time of that and all it will score."""
        start = self.clock()
        scorer = TimedScorer(open_scorer(variant, policy, options, cache_dir=cache_dir), self.clock)
        self.load_seconds.append(self.clock() - start)
        self.scorers.append(scorer)
        return scorer


# PlanResult: what ``evalguard.plan`` returns.


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A finished plan. ``report`` holds everything; the properties are shortcuts to it."""

    report: PlanReport

    @property
    def metrics(self) -> tuple[MetricPlan, ...]:
        """One plan per (task, filter, metric)."""
        return self.report.metrics

    @property
    def costs(self) -> tuple[TaskCost, ...]:
        """Expected time and tokens, per task and model."""
        return self.report.costs

    @property
    def exit_code(self) -> int:
        """What the command line ends with: 0, or 3 where a metric gave no scores."""
        return self.report.exit_code

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON contract (schema ``evalguard.plan/1``) as plain data."""
        return plan_document(self.report)

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the JSON contract as text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the plan."""
        return render_plan(self.report, width=width, color=color, verbose=verbose)
