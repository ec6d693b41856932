"""One search over one model: open the oracle, say what it will cost, and search."""

from __future__ import annotations

from evalguard.bisect import expected_evaluations
from evalguard.errors import EvaluationError
from evalguard.pipeline.bisection.base_references import HeldTo
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.open_oracle import OpenOracle
from evalguard.pipeline.bisection.searching import Context, Searched, search_metric
from evalguard.pipeline.bisection.subject import Subject
from evalguard.pipeline.scored import Scored
from evalguard.pipeline.sources import ModelSource
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
    subject: Subject,
    candidate: ModelSource,
    scored: tuple[Scored, Scored],
    finished: Finished,
    *,
    open_oracle: OpenOracle,
    progress: Progress,
    budget: float | None,
    context: Context,
) -> Searched:
    """Search the settings of a model for those that make a metric drift.

    Args:
        candidate: at least one of its settings is not at reference.
        scored: the base, and this candidate.
        budget: full evaluations that are left.

    Raises:
        EvalguardError: the search could not begin.
    """
    choices, folder, limit = finished.choices, finished.folder, subject.limit
    opened = open_oracle(
        candidate,
        scored,
        subject.key,
        choices,
        finished.options,
        journal=None if folder is None else folder / JOURNAL,
        jobs=choices.bisect.jobs,
        say=progress.note,
        meter=finished.meter,
        held_to=None if limit is None else HeldTo(scale=limit, base=finished.sources[0]),
    )
    with opened as oracle:
        if not oracle.settings:
            same = ", ".join(oracle.inert_by_readback)
            raise EvaluationError(f"no setting changes the loaded model: {same}")
        shown = BisectProgress(
            progress,
            settings=oracle.settings,
            documents=oracle.n_documents,
            seconds=oracle.seconds_per_evaluation,
            subject=metric_text(*subject.key),
            log_unit=oracle.scale.log_unit,
            unit=subject.unit,
        )
        expected = foreseen(len(oracle.settings))
        shown.start(subject.sigma, expected, coarse=subject.is_coarse)
        return search_metric(
            subject,
            candidate.variant,
            oracle,
            choices,
            progress=shown,
            budget=budget,
            context=context,
        )
