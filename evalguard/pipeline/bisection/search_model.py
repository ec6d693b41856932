"""One search over one model: open the oracle, say what it will cost, and search."""

from __future__ import annotations

from contextlib import AbstractContextManager

from evalguard.bisect import expected_evaluations
from evalguard.errors import EvaluationError
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.inquiry import HeldTo, Inquiry, Surroundings
from evalguard.pipeline.bisection.open_oracle import OpenOracle, SettingsOracle
from evalguard.pipeline.bisection.search_plan import SearchPlan
from evalguard.pipeline.bisection.searching import Searched, search_metric
from evalguard.report.bisect_progress import BisectProgress
from evalguard.report.bisect_words import metric_text
from evalguard.report.progress import Progress

JOURNAL = "journal.jsonl"
_FORESEEN = 3  # guilty settings whose cost is told before a search


def foreseen(settings: int) -> tuple[float, ...]:
    """Full evaluations that 1, 2 and 3 guilty settings are expected to take."""
    most = min(settings, _FORESEEN)
    return tuple(expected_evaluations(settings, guilty) for guilty in range(1, most + 1))


def search_model(
    plan: SearchPlan, finished: Finished, *, open_oracle: OpenOracle, progress: Progress
) -> Searched:
    """Search the settings of a model for those that make a metric drift.

    What was found stands, whatever happens on the way out: a second Ctrl-C while workers end, a
    disk that is full by then.

    Raises:
        EvalguardError: the search could not begin.
    """
    found: Searched | None = None
    try:
        with _opened(plan, finished, open_oracle, progress) as oracle:
            found = search_metric(plan, oracle, _started(plan, oracle, progress))
    except (Exception, KeyboardInterrupt) as error:
        if found is None:
            raise
        return found.cut_short(error)
    return found


def _opened(
    plan: SearchPlan, finished: Finished, open_oracle: OpenOracle, progress: Progress
) -> AbstractContextManager[SettingsOracle]:
    limit, folder = plan.subject.limit, finished.folder
    inquiry = Inquiry(
        candidate=plan.candidate,
        scored=plan.scored,
        key=plan.subject.key,
        held_to=None if limit is None else HeldTo(scale=limit, base=finished.sources[0]),
    )
    surroundings = Surroundings(
        choices=finished.choices,
        options=finished.options,
        journal=None if folder is None else folder / JOURNAL,
        jobs=finished.choices.bisect.jobs,
        say=progress.note,
        meter=finished.meter,
    )
    return open_oracle(inquiry, surroundings)


def _started(plan: SearchPlan, oracle: SettingsOracle, progress: Progress) -> BisectProgress:
    """Say what begins.

    Raises:
        EvaluationError: there is nothing to search.
    """
    if not oracle.settings:
        same = ", ".join(oracle.inert_by_readback)
        raise EvaluationError(f"no setting changes the loaded model: {same}")
    subject = plan.subject
    shown = BisectProgress(
        progress,
        settings=oracle.settings,
        documents=oracle.n_documents,
        seconds=oracle.seconds_per_evaluation,
        subject=metric_text(*subject.key),
        log_unit=oracle.scale.log_unit,
        unit=subject.unit,
    )
    shown.start(subject.sigma, foreseen(len(oracle.settings)), coarse=subject.is_coarse)
    return shown
