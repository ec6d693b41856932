"""The swap-in effect of single modules: the drift that is gone with this one from the base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from evalguard.bisect.oracle.oracle_opening import open_model_oracle
from evalguard.bisect.oracle.settings_oracle import (
    OpenOracle,
    OracleContext,
    OracleRequest,
    SearchScale,
    SettingsOracle,
)
from evalguard.bisect.settings.module_settings import hold_settings, take_modules_from
from evalguard.bisect.subject import Subject, choose_subject
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.core.gate_state import Key
from evalguard.core.moments import moments
from evalguard.core.question import Floats, Untestable
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, EvaluationError, SettingError, UsageError, error_text
from evalguard.stats.clusters import cluster_stderr, cluster_sums
from evalguard.stats.estimate import t_estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapEffect:
    """What one module of the base does in the candidate's place, in the comparison's sigma.

    Attributes:
        module: its name.
        task, filter, metric: whose drift it is.
        sigma: of the drift, how much is gone with the base's module; below 0 where there is more.
            None where it could not be measured.
        interval: paired, two-sided, at ``confidence``.
        p_value: one-sided, that it repairs nothing.
        n: documents.
        drift: of the candidate; ``left``: with the base's module.
        same: the two modules are one, to the bit and attribute: nothing was put in place.
        failure: why it could not be measured.
    """

    module: str
    task: str
    filter: str
    metric: str
    sigma: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    n: int = 0
    drift: float | None = None
    left: float | None = None
    confidence: float = 0.95
    same: bool = False
    failure: str = ""


def measure_swap_effects(
    finished: FinishedComparison,
    modules: Sequence[str],
    *,
    key: Key | None = None,
    confidence: float = 0.95,
    say: Callable[[str], None] = lambda _: None,
    open_oracle: OpenOracle = open_model_oracle,
) -> tuple[SwapEffect, ...]:
    """Score the candidate with each of some modules taken from the base, one at a time.

    Scores come from the ordinary path: the comparison's documents, batches and score cache, in
    worker processes (``bisect_jobs`` at a time), each model loaded as few times as is safe. A
    module that does not fit is told in its effect and stops no other.

    Args:
        finished: base and candidate are models, and were scored.
        modules: names in both models ("model.layers.3.self_attn").
        key: (task, filter, metric) of the drift; None: of the worst metric that the gate judges.
        say: takes what a person is to know.

    Returns:
        An effect for each module, in their order.

    Raises:
        UsageError: one of the sides is no model whose modules can be taken, or the metric is not a
            sum over documents.
        EvaluationError, Interrupted: nothing could be scored.
    """
    names = tuple(dict.fromkeys(modules))
    if not names:
        return ()
    base, candidate = finished.sources[0], finished.candidate
    if candidate is None or not isinstance(base, ModelSource):
        raise UsageError(
            "the effect of a module is measured with the models of both sides, and one of them is "
            "a finished run",
            hint="name the models in place of their runs",
        )
    chosen = key or _worst_metric(finished)
    measuring = _Measuring(
        finished=finished,
        base=base,
        candidate=candidate,
        key=chosen,
        confidence=confidence,
        say=say,
        open_oracle=open_oracle,
    )
    effects: dict[str, SwapEffect] = {}
    for group in _without_nesting(names):
        effects |= measuring.effects(group)
    return tuple(effects[name] for name in modules)


def _without_nesting(names: Sequence[str]) -> list[list[str]]:
    """Groups in which no module is inside another: what is inside would follow its own setting."""
    groups: list[list[str]] = []
    for name in names:
        for group in groups:
            if not any(_nested(name, member) or _nested(member, name) for member in group):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _nested(name: str, outer: str) -> bool:
    return name.startswith(f"{outer}.")


def _worst_metric(finished: FinishedComparison) -> Key:
    subject = choose_subject(
        finished.report.comparisons,
        finished.report.gate,
        finished.scored[0].tables,
        failing_only=False,
    )
    if not isinstance(subject, Subject):
        raise UsageError(subject, hint="name a metric that is a mean or a sum over documents")
    return subject.key


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measuring:
    finished: FinishedComparison
    base: ModelSource
    candidate: ModelSource
    key: Key
    confidence: float
    say: Callable[[str], None]
    open_oracle: OpenOracle

    def effects(self, names: Sequence[str]) -> dict[str, SwapEffect]:
        """Of all together; where they do not fit together, of each by itself."""
        try:
            with self._opened(names) as oracle:
                return self._measured(oracle, names)
        except (SettingError, EvaluationError) as error:
            if len(names) == 1:
                return {names[0]: self._failed(names[0], error)}
        return {name: self.effects([name])[name] for name in names}

    def _opened(self, names: Sequence[str]) -> AbstractContextManager[SettingsOracle]:
        held = hold_settings(self.candidate.variant)
        variant = take_modules_from(self.base.variant, held, {name: name for name in names})
        inquiry = OracleRequest(
            candidate=replace(self.candidate, variant=variant),
            scored=self.finished.scored,
            key=self.key,
        )
        surroundings = OracleContext(
            choices=self.finished.choices,
            options=self.finished.options,
            kept=None,
            say=self.say,
            jobs=self.finished.choices.bisect.jobs,
            meter=self.finished.meter,
        )
        return self.open_oracle(inquiry, surroundings)

    def _measured(self, oracle: SettingsOracle, names: Sequence[str]) -> dict[str, SwapEffect]:
        documents, everything = np.arange(oracle.n_documents), frozenset(oracle.settings)
        asked = [name for name in names if name in everything]
        questions = [(everything - {name}, documents) for name in asked]
        own, *answers = oracle.measure_all([(everything, documents), *questions])
        if isinstance(own, Untestable):
            raise own
        effects: dict[str, SwapEffect] = {}
        for name, taken in zip(asked, answers, strict=True):
            if isinstance(taken, Untestable):
                effects[name] = self._failed(name, taken)
            else:
                effects[name] = self._compared(oracle, name, own, taken)
        for name in names:
            if name not in effects:  # its two values are one in the loaded model
                effects[name] = replace(self._compared(oracle, name, own, own), same=True)
        return effects

    def _failed(self, name: str, error: EvalguardError | Untestable) -> SwapEffect:
        task, filter_name, metric = self.key
        cause = error.__cause__ if isinstance(error.__cause__, EvalguardError) else error
        text = error.reason if isinstance(error, Untestable) else error_text(cause)
        return SwapEffect(
            module=name,
            task=task,
            filter=filter_name,
            metric=metric,
            confidence=self.confidence,
            failure=text,
        )

    def _compared(
        self, oracle: SettingsOracle, name: str, own: Floats, taken: Floats
    ) -> SwapEffect:
        table = next(table for table in self.finished.scored[0].tables if table.key == self.key)
        scale = oracle.scale
        gain = estimate_gain(
            scale,
            drift=float(np.mean(scale.scores(table.values) - own)) / scale.yardstick,
            own=own,
            taken=taken,
            clusters=table.clusters,
            confidence=self.confidence,
        )
        task, filter_name, metric = self.key
        return SwapEffect(
            module=name,
            task=task,
            filter=filter_name,
            metric=metric,
            sigma=gain.amount,
            interval=(gain.low, gain.high),
            p_value=gain.p_value,
            n=int(own.size),
            drift=gain.drift,
            left=gain.drift - gain.amount,
            confidence=self.confidence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What of a drift is gone under another assignment, in the unit of a scale.

    Attributes:
        amount: below 0 where there is more drift than before.
        low, high: paired interval, two-sided.
        p_value: one-sided, that nothing is gone.
        drift: before.
    """

    amount: float
    low: float
    high: float
    p_value: float | None
    drift: float


def estimate_gain(
    scale: SearchScale,
    *,
    drift: float,
    own: Floats,
    taken: Floats,
    clusters: Sequence[str] = (),
    confidence: float = 0.95,
) -> Gain:
    """Estimate what is gone of a drift, document by document.

    Args:
        drift: of the candidate, in yardsticks.
        own, taken: scores of the candidate as it is and with the modules taken, shape (n,).
        clusters: n labels; documents that belong together are one unit. (): each is one.
    """
    gone, stderr, units = _paired_mean((taken - own) / scale.yardstick, clusters)
    estimate = t_estimate(gone, stderr, df=units - 1, confidence=confidence, method="paired-t")

    def repaired(amount: float) -> float:
        """From yardsticks of the mean score to what the figure changes by."""
        return scale.sigma(drift) - scale.sigma(drift - amount)

    return Gain(
        amount=repaired(gone),
        low=repaired(estimate.low),
        high=repaired(estimate.high),
        p_value=estimate.p_value,
        drift=scale.sigma(drift),
    )


def _paired_mean(differences: Floats, clusters: Sequence[str]) -> tuple[float, float, int]:
    """Mean, standard error and units; documents that belong together are one unit."""
    if clusters:
        sums = cluster_sums(differences, None, clusters)
        return float(np.mean(differences)), cluster_stderr(sums), sums.count
    moment = moments(differences, None)
    return moment.point, moment.stderr, int(differences.size)
