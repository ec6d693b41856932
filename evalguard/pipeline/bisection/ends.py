"""Ends of a search: of which of its two extremes the comparison has the scores."""

from __future__ import annotations

from evalguard.errors import EvalguardError, EvaluationError
from evalguard.pipeline.bisection.assigned import Assigned
from evalguard.pipeline.bisection.batches import in_batches_of
from evalguard.pipeline.bisection.effective import inert_by_readback, same_model
from evalguard.pipeline.bisection.model_oracle import ModelOracle
from evalguard.pipeline.bisection.place import Place
from evalguard.pipeline.bisection.runner import Runner
from evalguard.pipeline.scored import Scored
from evalguard.scorer import ModelDescription
from evalguard.scores import ScoreTable


def settle_ends(
    oracle: ModelOracle,
    reference: Assigned,
    place: Place,
    scored: tuple[Scored, Scored],
    tables: tuple[ScoreTable, ScoreTable],
    *,
    in_parts: bool,
) -> None:
    """See which settings are inert, and which ends of the search the comparison has scored.

    Args:
        reference: the candidate with all its settings at reference.
        in_parts: whether the oracle's blocks are those of a sequential run.

    Raises:
        EvaluationError: it cannot be loaded.
    """
    described = reference.description or _described(reference, oracle.probes.runner)
    if reference.description is None:
        reference.describe_as(described)
    base, candidate = scored[0].description, scored[1].description
    if candidate is not None:
        oracle.inert_by_readback = inert_by_readback(oracle.declared, described, candidate)
    # A sequential run asks its documents in other blocks, which batches depend on.
    as_compared = place.choices.sequential_alpha is None or in_parts
    oracle.reference_is_base = same_model(base, described)
    ends = [
        (frozenset[str](), base if oracle.reference_is_base else None, tables[0]),
        (frozenset(oracle.settings), candidate, tables[1]),
    ]
    for names, description, table in ends:
        if description is None or not in_batches_of(place.policy, description):
            continue
        if as_compared and table.doc_ids.tolist() == tables[0].doc_ids.tolist():
            oracle.stands_for(names, oracle.scale.values(table))


def _described(reference: Assigned, runner: Runner) -> ModelDescription:
    try:
        return runner.ask(reference.source, lambda scorer: scorer.describe())
    except EvalguardError as error:
        raise EvaluationError(
            f"{reference.source.name} cannot be loaded with all settings at reference, so that "
            f"there is nothing to start from: {error}",
            hint=error.hint,
        ) from error
