"""Searching: who makes one metric drift, asked of one model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evalguard.bisect import BisectResult, Recommendation, find_culprits, recommend
from evalguard.bisect_report import Ended, GuiltySetting, MetricSearch
from evalguard.errors import EvaluationError
from evalguard.pipeline.bisection.buildable import constraints_among
from evalguard.pipeline.bisection.measured import measured_by, untestable_of
from evalguard.pipeline.bisection.open_oracle import SettingsOracle
from evalguard.pipeline.bisection.subject import Subject
from evalguard.pipeline.bisection.unbroken import Unbroken
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.told_error import told
from evalguard.redaction import redacted
from evalguard.report.bisect_progress import BisectProgress
from evalguard.settings import Setting, Value, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a search stands.

    ``repaired_before``: settings found guilty before, put right in this one. ``inside``: guilty
    settings whose finer ones are searched. ``coarse``: only the largest causes are searched, so
    that nobody is cleared.
    """

    repaired_before: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    coarse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a search found: as it is reported, and as it was returned."""

    search: MetricSearch
    result: BisectResult
    recommendation: Recommendation | None

    @property
    def reset(self) -> tuple[str, ...]:
        """The settings to put right: the culprits, and what cannot be built without them."""
        guilty = {culprit.name for culprit in self.result.culprits}
        if self.result.status in ("minimal", "masked"):
            guilty = set(self.search.settings) - set(self.result.repaired)
        return tuple(name for name in self.search.settings if name in guilty)


def search_metric(
    subject: Subject,
    variant: Variant,
    oracle: SettingsOracle,
    choices: Choices,
    *,
    progress: BisectProgress,
    budget: float | None,
    context: Context,
) -> Searched:
    """Search the settings of a model for those that make a metric drift.

    Args:
        variant: the candidate as it was scored.
        budget: full evaluations that are left.

    Raises:
        EvalguardError: the base or the candidate cannot be measured.
    """
    scale, asked = oracle.scale, Unbroken(oracle)
    result = find_culprits(
        asked,
        oracle.settings,
        margin=scale.margin(subject.margin),
        yardstick=scale.yardstick,
        seed=choices.task_options.seed,
        budget=budget,
        constraints=constraints_among(variant, oracle.settings),
        thorough=choices.bisect.thorough,
        on_event=progress,
        unit=scale.sigma,
    )
    if asked.failure is not None and math.isnan(result.drift_sigma):
        raise EvaluationError(told(asked.failure)) from asked.failure
    recommendation = _recommended(result, variant, oracle, asked, subject, budget)
    return Searched(
        search=MetricSearch(
            task=subject.key[0],
            filter=subject.key[1],
            metric=subject.key[2],
            status=result.status,
            n=oracle.n_documents,
            margin=subject.margin,
            settings=oracle.settings,
            repaired_before=context.repaired_before,
            inside=context.inside,
            drift_sigma=_number(result.drift_sigma),
            outside_sigma=_outside(asked, subject),
            unexplained_sigma=_number(result.unexplained_sigma),
            culprits=_culprits(result, variant, subject),
            suspects=result.suspects,
            parts=result.parts,
            cleared=() if context.coarse else _cleared(result, oracle, progress.cleared),
            coarse=context.coarse,
            log_unit=scale.log_unit,
            unit=subject.unit,
            inert=_inert(result, oracle),
            untestable=untestable_of(result),
            evaluations=result.cost + (recommendation.cost if recommendation else 0.0),
            probes=len(result.probes) + (len(recommendation.trials) if recommendation else 0),
            measured=measured_by(result),
            loads=oracle.loads,
            seed=choices.task_options.seed,
            ended=_ended(result, asked),
            failure="" if asked.failure is None else told(asked.failure),
        ),
        result=result,
        recommendation=recommendation,
    )


def _recommended(
    result: BisectResult,
    variant: Variant,
    oracle: SettingsOracle,
    asked: Unbroken,
    subject: Subject,
    budget: float | None,
) -> Recommendation | None:
    """Values beyond the two, where the culprits declare any."""
    settings = {setting.name: setting for setting in variant.settings}
    guilty = [culprit.name for culprit in result.culprits]
    alternatives = {name: settings[name].alternatives for name in guilty}
    if result.status not in ("minimal", "masked") or not any(alternatives.values()):
        return None
    return recommend(
        asked,
        guilty,
        alternatives,
        references={name: settings[name].reference for name in guilty},
        margin=oracle.scale.margin(subject.margin),
        yardstick=oracle.scale.yardstick,
        unit=oracle.scale.sigma,
        budget=None if budget is None else max(budget - result.cost, 0.0),
    )


def _ended(result: BisectResult, asked: Unbroken) -> Ended:
    if result.status != "stopped":
        return ""
    if asked.failure is not None:
        return "failed"
    return "interrupted" if asked.interrupted else "budget"


def _outside(asked: Unbroken, subject: Subject) -> float:
    """Drift from the base to all settings at reference."""
    if asked.reference is None:
        return 0.0
    scale = subject.scale
    drift = float(np.mean(subject.base) - np.mean(asked.reference))
    return scale.sigma(drift / scale.yardstick) - scale.sigma(0.0)


def _culprits(
    result: BisectResult, variant: Variant, subject: Subject
) -> tuple[GuiltySetting, ...]:
    settings = {setting.name: setting for setting in variant.settings}
    return tuple(
        GuiltySetting(
            setting=culprit.name,
            reference=shown(settings[culprit.name].reference, settings[culprit.name]),
            candidate=shown(variant.assignment[culprit.name], settings[culprit.name]),
            target=str(settings[culprit.name].target),
            sigma_alone=culprit.sigma_alone,
            alone_error_sigma=culprit.alone_error_sigma,
            alone_share=culprit.alone_share,
            sigma_in_context=culprit.sigma_in_context,
            shapley_sigma=culprit.shapley_sigma,
            error_sigma=culprit.error_sigma,
            role=culprit.role,
            task=subject.key[0],
            filter=subject.key[1],
            metric=subject.key[2],
            unit=subject.unit,
        )
        for culprit in result.culprits
    )


def shown(value: Value, setting: Setting) -> Value:
    """A setting's value as it may be shown: one may be a secret (env.X_TOKEN)."""
    return redacted(value, setting.target.path.rpartition(".")[2])


def _cleared(result: BisectResult, oracle: SettingsOracle, told: set[str]) -> tuple[str, ...]:
    """Settings that are innocent: by the repaired candidate, else by what the search told."""
    if result.status == "diffuse":
        return ()
    proven = result.status in ("minimal", "masked")
    kept = set(result.repaired) if proven else told
    kept -= {culprit.name for culprit in result.culprits}
    kept -= {suspect.name for suspect in result.suspects}
    kept -= set(_inert(result, oracle))
    return tuple(name for name in oracle.settings if name in kept)


def _inert(result: BisectResult, oracle: SettingsOracle) -> tuple[str, ...]:
    found = {*result.inert, *oracle.inert_by_readback}
    declared = (*oracle.settings, *oracle.inert_by_readback)
    return tuple(name for name in declared if name in found)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
