"""Ends of a search: of which of its two extremes the comparison has the scores."""

from __future__ import annotations

import time

import numpy as np

from evalguard.errors import EvalguardError, EvaluationError
from evalguard.pipeline.bisection.assigned import Assigned
from evalguard.pipeline.bisection.batches import in_batches_of
from evalguard.pipeline.bisection.effective import inert_by_readback, same_model
from evalguard.pipeline.bisection.model_oracle import ModelOracle
from evalguard.pipeline.bisection.place import Place
from evalguard.pipeline.bisection.probes import Probes
from evalguard.pipeline.scored import Scored
from evalguard.scorer import ModelDescription
from evalguard.scores import ScoreTable


def settle_ends(
    oracle: ModelOracle,
    reference: Assigned,
    place: Place,
    scored: tuple[Scored, Scored],
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
    described = reference.description or _described(reference, oracle.probes)
    if reference.description is None:
        reference.describe_as(described)
    base, candidate = scored[0].description, scored[1].description
    if candidate is not None:
        oracle.inert_by_readback = inert_by_readback(oracle.declared, described, candidate)
    oracle.reference_is_base = same_model(base, described)
    if tables is None:
        if oracle.reference_is_base and in_batches_of(place.policy, described):
            oracle.stands_for(frozenset(), np.zeros(oracle.n_documents))
        return
    ends = [
        (frozenset[str](), base if oracle.reference_is_base else None, tables[0]),
        (frozenset(oracle.settings), candidate, tables[1]),
    ]
    for names, description, table in ends:
        if description is None or not in_batches_of(place.policy, description):
            continue
        if as_compared and table.doc_ids.tolist() == tables[0].doc_ids.tolist():
            oracle.stands_for(names, oracle.scale.scores(table.values))


def _described(reference: Assigned, probes: Probes) -> ModelDescription:
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
