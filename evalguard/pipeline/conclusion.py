"""Conclusion: from both sides' scores to everything that a comparison has to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone

import evalguard
from evalguard.compare_report import CompareReport
from evalguard.gate import exit_code
from evalguard.lmeval_runs import environment_differences
from evalguard.pipeline.baseline.differences import baseline_differences
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.clusters import clustered, not_compared
from evalguard.pipeline.distributions import distributions_of
from evalguard.pipeline.environment import environments
from evalguard.pipeline.fairness import other_batches
from evalguard.pipeline.groups import with_groups, without_aggregate
from evalguard.pipeline.judgement import Judgement, judge
from evalguard.pipeline.judging import comparable, compare_by_document, split_comparable
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.scored import Scored
from evalguard.pipeline.stops import Stops
from evalguard.pipeline.stored_floor import beside_floors
from evalguard.redaction import redacted_text
from evalguard.scores import NotCompared
from evalguard.settings import Value


def concluded(
    scored: tuple[Scored, Scored],
    choices: Choices,
    options: CompareOptions,
    stops: Stops | None = None,
) -> CompareReport:
    """Judge both sides' scores, and put together all there is to say about them."""
    base, candidate = scored
    judgement, unused = judged(scored, choices, options, stops)
    gate = judgement.gate
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
        gate=gate,
        across_tasks=judgement.across_tasks,
        across_tasks_reason=judgement.across_tasks_reason,
        sequential=None if stops is None else stops.run,
        distributions=held.distributions,
        exit_code=exit_code(gate, strict=options.strict, git_bisect=options.git_bisect),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=environments(base.environment, candidate.environment),
        not_compared=_not_compared(base, candidate, judgement),
        notes=tuple(dict.fromkeys((*choices.notes, *unused, *_notes(base, candidate), *more))),
        command=redacted_text(options.command),
        version=evalguard.__version__,
    )


def judged(
    scored: tuple[Scored, Scored],
    choices: Choices,
    options: CompareOptions,
    stops: Stops | None = None,
) -> tuple[Judgement, tuple[str, ...]]:
    """Judge both sides' scores; the notes are about clusters of tasks that are not compared."""
    base, candidate = scored
    tables = [
        clustered(
            comparable(side.tables, other.not_compared),
            {**other.fields, **side.fields},  # what a history keeps has none
            choices.clusters,
        )
        for side, other in ((base, candidate), (candidate, base))
    ]
    compared = {table.task for side in tables for table in side}
    unused = () if options.tasks else not_compared(choices.clusters, compared)
    of_tasks, undefined = split_comparable(
        compare_by_document(*tables, gate=choices.gate, allow=choices.allow, stops=stops)
    )
    groups = (base.groups, candidate.groups)
    of_groups = with_groups(
        of_tasks,
        groups,
        left_out=(*base.not_compared, *candidate.not_compared, *undefined),
        gate=choices.gate,
    )
    distributions = distributions_of(
        candidate.divergences.values(), tables[0], confidence=choices.gate.confidence
    )
    judgement = judge(of_groups, gate=choices.gate, distributions=distributions)
    absent = without_aggregate(of_tasks, groups)
    return replace(judgement, not_compared=(*undefined, *absent)), unused


def _not_compared(base: Scored, candidate: Scored, judgement: Judgement) -> tuple[NotCompared, ...]:
    left_out = (*base.not_compared, *candidate.not_compared, *judgement.not_compared)
    return tuple(dict.fromkeys(left_out))


def _as_run(side: Scored) -> Mapping[str, Value]:
    """How a side was made, by the names that a finished lm-eval run has."""
    if side.identity.kind == "lm-eval run":
        return side.environment
    packages = side.environment.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    described = side.description
    return {
        **{f"{name}_version": versions.get(name) for name in ("lm_eval", "transformers")},
        "dtype": described.dtype or None if described else None,
        "max_length": described.max_length or None if described else None,
    }


def _notes(base: Scored, candidate: Scored) -> tuple[str, ...]:
    """What both sides' making left to say, and where two stored runs were made differently."""
    differences: tuple[str, ...] = ()
    if "lm-eval run" in (base.identity.kind, candidate.identity.kind):
        differences = environment_differences(_as_run(base), _as_run(candidate))
    if base.identity.kind == "stored run":
        differences = baseline_differences(base.environment, candidate.environment)
    both = [note for note in base.notes if note in candidate.notes]
    own = [
        f"{side.identity.name}: {note}"
        for side in (base, candidate)
        for note in side.notes
        if note not in both
    ]
    return (*both, *own, *differences, *other_batches(base.description, candidate.description))
