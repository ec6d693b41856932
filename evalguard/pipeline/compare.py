"""The main job: two sides in, a verdict out."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import evalguard
from evalguard.compare_report import CompareReport
from evalguard.gate import exit_code
from evalguard.lmeval_runs import environment_differences
from evalguard.pipeline.choices import Choices, choose
from evalguard.pipeline.clusters import clustered, not_compared
from evalguard.pipeline.distribution_choice import check_measurable
from evalguard.pipeline.distributions import distributions_of
from evalguard.pipeline.environment import environments
from evalguard.pipeline.fairness import other_batches
from evalguard.pipeline.groups import with_groups, without_aggregate
from evalguard.pipeline.guards import find_guards
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.judgement import Judgement, judge
from evalguard.pipeline.judging import comparable, compare_by_document
from evalguard.pipeline.measured_floor import given_floor
from evalguard.pipeline.meter import Meter
from evalguard.pipeline.open_scorer import Opener
from evalguard.pipeline.options import CompareOptions, make_options
from evalguard.pipeline.preflight import check_models
from evalguard.pipeline.record import write_run
from evalguard.pipeline.result import CompareResult
from evalguard.pipeline.scored import Scored, scored_model, scored_run
from evalguard.pipeline.scoring import score_models
from evalguard.pipeline.sequential import score_in_looks
from evalguard.pipeline.sequential_choice import checked_sequential, worth_looking
from evalguard.pipeline.sources import (
    ModelSource,
    RunSource,
    Side,
    Source,
    resolve,
    tell_apart,
)
from evalguard.pipeline.stops import Stops
from evalguard.pipeline.stored_floor import beside_floors
from evalguard.redaction import redacted_text
from evalguard.scores import NotCompared
from evalguard.store import check_writable

DEFAULT_OUTPUT = Path("reports")


def compare(
    base: str | Path, candidate: str | Path, options: CompareOptions | None = None, **given: Any
) -> CompareResult:
    """Compare a candidate with its base on the same documents.

    Args:
        base, candidate: each a model's name in the guard file, a model folder, a hub id, or the
            folder (or results file) of an lm-eval run made with ``--log_samples``.
        options: how to compare; ``given`` are fields of ``CompareOptions`` that override it, e.g.
            ``tasks=["lambada_openai"], limit=500``.

    Returns:
        The result; a regression is a result, not an exception. See ``CompareResult``.

    Raises:
        UsageError: for names, options or guard files that cannot be used.
        EvaluationError: if a model could not be loaded or scored: nothing is known then.
        Interrupted: on Ctrl-C.
    """
    meter = Meter()
    options = make_options(options, **given)
    output = options.output_path or DEFAULT_OUTPUT
    with interruptible("reading what is to be compared"):
        given_floor(options)  # refused now, not after the models were scored
        sources, choices = prepare(str(base), str(candidate), options)
        choices = checked_sequential(sources, choices, options)
        check_measurable(choices.gate, choices.distributions, choices.policy.scorer)
        if options.write:
            check_writable(output)
    stops: Stops | None = None
    with interruptible("scoring"):
        if worth_looking(sources, choices):
            scored, stops = score_in_looks(sources, choices, options, meter=meter)
        else:
            scored = score_sides(sources, choices, options, meter=meter)
    with interruptible("comparing the scores"):
        with meter.phase("comparing"):
            report = _concluded(scored, choices, options, stops)
        report = replace(report, resources=meter.resources())
        return CompareResult(_written(report, scored, output) if options.write else report)


def _written(report: CompareReport, scored: tuple[Scored, Scored], output: Path) -> CompareReport:
    base, candidate = scored
    return write_run(
        report, base.samples, candidate.samples, output, divergences=candidate.divergences
    )


def prepare(
    base: str, candidate: str, options: CompareOptions
) -> tuple[tuple[Source, Source], Choices]:
    """Settle what is compared, and how; refuse whatever can be seen to be wrong by now."""
    cwd = Path.cwd()
    guards, notes = find_guards((base, candidate), options, cwd=cwd)
    sources = tell_apart(
        resolve(_side("base", base, options), guards, options, cwd=cwd),
        resolve(_side("cand", candidate, options), guards, options, cwd=cwd),
    )
    choices = choose(sources[0], sources[1], guards, options)
    choices = replace(choices, notes=(*choices.notes, *notes))
    check_models(source for source in sources if isinstance(source, ModelSource))
    return sources, choices


def _side(role: str, spec: str, options: CompareOptions) -> Side:
    model_args, assignment = (
        (options.base_model_args, options.base_set)
        if role == "base"
        else (options.cand_model_args, options.cand_set)
    )
    return Side(role=role, spec=spec, model_args=model_args, assignment=assignment)


def score_sides(
    sources: tuple[Source, Source],
    choices: Choices,
    options: CompareOptions,
    *,
    opener: Opener | None = None,
    meter: Meter | None = None,
) -> tuple[Scored, Scored]:
    """Score the sides that are models; the others have their scores.

    Args:
        opener: loads a model in place of ``open_scorer``, for a caller that watches it work.
        meter: counts what this takes.
    """
    models = [source for source in sources if isinstance(source, ModelSource)]
    evaluations = iter(score_models(models, choices, options, opener=opener, meter=meter))
    base, candidate = (
        scored_run(source)
        if isinstance(source, RunSource)
        else scored_model(source, next(evaluations))
        for source in sources
    )
    return base, candidate


def _concluded(
    scored: tuple[Scored, Scored],
    choices: Choices,
    options: CompareOptions,
    stops: Stops | None,
) -> CompareReport:
    base, candidate = scored
    judgement, unused = _judged(scored, choices, options, stops)
    judged = judgement.gate
    held = beside_floors(
        judgement.comparisons,
        judgement.distributions,
        base.tables,
        base.description,
        options,
    )
    more = (*judgement.notes, *held.notes)
    return CompareReport(
        base=base.identity,
        candidate=candidate.identity,
        comparisons=held.comparisons,
        gate=judged,
        across_tasks=judgement.across_tasks,
        across_tasks_reason=judgement.across_tasks_reason,
        sequential=None if stops is None else stops.run,
        distributions=held.distributions,
        exit_code=exit_code(judged, strict=options.strict, git_bisect=options.git_bisect),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=environments(base.environment, candidate.environment),
        not_compared=_not_compared(base, candidate, judgement),
        notes=tuple(dict.fromkeys((*choices.notes, *unused, *_notes(base, candidate), *more))),
        command=redacted_text(options.command),
        version=evalguard.__version__,
    )


def _judged(
    scored: tuple[Scored, Scored],
    choices: Choices,
    options: CompareOptions,
    stops: Stops | None,
) -> tuple[Judgement, tuple[str, ...]]:
    """Judge both sides' scores; the notes are about clusters of tasks that are not compared."""
    base, candidate = scored
    tables = [
        clustered(comparable(side.tables, other.not_compared), side.fields, choices.clusters)
        for side, other in ((base, candidate), (candidate, base))
    ]
    compared = {table.task for side in tables for table in side}
    unused = () if options.tasks else not_compared(choices.clusters, compared)
    of_tasks = compare_by_document(*tables, gate=choices.gate, allow=choices.allow, stops=stops)
    groups = (base.groups, candidate.groups)
    of_groups = with_groups(
        of_tasks,
        groups,
        left_out=(*base.not_compared, *candidate.not_compared),
        gate=choices.gate,
    )
    distributions = distributions_of(
        candidate.divergences.values(), tables[0], confidence=choices.gate.confidence
    )
    judgement = judge(of_groups, gate=choices.gate, distributions=distributions)
    absent = without_aggregate(of_tasks, groups)
    return replace(judgement, not_compared=absent), unused


def _not_compared(base: Scored, candidate: Scored, judgement: Judgement) -> tuple[NotCompared, ...]:
    left_out = (*base.not_compared, *candidate.not_compared, *judgement.not_compared)
    return tuple(dict.fromkeys(left_out))


def _notes(base: Scored, candidate: Scored) -> tuple[str, ...]:
    """What both sides' making left to say, and where two stored runs were made differently."""
    differences: tuple[str, ...] = ()
    if base.identity.kind == candidate.identity.kind == "lm-eval run":
        differences = environment_differences(base.environment, candidate.environment)
    both = [note for note in base.notes if note in candidate.notes]
    own = [
        f"{side.identity.name}: {note}"
        for side in (base, candidate)
        for note in side.notes
        if note not in both
    ]
    return (*both, *own, *differences, *other_batches(base.description, candidate.description))
