"""GuiltySetting: a setting that is shown to make drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalguard.settings import Value

if TYPE_CHECKING:
    from evalguard.bisect.components import Kind

SIGMA = "sigma"  # the unit of a drift in standard errors of the base


@dataclass(frozen=True, slots=True, kw_only=True)
class GuiltySetting:
    """A setting that is shown, on all documents, to make drift; all drifts in ``unit``.

    Attributes:
        setting: its name; ``target`` is where it is applied.
        reference, candidate: its value in the base, and in the candidate that was searched.
        sigma_alone: drift with it alone at its candidate value; None if that was not measured: it
            cannot be built, or the proof did without.
        alone_error_sigma: standard error of that, as an estimate for all documents; None likewise.
        alone_share: share of the documents that it was measured on; 0.0 if it was not.
        sigma_in_context: what it adds where all other culprits are at their candidate value.
        shapley_sigma: its share: what it adds on average over all orders of the culprits.
        error_sigma: standard error of its effect (jitter).
        role: additive; together: acts with its partner only; redundant: its partner does the same.
        task, filter, metric: on which it was found guilty.
        unit: "sigma"; of a limit of the gate the unit of its own figure.
    """

    setting: str
    reference: Value
    candidate: Value
    target: str
    sigma_alone: float | None
    alone_error_sigma: float | None
    alone_share: float
    sigma_in_context: float
    shapley_sigma: float
    error_sigma: float
    role: Kind
    task: str
    filter: str
    metric: str
    unit: str = SIGMA
