"""``evalguard plan``: how many documents, by a pilot or by a finished run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import evalguard
from evalguard.comparison.compare import resolve_request
from evalguard.comparison.stored_base import is_parquet
from evalguard.comparison.stored_run import rebuild_report
from evalguard.config.options import CompareOptions, make_options
from evalguard.core.compare_report import RunIdentity
from evalguard.core.comparison import Comparison
from evalguard.core.figures import FIGURES, split_name
from evalguard.core.gate import Gate
from evalguard.core.limits import KINDS, OF_ANSWERS
from evalguard.core.redaction import redacted_text
from evalguard.core.scores import NotCompared
from evalguard.core.verdict import Margin
from evalguard.engine.choices import Choices, with_workers
from evalguard.engine.cluster_fields import cluster_documents, cluster_equal_prompts
from evalguard.engine.interrupts import NOTHING_CACHED, interruptible
from evalguard.engine.meter import Meter, TaskPace
from evalguard.engine.run_environment import read_environment
from evalguard.engine.score_models import score_sides
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import DumpSource, ModelSource, Source
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, UsageError
from evalguard.planning.metric_plan import MetricPlan
from evalguard.planning.metric_plans import PlanAim, plan_limits, plan_metrics
from evalguard.planning.pilot import pilot_of_comparison
from evalguard.planning.plan_page import PlanResult
from evalguard.planning.plan_report import ExpectedDrift, PilotFacts, PlanReport, Role, TaskCost
from evalguard.report.compare_document import COMPARE_SCHEMA
from evalguard.run_token import run_scope
from evalguard.stats.compare_scores import failed_comparison
from evalguard.stats.power import expected_total
from evalguard.store.run_folder import read_result


def expected_cost(pace: TaskPace, task: str, role: Role, n: int, *, confidence: float) -> TaskCost:
    """What n documents need, of which the pilot's are a random sample."""
    tokens = np.array(list(pace.tokens.values()), np.float64)
    if pace.hidden:
        tokens = np.ones_like(tokens)
    amount, low, high = expected_total(tokens, n, confidence=confidence)
    per_unit = pace.seconds / float(np.sum(tokens))
    return TaskCost(
        task=task,
        role=role,
        pilot_documents=tokens.shape[0],
        pilot_seconds=pace.seconds,
        pilot_tokens=None if pace.hidden else int(np.sum(tokens)),
        n=n,
        seconds=ExpectedDrift(amount=amount * per_unit, low=low * per_unit, high=high * per_unit),
        tokens=None if pace.hidden else ExpectedDrift(amount=amount, low=low, high=high),
    )


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
    roles = _scored_roles(sources)
    if not roles:
        scored = _in_clusters(scored, choices)
    metrics, failed = plan_metrics(scored, sources, choices, aim)
    limits = plan_limits(scored[1], choices, aim)
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
        not_compared=tuple(
            dict.fromkeys(excluded for side in scored for excluded in side.not_compared)
        ),
        notes=_plan_notes((*choices.notes, *(_clusters_note(choices) if roles else ())), scored),
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


def _in_clusters(
    scored: tuple[ScoredSide, ScoredSide], choices: Choices
) -> tuple[ScoredSide, ScoredSide]:
    """Finished runs with their clusters, as they are compared: all documents of each are there."""
    base, candidate = scored
    fields = {**base.fields, **candidate.fields}
    tables = [cluster_documents(side.tables, fields, choices.clusters) for side in scored]
    ours, theirs = cluster_equal_prompts(*tables)
    return dataclasses.replace(base, tables=ours), dataclasses.replace(candidate, tables=theirs)


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
    side_notes = [_told_of(side) for side in scored]
    of_sides = (
        note if all(note in noted for noted in side_notes) else f"{side.identity.name}: {note}"
        for side, notes in zip(scored, side_notes, strict=True)
        for note in notes
    )
    return tuple(dict.fromkeys((*own, *of_sides)))


def _told_of(side: ScoredSide) -> tuple[str, ...]:
    """What is to be said of a side; a plan has no findings of its own."""
    of_model = () if side.description is None else side.description.findings
    return (*(finding.sentence for finding in (*side.findings, *of_model)), *side.notes)


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


_NO_TIME = "a stored run keeps no times and no token counts: what the next run costs is not known"


def plan_from_run(
    run: str | Path,
    options: CompareOptions | None = None,
    *,
    power: float = DEFAULT_POWER,
    **given: Any,
) -> PlanResult:
    """Tell what a run like a stored one would show, and how many documents would be enough.

    Args:
        run: run folder, or its result.json.
        options, given: ``margin``, ``confidence`` (default: the stored run's own), ``tasks``
            (default: all) and ``limit``, the documents of the run to be planned (default: as many).
        power: chance to see a drift that is there.

    Raises:
        UsageError: for a folder without a result, or a result that lacks what a plan needs.
        StoreError: the result is damaged, or was changed.
    """
    options = make_options(options, **given)
    if options.limit is not None and options.limit < 2:
        raise UsageError(
            f"--limit {options.limit:g}: a stored run does not say how many documents a task has",
            hint="give a number of documents, 2 or more",
        )
    document = read_result(Path(run).expanduser(), schema=COMPARE_SCHEMA)
    rebuild_report(Path(run), document)  # refused where it contradicts itself
    try:
        entries = document["comparisons"]
        comparisons = [
            _stored_comparison(entry) for entry in entries if not _has_stopped_early(entry)
        ]
        gate = _stored_gate(document["gate"], entries, options)
        sides = [_stored_identity(document[role]) for role in ("base", "candidate")]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{run}: its result.json is damaged: {error!r}") from error
    if entries and not comparisons:
        raise UsageError(
            f"{run} stopped early on every task, and knows standard errors roughly only",
            hint="plan from the models themselves: --base and --cand",
        )
    aim = PlanAim.of(gate, power)
    chosen = [c for c in comparisons if not options.tasks or c.task in options.tasks]
    if not chosen:
        known = ", ".join(dict.fromkeys(c.task for c in comparisons)) or "none"
        raise UsageError(f"{run} has no task {', '.join(options.tasks)}", hint=f"it has: {known}")
    pilots = [pilot_of_comparison(c, confidence=aim.confidence) for c in chosen]
    gated = sum(gate.covers(*c.key) for c in chosen)
    plans = tuple(
        aim.plan(pilot, max(2, int(options.limit or c.n)), metrics=gated)
        for pilot, c in zip(pilots, chosen, strict=True)
    )
    failed = any(
        c.outcome == "failed" or plan.pilot.problem != pilot.problem
        for c, pilot, plan in zip(chosen, pilots, plans, strict=True)
    )
    report = PlanReport(
        base=sides[0],
        candidate=sides[1],
        metrics=plans,
        pilot=PilotFacts(kind="evalguard run", folder=str(run)),
        aim=aim.facts(plans),
        exit_code=EXIT_FAILED if failed else EXIT_PASSED,
        notes=(_NO_TIME, *_left_out_notes(entries), *_repeats_notes(document)),
        **sign_plan(options),
    )
    return PlanResult(report)


def _stored_gate(
    stored: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], options: CompareOptions
) -> Gate:
    """The stored gate's margins and confidence, where the options do not say otherwise."""
    # what is stored has to be possible, whether it counts or not
    gate = Gate(
        margin=_stored_number(stored["margin"]),
        margins=tuple(
            (f"{entry['task']}/{entry['metric']}", Margin.parse(entry["margin_text"]))
            for entry in entries
            if entry.get("margin_text")
        ),
        confidence=_stored_number(stored["confidence"]),
    )
    if options.margin is not None:
        gate = dataclasses.replace(gate, margins=())
    margin = gate.margin if options.margin is None else options.margin
    confidence = gate.confidence if options.confidence is None else options.confidence
    try:
        return dataclasses.replace(gate, margin=margin, confidence=confidence)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _stored_identity(stored: Mapping[str, Any]) -> RunIdentity:
    return RunIdentity(
        name=str(stored["name"]),
        digest=str(stored["digest"]),
        description=str(stored.get("description", "")),
    )


def _stored_comparison(entry: Mapping[str, Any]) -> Comparison:
    """What a plan needs of a stored comparison; a number that JSON cannot hold is null there."""
    flips, planned = entry.get("flips"), entry.get("planned_scatter", 1.0)
    names = ("base", "base_stderr", "candidate", "paired_stderr")
    numbers = {n: None if entry[n] is None else _stored_number(entry[n]) for n in names}
    bare = failed_comparison(
        (str(entry["task"]), str(entry["filter"]), str(entry["metric"])),
        str(entry["reason"]),
        higher_is_better=bool(entry["higher_is_better"]),
        n=int(entry["n"]),
    )
    return dataclasses.replace(
        bare,
        n_used=int(entry["n_used"]),
        method=str(entry["method"]),
        outcome=entry["outcome"],
        flips=None if flips is None else (int(flips[0]), int(flips[1])),
        clusters=entry.get("clusters"),
        drift=entry.get("drift"),
        planned_scatter=None if planned is None else _stored_number(planned),
        **numbers,  # type: ignore[arg-type]
    )


def _has_stopped_early(entry: Mapping[str, Any]) -> bool:
    """Whether its standard errors are estimates for more documents than were asked."""
    stopping = entry.get("stopping")
    return stopping is not None and int(stopping["n_used"]) < int(stopping["n_total"])


def _left_out_notes(entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    names = [f"{entry['task']} {entry['metric']}" for entry in entries if _has_stopped_early(entry)]
    if not names:
        return ()
    return (f"not planned, because the run stopped early there: {', '.join(names)}",)


def _repeats_notes(document: Mapping[str, Any]) -> tuple[str, ...]:
    entries = document.get("generations") or ()
    tasks = [str(entry["task"]) for entry in entries if int(entry.get("repeats") or 1) > 1]
    if not tasks:
        return ()
    return (
        f"how many answers to each document would be enough is not planned ({', '.join(tasks)}): a "
        "stored comparison keeps their mean; plan from the models (--base, --cand)",
    )


def _stored_number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a number")
    return number
