"""Every check beside the verdict, in the order in which a reader sees what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from evalguard.answers.compared_generations import (
    find_missing_answers,
    find_odd_choices,
    find_other_answers,
    find_stops,
)
from evalguard.comparison.checks.broken import BrokenAnswers, name_broken_answers
from evalguard.comparison.checks.dependent_documents import (
    DependentDocuments,
    find_dependent_documents,
    find_unseen_dependence,
)
from evalguard.comparison.checks.insensitive_tasks import find_insensitive_tasks
from evalguard.comparison.checks.nothing_known import find_silent_candidates
from evalguard.comparison.checks.padding_changes import find_padding_changes
from evalguard.comparison.checks.same_model import find_same_model
from evalguard.comparison.checks.side_differences import (
    SideDifference,
    find_side_differences,
    list_side_differences,
)
from evalguard.comparison.checks.spread_losses import find_spread_losses
from evalguard.comparison.checks.unexpected_scores import find_unexpected_scores
from evalguard.comparison.checks.untested_differences import find_untested_differences
from evalguard.comparison.gate_judgement import GateJudgement
from evalguard.comparison.stored_run import describe_differences
from evalguard.core.broken_documents import broken_findings
from evalguard.core.findings import Finding
from evalguard.core.scores import Tables
from evalguard.core.settings import Value
from evalguard.distributions.task_distributions import find_moved_distributions
from evalguard.engine.choices import Choices
from evalguard.engine.fairness import (
    OtherPrompts,
    find_declared_differences,
    note_batch_differences,
)
from evalguard.engine.first_answers import join_failing_answers
from evalguard.engine.rescored_answers import find_scoring_differences
from evalguard.engine.scored_side import ScoredSide
from evalguard.harness.finished_runs.run_facts import (
    engine_of,
    environment_differences,
    find_other_engines,
)
from evalguard.stats.judgement import MetricComparison


@dataclass(frozen=True, kw_only=True)
class JudgedScores:
    """What a check may look at.

    Attributes:
        sides: base and candidate, as they were scored.
        choices: what was asked for.
        tables: of each side, as they were compared: documents taken together in clusters.
        of_tasks: comparisons of tasks, those that failed among them; ``compared`` has the
            aggregates of groups as well.
        dependent: comparisons of documents that were found to drift alike.
        prompts: in which the two sides were asked differently.
        broken_answers: generated answers that the comparisons are without.
        judgement: the gate's answer, with all that is reported beside it.
        notes: about clusters of tasks that are not compared.
    """

    sides: tuple[ScoredSide, ScoredSide]
    choices: Choices
    tables: tuple[Tables, Tables]
    of_tasks: tuple[MetricComparison, ...]
    compared: tuple[MetricComparison, ...]
    dependent: tuple[DependentDocuments, ...]
    prompts: Mapping[str, OtherPrompts]
    broken_answers: tuple[BrokenAnswers, ...]
    judgement: GateJudgement
    notes: tuple[str, ...]

    @cached_property
    def differences(self) -> tuple[SideDifference, ...]:
        """Of the two models, as they say it themselves."""
        base, candidate = self.sides
        return list_side_differences(
            (base.identity, candidate.identity),
            (base.description, candidate.description),
            (base.declared, candidate.declared),
        )


def _find_unjudged(judged: JudgedScores) -> tuple[Finding, ...]:
    """Say which metrics the verdict is without, though the gate asks for them."""
    asked = {
        (omitted.task, omitted.metric): omitted.reason
        for side in judged.sides
        for omitted in side.not_compared
        if judged.choices.gate.covers(omitted.task, omitted.filter, omitted.metric)
    }
    if not asked or not judged.judgement.comparisons:
        return ()
    names = [f"{task} {metric}".strip() for task, metric in asked]
    shown, hidden = names[:_SHOWN_UNJUDGED], names[_SHOWN_UNJUDGED:]
    listed = ", ".join(shown) + (f" and {len(hidden)} more" if hidden else "")
    reason = f" ({next(iter(asked.values()))})" if len(asked) == 1 else ""
    text = f"the verdict is without {listed}{reason}"
    return (Finding(kind="not_judged", text=text, values={"metrics": tuple(names)}),)


_SHOWN_UNJUDGED = 3


def _find_silent(judged: JudgedScores) -> Iterable[Finding]:
    base, candidate = judged.sides
    return find_silent_candidates((base.tables, candidate.tables), judged.judgement.comparisons)


def _find_padding(judged: JudgedScores) -> Iterable[Finding]:
    base, candidate = judged.sides
    names = base.identity.name, candidate.identity.name
    return find_padding_changes(base.description, candidate.description, names)


def _find_moved(judged: JudgedScores) -> Iterable[Finding]:
    if judged.judgement.gate.state == "regressed":
        return ()
    return find_moved_distributions(judged.judgement.distributions)


def _find_failing_answers(judged: JudgedScores) -> Iterable[Finding]:
    base, candidate = judged.sides
    added = (finding for finding in candidate.findings if finding not in base.findings)
    return join_failing_answers((*base.findings, *added))


def _find_insensitive(judged: JudgedScores) -> Iterable[Finding]:
    base = judged.sides[0]
    rows = {task: of.samples for task, of in base.samples.items()}
    vocabulary = 0 if base.description is None else base.description.vocabulary_size
    return find_insensitive_tasks(judged.judgement.comparisons, rows, vocabulary=vocabulary)


def _find_unexpected(judged: JudgedScores) -> Iterable[Finding]:
    base, candidate = judged.sides
    return find_unexpected_scores(base.tables, candidate.tables, judged.judgement.comparisons)


def _find_of_models(judged: JudgedScores) -> Iterator[Finding]:
    """What was seen of each side's model while it was asked, with its name."""
    for side in judged.sides:
        findings = () if side.description is None else side.description.findings
        yield from (
            replace(finding, text=f"{side.identity.name}: {finding.text}") for finding in findings
        )


def _side_making(side: ScoredSide) -> Mapping[str, Value]:
    """How a side was made, by the names that a finished lm-eval run has."""
    if side.identity.kind == "lm-eval run":
        return side.environment
    packages = side.environment.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    described = side.description
    return {
        **{f"{name}_version": versions.get(name) for name in ("lm_eval", "transformers")},
        "model": engine_of(side.identity.model_type or None),
        "dtype": described.dtype or None if described else None,
        "max_length": described.max_length or None if described else None,
    }


def _find_other_making(judged: JudgedScores) -> tuple[Finding, ...]:
    """Where two sides were made differently in ways that pairing cannot see."""
    base, candidate = judged.sides
    differences: tuple[str, ...] = ()
    engines: tuple[Finding, ...] = ()
    if "lm-eval run" in (base.identity.kind, candidate.identity.kind):
        made = _side_making(base), _side_making(candidate)
        differences = environment_differences(*made)
        generated = any("generation_kwargs" in table.run for table in candidate.tables)
        engines = tuple(find_other_engines(*made, generated=generated))
    if base.identity.kind == "stored run" and base.environment:
        differences = describe_differences(base.environment, candidate.environment)
    differences += note_batch_differences(base.description, candidate.description)
    return (*engines, *(Finding(kind="made_differently", text=text) for text in differences))


def _find_declared(judged: JudgedScores) -> Iterable[Finding]:
    return find_declared_differences(judged.prompts) if "prompt" in judged.choices.allow else ()


def _find_dependent(judged: JudgedScores) -> Iterable[Finding]:
    known = {
        metric.comparison.key for metric in judged.of_tasks if metric.comparison.outcome != "failed"
    }
    return find_dependent_documents(
        [dependence for dependence in judged.dependent if dependence.comparison.key in known]
    )


def _find_lost_answers(judged: JudgedScores) -> Iterable[Finding]:
    base, candidate = judged.sides
    missing = find_missing_answers(judged.judgement.generations, (base.tables, candidate.tables))
    without = frozenset(finding.task for finding in missing)
    return (*missing, *name_broken_answers(judged.broken_answers, without))


Check = Callable[[JudgedScores], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    lambda judged: find_same_model(judged.sides),
    lambda judged: broken_findings(judged.judgement.broken_documents),
    _find_unjudged,
    _find_silent,
    _find_padding,
    _find_moved,
    _find_failing_answers,
    _find_insensitive,
    _find_unexpected,
    lambda judged: find_side_differences(judged.differences),
    lambda judged: find_untested_differences(judged.differences, judged.sides),
    _find_of_models,
    _find_other_making,
    lambda judged: find_scoring_differences(judged.judgement.comparisons, judged.sides),
    lambda judged: judged.judgement.findings,
    _find_declared,
    lambda judged: find_spread_losses(judged.compared, judged.judgement.gate, judged.tables[0]),
    _find_dependent,
    lambda judged: find_unseen_dependence(judged.of_tasks),
    _find_lost_answers,
    lambda judged: find_other_answers(judged.judgement.generations, judged.judgement.comparisons),
    lambda judged: find_odd_choices(judged.judgement.generations),
    lambda judged: find_stops(judged.judgement.generations),
)
