"""``plan``: what a comparison would show and cost, from a pilot on a sample of its documents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import evalguard
from evalguard.core.answer_figures import FIGURES
from evalguard.core.figure_names import split_name
from evalguard.core.limits import KINDS, OF_ANSWERS
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.plan_report import PilotFacts, PlanReport, Role, TaskCost
from evalguard.core.scores import NotCompared
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, UsageError
from evalguard.run.choices import Choices, with_workers
from evalguard.run.compare import resolve_request
from evalguard.run.interrupts import NOTHING_CACHED, interruptible
from evalguard.run.meter import Meter
from evalguard.run.options import CompareOptions, make_options
from evalguard.run.run_environment import read_environment
from evalguard.run.sample_size.metric_plans import PlanAim, plan_limits, plan_metrics
from evalguard.run.sample_size.pace import expected_cost
from evalguard.run.sample_size.plan_result import PlanResult
from evalguard.run.scoring.score_models import score_sides
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.run.sources import DumpSource, ModelSource, Source
from evalguard.run.stored_base import is_parquet
from evalguard.run_token import run_scope
from evalguard.stats.metric_plan import MetricPlan

DEFAULT_PILOT = 64
DEFAULT_POWER = 0.8
_ROLES: tuple[Role, Role] = ("base", "candidate")


@run_scope()
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
        save_reference=None,
        reference_top_k=None,
    )
    if pilot < 2:
        raise UsageError(f"a pilot of {pilot} documents shows no scatter", hint="take 64 or more")
    _refuse_kept_answers(Path(base))
    _refuse_other_limits(options)
    with interruptible("reading what is to be planned", hint=NOTHING_CACHED):
        sources, choices = resolve_request(str(base), str(candidate), options)
        options = with_workers(options, choices)
    aim = PlanAim.of(choices.gate, power)
    sampled = dataclasses.replace(choices.task_options, sample=pilot)
    choices = dataclasses.replace(choices, task_options=sampled)
    meter = Meter(steady=True)
    with interruptible("scoring the pilot", hint=NOTHING_CACHED):
        scored = score_sides(sources, choices, options, meter=meter)
    scored = _drop_unplannable(scored[0]), _drop_unplannable(scored[1])
    metrics, failed = plan_metrics(scored, sources, choices, aim)
    limits = plan_limits(scored[1], choices, aim)
    roles = _scored_roles(sources)
    dumps = isinstance(sources[0], DumpSource)
    facts = PilotFacts(kind="dumps" if dumps else "lm-eval runs")
    if roles:
        facts = PilotFacts(kind="sample", documents=pilot, seed=sampled.seed)
    report = PlanReport(
        base=scored[0].identity,
        candidate=scored[1].identity,
        metrics=metrics,
        limits=limits,
        costs=_task_costs(meter, roles, metrics, confidence=aim.confidence),
        load_seconds={role: meter.load_seconds(name) for role, name in roles.items()},
        pilot=facts,
        aim=aim.facts(metrics),
        exit_code=EXIT_FAILED if failed or not (metrics or limits) else EXIT_PASSED,
        not_compared=tuple(dict.fromkeys(left for side in scored for left in side.not_compared)),
        notes=_plan_notes((*choices.notes, *_clusters_note(choices)), scored),
        **sign_plan(options),
    )
    return PlanResult(report)


def _refuse_kept_answers(base: Path) -> None:
    """Refuse a file of a base's answers: what it was not asked, nobody can ask it now."""
    path = base.expanduser()
    if is_parquet(path):
        raise UsageError(
            f"--base {base} is a file of a base's answers: a plan scores a sample of documents "
            "with both models, and no model can be loaded from it",
            hint="name the model: --base MODEL; a finished comparison is planned from with "
            "--run FOLDER",
        )


def _refuse_other_limits(options: CompareOptions) -> None:
    """Refuse limits of which no plan is made: they would seem to be planned."""
    for name in options.gate_limits:
        metric = split_name(name)[1]
        if metric in KINDS and (metric not in FIGURES or metric == OF_ANSWERS):
            raise UsageError(
                f"a limit on {metric} is not planned: only those on figures of answers are",
                hint=f"leave out --gate-metric {name}; evalguard floor says what {metric} comes to "
                "unchanged",
            )


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
    return (*(one.sentence for one in (*side.findings, *of_model)), *side.notes)


def _scored_roles(sources: Sequence[Source]) -> dict[Role, str]:
    pairs = zip(_ROLES, sources, strict=True)
    return {role: source.name for role, source in pairs if isinstance(source, ModelSource)}


def _task_costs(
    meter: Meter,
    roles: Mapping[Role, str],
    metrics: Sequence[MetricPlan],
    *,
    confidence: float,
) -> tuple[TaskCost, ...]:
    """What the planned run costs, task by task; a task without metrics costs what it costs too."""
    planned = {metric.pilot.task: metric.n for metric in metrics}
    return tuple(
        expected_cost(pace, task, role, n, confidence=confidence)
        for task, n in planned.items()
        for role, name in roles.items()
        for pace in [meter.pace(name, task)]
        if pace is not None
    )
