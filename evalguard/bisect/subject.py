"""The metric or limit whose drift is searched, and how much of it is tolerated."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalguard.bisect.scales import AnswerScale, FigureScale, LimitScale, values_by_document
from evalguard.core.broken_documents import BROKEN_DOCUMENTS
from evalguard.core.comparison import Comparison
from evalguard.core.document_scale import DocumentScale
from evalguard.core.figures import FIGURES, is_figure
from evalguard.core.gate import GateResult, is_real
from evalguard.core.gate_state import Key
from evalguard.core.limits import Limit, LimitVerdict
from evalguard.core.question import Floats
from evalguard.core.scores import ScoreTable
from evalguard.distributions.task_distributions import TaskDivergences
from evalguard.engine.scored_side import ScoredSide
from evalguard.errors import UsageError

_FAR_MARGINS = 8.0  # margins from which on drift is searched for its largest causes first
_COARSE_PARTS = 4.0  # parts of the drift that is tolerated then
_LEVEL = 0.025  # one-sided, where the gate has none of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A metric to search, a figure of generated answers, or a limit of the gate.

    Attributes:
        sigma: its drift. ``margin``: what of it is tolerated; both in the comparison's sigma, of a
            limit or figure in its own unit.
        scale: on which its documents are scored.
        base: the base's scores on it, shape (n,).
        gate_margin: what the gate tolerates, where ``margin`` is more; None where it is the same.
    """

    key: Key
    sigma: float
    margin: float
    scale: DocumentScale | LimitScale | AnswerScale | FigureScale
    base: Floats
    gate_margin: float | None = None

    @property
    def limit(self) -> LimitScale | AnswerScale | FigureScale | None:
        """The scale of a limit or figure; None of a metric."""
        return None if isinstance(self.scale, DocumentScale) else self.scale

    @property
    def unit(self) -> str:
        """In what its drift is told."""
        return "sigma" if self.limit is None else self.limit.unit

    def coarse(self) -> Subject:
        """With a margin to find the largest causes by, where the drift is far above its own.

        Both are compared as means over documents, where effects add up.
        """
        drift = self.scale.margin(self.sigma)
        if isinstance(self.scale, FigureScale):
            return self  # its margin is that of the largest cause
        if drift <= _FAR_MARGINS * self.scale.margin(self.margin):
            return self
        margin = self.scale.sigma(drift / _COARSE_PARTS)
        return replace(self, margin=margin, gate_margin=self.margin)

    @property
    def is_coarse(self) -> bool:
        """Whether more is tolerated than the gate does, so that a finer search may follow."""
        return self.gate_margin is not None and not isinstance(self.scale, FigureScale)

    @property
    def clears_below(self) -> float:
        """Drift that settings may leave together to be cleared: what the gate tolerates."""
        return self.margin if self.gate_margin is None else self.gate_margin


def choose_subject(
    comparisons: Sequence[Comparison],
    gate: GateResult,
    tables: Sequence[ScoreTable],
    *,
    failing_only: bool,
    without: Collection[Key] = (),
    divergences: Mapping[str, TaskDivergences] | None = None,
    candidate: Sequence[ScoreTable] = (),
) -> Subject | str:
    """Choose what is searched: the metric that fails the gate by most, else the limit that does.

    Of a group that fails, the worst of its subtasks stands for it.

    Args:
        tables: the base's; ``candidate``: the candidate's, of figures of generated answers.
        failing_only: only what fails the gate and may not be chance (``explain_chance``); else the
            worst of all gated metrics is taken where nothing fails.
        without: metrics and limits that were searched already.
        divergences: the candidate's from the base, by task.

    Returns:
        The subject, or why there is none.
    """
    reasons: list[str] = []
    sides = _Sides(base=_by_key(tables), candidate=_by_key(candidate))
    of_limits = _limit_subjects(gate, sides, divergences or {}, without)
    of_all = gate.gated if not failing_only else ()
    failing = gate.regressed if not failing_only else tuple(_real_failures(gate))
    reasons.extend(explain_chance(comparisons, gate) if failing_only else ())
    for keys in (failing, None, of_all):
        subjects = (
            of_limits if keys is None else _metric_subjects(keys, comparisons, gate, sides, without)
        )
        for subject in subjects:
            if isinstance(subject, Subject):
                return subject
            reasons.append(subject)
    return reasons[0] if reasons else "no metric that the gate judges has a number"


def _real_failures(gate: GateResult) -> Iterator[Key]:
    """The metrics that fail, and whose drift the paired test calls real."""
    for key, p_value in zip(gate.gated, gate.holm_p_values, strict=True):
        if key in gate.regressed and is_real(p_value, gate.level):
            yield key


def explain_chance(comparisons: Sequence[Comparison], gate: GateResult) -> list[str]:
    """Metrics above the margin whose drift may be chance, a sentence each, the worst first.

    A search would find settings that make it on these documents, and on others they would not.
    """
    by_key = {comparison.key: comparison for comparison in comparisons}
    explained: list[tuple[float, str]] = []
    for key, p_value in zip(gate.gated, gate.holm_p_values, strict=True):
        judged = by_key[key]
        margin = gate.margin if judged.margin is None else judged.margin
        above = judged.sigma is not None and judged.sigma > margin
        if (
            p_value is None
            or is_real(p_value, gate.level)
            or not above
            or judged.key in gate.failed
        ):
            continue
        text = (
            f"the drift of {judged.task} {judged.metric} may be chance (paired p = {p_value:.2g}, "
            f"above {gate.real_level:g}), and no setting is blamed for chance"
        )
        explained.append((-(judged.sigma or 0.0), text))
    return [text for _, text in sorted(explained)]


def unsearchable_failures(
    comparisons: Sequence[Comparison],
    gate: GateResult,
    tables: Sequence[ScoreTable],
    divergences: Mapping[str, TaskDivergences],
    candidate: Sequence[ScoreTable] = (),
) -> list[str]:
    """Why failed metrics and limits cannot be searched, one reason each; see ``choose_subject``."""
    sides = _Sides(base=_by_key(tables), candidate=_by_key(candidate))
    failing = [
        *_metric_subjects(gate.regressed, comparisons, gate, sides, ()),
        *_limit_subjects(gate, sides, divergences, ()),
    ]
    return [subject for subject in failing if isinstance(subject, str)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """Both sides' tables by key."""

    base: Mapping[Key, ScoreTable]
    candidate: Mapping[Key, ScoreTable]


def _by_key(tables: Sequence[ScoreTable]) -> dict[Key, ScoreTable]:
    return {table.key: table for table in tables}


def _metric_subjects(
    keys: Sequence[Key],
    comparisons: Sequence[Comparison],
    gate: GateResult,
    sides: _Sides,
    without: Collection[Key],
) -> Iterator[Subject | str]:
    """The metrics as subjects, or why they are none, the worst first."""
    by_key = {compared.key: compared for compared in comparisons}
    wanted = [
        compared for key in keys for compared in _scored_comparisons(by_key[key], comparisons)
    ]
    ranked = sorted(
        (
            compared
            for compared in wanted
            if compared.key not in without
            and (compared.sigma is not None or _is_share(compared.key))
        ),
        key=lambda compared: -(compared.sigma or 0.0),
    )
    for comparison in ranked:
        if _is_share(comparison.key):
            margin = gate.margin if comparison.margin is None else comparison.margin
            share = margin * (comparison.base_stderr or 0.0)
            tolerated = share if comparison.tolerated is None else comparison.tolerated
            yield _figure_subject(comparison.key, sides, tolerated, gate.level or _LEVEL)
        else:
            yield _metric_subject(comparison, sides.base.get(comparison.key), gate)


def _is_share(key: Key) -> bool:
    """Whether a metric is a share of generated answers."""
    return is_figure(key[1], key[2]) and FIGURES[key[2]].unit == "share"


def _figure_subject(key: Key, sides: _Sides, tolerated: float, level: float) -> Subject | str:
    """A figure as a subject; ``tolerated``: share of the documents that may drift."""
    base, candidate = sides.base.get(key), sides.candidate.get(key)
    if base is None or candidate is None:
        return f"{key[0]} {key[2]} has no values of single documents"
    try:
        scale = FigureScale.of(base, candidate, tolerated=tolerated, level=level)
    except UsageError as error:
        return str(error)
    ours = scale.scores(scale.values(base))
    drift = float(np.mean(ours - scale.scores(scale.values(candidate))))
    if drift <= 0.0:
        return (
            f"{key[0]} {key[2]}: the base's answers are no better on these documents, so that no "
            "setting of the candidate makes it"
        )
    return Subject(
        key=key,
        sigma=drift,
        margin=scale.yardstick,
        scale=scale,
        base=ours,
        gate_margin=tolerated if tolerated < scale.yardstick else None,
    )


def _limit_subjects(
    gate: GateResult,
    sides: _Sides,
    divergences: Mapping[str, TaskDivergences],
    without: Collection[Key],
) -> list[Subject | str]:
    """The limits that fail, as subjects or why they are none; by how many times what is allowed."""
    failing = [limit for limit in gate.limits if limit.state == "regressed"]
    outcomes = [
        _limit_subject(limit, divergences, sides, gate.level or _LEVEL) for limit in failing
    ]
    subjects = [
        outcome
        for outcome in outcomes
        if isinstance(outcome, Subject) and outcome.key not in without
    ]
    subjects.sort(key=lambda subject: -subject.scale.margin(subject.sigma))
    return [*subjects, *(outcome for outcome in outcomes if isinstance(outcome, str))]


def _limit_subject(
    verdict: LimitVerdict,
    divergences: Mapping[str, TaskDivergences],
    sides: _Sides,
    level: float,
) -> Subject | str:
    if verdict.metric == BROKEN_DOCUMENTS:
        return (
            "broken documents fail the gate, and no metric does: which setting breaks them is not "
            "searched for (--bisect always searches the worst metric)"
        )
    if verdict.at_least:
        # What a setting takes off the bound may be what is shown, and not what the models are.
        return (
            f"{verdict.task} {verdict.metric} is broken by a lower bound, and settings are not "
            "told apart by one: both models in process (hf, vllm, llama_cpp) are searched by KL "
            "itself, servers by a metric's margin"
        )
    if verdict.of_figure:
        key = verdict.task, verdict.filter, verdict.metric
        base = sides.base.get(key)
        known = np.array([*values_by_document(base).values()] if base is not None else [0.0])
        beyond = verdict.limit - float(np.mean(known)) if known.size else 0.0
        beyond = beyond if verdict.kind == "upper" else -beyond
        return _figure_subject(key, sides, max(beyond, 0.0), level)
    try:
        scale = _limit_scale(verdict, divergences.get(verdict.task), sides.base)
    except UsageError as error:
        return f"{error}: {error.hint}" if error.hint else str(error)
    value = verdict.value or 0.0
    return Subject(
        key=scale.key,
        sigma=value if verdict.kind == "upper" else 1.0 - value,
        margin=scale.yardstick,
        scale=scale,
        base=np.zeros(len(scale.doc_ids)),
    )


def _limit_scale(
    verdict: LimitVerdict, found: TaskDivergences | None, of_base: Mapping[Key, ScoreTable]
) -> LimitScale | AnswerScale:
    limit = Limit(metric=verdict.metric, value=verdict.limit)
    if limit.of_distributions:
        documents = () if found is None else found.documents
        return LimitScale.of(limit, verdict.task, documents)
    table = of_base.get((verdict.task, verdict.filter, verdict.of))
    if table is None:
        raise UsageError(f"{verdict.task} {verdict.of} has no scores of single documents")
    return AnswerScale.of_table(limit, table)


def tolerated_drift(comparison: Comparison, gate: GateResult) -> float:
    """How much drift of a metric would pass: the margin.

    A metric inside the margin fails where the gate allows no drift that is real: then as much is
    tolerated as its interval would not tell from none.
    """
    sigma, interval = comparison.sigma or 0.0, comparison.sigma_interval
    unseen = sigma - interval[0] if interval is not None else 0.0
    margin = gate.margin if comparison.margin is None else comparison.margin
    if margin == 0.0:
        return unseen
    inside = sigma <= margin and comparison.key in gate.regressed
    return min(unseen, margin) if inside else margin


def drift_of(scored: tuple[ScoredSide, ScoredSide], subject: Subject) -> float:
    """Drift of another candidate, in the comparison's sigma, of a limit in its own unit.

    NaN where a limit's divergences were not measured.
    """
    scale = subject.scale
    if isinstance(scale, LimitScale):
        measured = scored[1].divergences.get(scale.task)
        return scale.figure(() if measured is None else measured.documents)
    key = scale.metric_key if isinstance(scale, AnswerScale) else subject.key
    table = next(table for table in scored[1].tables if table.key == key)
    if isinstance(scale, AnswerScale):
        return scale.figure(table)
    if isinstance(scale, FigureScale):
        return float(np.nanmean(subject.base - scale.scores(scale.values(table))))
    values = scale.values(table)
    drift = float(np.mean(subject.base) - np.mean(values[np.isfinite(values)]))
    return scale.sigma(drift / scale.yardstick)


def _metric_subject(
    comparison: Comparison, table: ScoreTable | None, gate: GateResult
) -> Subject | str:
    if table is None:
        return f"{comparison.task} {comparison.metric} has no scores of single documents"
    margin = tolerated_drift(comparison, gate)
    try:
        scale = DocumentScale.of(table)
    except UsageError as error:
        return str(error)
    reachable = scale.margin(margin) if margin > 0.0 else 0.0
    if not 0.0 < reachable < float("inf"):
        return f"{comparison.task} {comparison.metric}: no drift that a search could be held to"
    return Subject(
        key=comparison.key,
        sigma=comparison.sigma or 0.0,
        margin=margin,
        scale=scale,
        base=scale.values(table),
    )


def _scored_comparisons(one: Comparison, comparisons: Sequence[Comparison]) -> Iterator[Comparison]:
    """The comparison itself, or those of a group's tasks."""
    if not one.subtasks:
        yield one
        return
    for subtask in comparisons:
        if subtask.task in one.subtasks and subtask.metric == one.metric and not subtask.subtasks:
            yield subtask
