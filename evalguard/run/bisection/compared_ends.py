"""Ends of a search: of which of its two extremes the comparison has the scores."""

from __future__ import annotations

import time

import numpy as np

from evalguard.core.scorer import ModelDescription
from evalguard.core.scores import ScoreTable
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.run.bisection.assigned_candidate import AssignedCandidate
from evalguard.run.bisection.effective_values import inert_by_readback, same_model
from evalguard.run.bisection.model_oracle import ModelOracle
from evalguard.run.bisection.probe_context import ProbeContext
from evalguard.run.bisection.probes import Probes
from evalguard.run.executing.batches import uses_batches_of
from evalguard.run.scoring.scored_side import ScoredSide


def adopt_compared_ends(
    oracle: ModelOracle,
    reference: AssignedCandidate,
    place: ProbeContext,
    scored: tuple[ScoredSide, ScoredSide],
    tables: tuple[ScoreTable, ScoreTable] | None,
    *,
    as_compared: bool,
) -> None:
    """See which settings are inert, and which ends of the search the comparison has scored.

    Args:
        reference: the candidate with all its settings at reference.
        tables: of the searched metric; None of a limit, on which the base is at 0 and the candidate
            is measured, as probes are.
        as_compared: whether the oracle's blocks are those of the comparison; batches depend on
            them.

    Raises:
        EvaluationError: it cannot be loaded.
    """
    described = reference.description or _describe_reference(reference, oracle.probes)
    if reference.description is None:
        reference.describe_as(described)
    base, candidate = scored[0].description, scored[1].description
    if candidate is not None:
        oracle.inert_by_readback = inert_by_readback(oracle.declared, described, candidate)
    oracle.reference_is_base = same_model(base, described)
    if tables is None:
        if oracle.reference_is_base and uses_batches_of(place.policy, described):
            oracle.stands_for(frozenset(), np.zeros(oracle.n_documents))
        return
    ends = [
        (frozenset[str](), base if oracle.reference_is_base else None, tables[0]),
        (frozenset(oracle.settings), candidate, tables[1]),
    ]
    for names, description, table in ends:
        if description is None or not uses_batches_of(place.policy, description):
            continue
        same = table.doc_ids.tolist() == tables[0].doc_ids.tolist()
        if as_compared and same and np.isfinite(table.values).all():
            oracle.stands_for(names, oracle.scale.scores(table.values))


def _describe_reference(reference: AssignedCandidate, probes: Probes) -> ModelDescription:
    started = time.monotonic()
    try:
        found = probes.runner.ask(reference.source, lambda scorer: scorer.describe())
    except EvalguardError as error:
        raise EvaluationError(
            f"{reference.source.name} cannot be loaded with all settings at reference, so that "
            f"there is nothing to start from: {error}",
            hint=error.hint,
        ) from error
    probes.loading_seconds += time.monotonic() - started
    probes.loads += 1
    return found
