"""One search over one model: open the oracle, say what it will cost, and search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from evalguard.bisect.find import expected_evaluations
from evalguard.core.settings import Setting
from evalguard.errors import EvaluationError
from evalguard.report.bisection_progress import BisectionProgress
from evalguard.report.progress import ProgressLine
from evalguard.report.words.metric_labels import key_label
from evalguard.run.bisection.metric_search import SearchedMetric, search_metric
from evalguard.run.bisection.search import SearchPlan
from evalguard.run.bisection.settings_oracle import (
    OpenOracle,
    OracleContext,
    OracleRequest,
    SearchedLimit,
    SettingsOracle,
)
from evalguard.run.finished_comparison import FinishedComparison

KEPT_FOLDER = "kept"
"""Of a run folder: what a bisection without a cache has finished, until it ends by itself."""
_MOST_EXPECTED = 3  # guilty settings whose cost is told before a search


def foresee_evaluations(settings: int) -> tuple[float, ...]:
    """Full evaluations that 1, 2 and 3 guilty settings are expected to take."""
    most = min(settings, _MOST_EXPECTED)
    return tuple(expected_evaluations(settings, guilty) for guilty in range(1, most + 1))


def announce_evaluations(
    settings: Sequence[str], groups: Mapping[str, Sequence[Setting]], *, thorough: bool = False
) -> float:
    """Full evaluations that a bisection is said to take at most, searches inside culprits included.

    What three culprits are expected to take, then one at every level inside, with what is measured
    to begin there: a culprit's own drift.
    """

    def inside(name: str) -> float:
        finer = [one.name for one in groups.get(name, ())]
        if not finer:
            return 0.0
        return 1.0 + expected_evaluations(len(finer), 1) + max(map(inside, finer))

    most = foresee_evaluations(len(settings))[-1] if settings else 0.0
    deepest = max(map(inside, settings), default=0.0)
    return (_THOROUGH if thorough else 1.0) * (most + deepest)


_THOROUGH = 3.0  # times as many evaluations, where jitter is what limits a search


def search_model(
    plan: SearchPlan,
    finished: FinishedComparison,
    *,
    open_oracle: OpenOracle,
    progress: ProgressLine,
) -> SearchedMetric:
    """Search the settings of a model for those that make a metric drift.

    What was found stands, whatever happens on the way out: a second Ctrl-C while workers end, a
    disk that is full by then.

    Raises:
        EvalguardError: the search could not begin.
    """
    found: SearchedMetric | None = None
    try:
        with _open_oracle(plan, finished, open_oracle, progress) as oracle:
            if plan.announced is None:
                most = announce_evaluations(oracle.settings, plan.groups, thorough=plan.thorough)
                plan = replace(plan, announced=most)
            found = search_metric(plan, oracle, _start_progress(plan, oracle, progress))
    except (Exception, KeyboardInterrupt) as error:
        if found is None:
            raise
        return found.cut_short(error)
    return found


def _open_oracle(
    plan: SearchPlan, finished: FinishedComparison, open_oracle: OpenOracle, progress: ProgressLine
) -> AbstractContextManager[SettingsOracle]:
    limit, folder = plan.subject.limit, finished.folder
    inquiry = OracleRequest(
        candidate=plan.candidate,
        scored=plan.scored,
        key=plan.subject.key,
        held_to=None if limit is None else SearchedLimit(scale=limit, base=finished.sources[0]),
    )
    surroundings = OracleContext(
        choices=finished.choices,
        options=finished.options,
        kept=None if folder is None else folder / KEPT_FOLDER,
        jobs=finished.choices.bisect.jobs,
        say=progress.note,
        meter=finished.meter,
    )
    return open_oracle(inquiry, surroundings)


def _start_progress(
    plan: SearchPlan, oracle: SettingsOracle, progress: ProgressLine
) -> BisectionProgress:
    """Say what begins.

    Raises:
        EvaluationError: there is nothing to search.
    """
    if not oracle.settings:
        same = ", ".join(oracle.inert_by_readback)
        raise EvaluationError(f"no setting changes the loaded model: {same}")
    subject = plan.subject
    shown = BisectionProgress(
        progress,
        settings=oracle.settings,
        documents=oracle.n_documents,
        seconds=oracle.seconds_per_evaluation,
        subject=key_label(*subject.key),
        log_unit=oracle.scale.log_unit,
        unit=subject.unit,
    )
    shown.start(
        subject.sigma,
        foresee_evaluations(len(oracle.settings)),
        coarse=subject.is_coarse,
        announced=plan.announced,
        spent=plan.spent,
    )
    return shown
