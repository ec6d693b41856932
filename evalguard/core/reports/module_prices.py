"""ModulePrices: what each module of a quantised model would win back at the base's precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WonBack:
    """How much of a drift is gone with modules of the base in the candidate's place.

    Attributes:
        amount: paired, document by document; below 0 where there is more drift than before.
        low, high: its interval, two-sided, for this row alone.
        p_value: one-sided, that nothing is won back.
        adjusted_p: the same, with Holm's correction over all rows.
    """

    amount: float
    low: float
    high: float
    p_value: float
    adjusted_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePrice:
    """Modules that are restored together, all others quantised: one row.

    Attributes:
        name: what they are called: "model.layers.2", "mlp.down_proj (all 5)", "lm_head".
        modules: their names, in the model's order.
        added_bytes: by how much the file would grow; None where that is not known.
        kl: of the mean KL, in nats; None where it was not measured.
        metric: of the searched metric or limit, in the unit of ``ModulePrices``; None likewise.
        same: the base's modules are the candidate's own, to the bit: nothing was put in place.
        option: the quantiser's own option that keeps them; "" where none is known.
        failure: why they could not be measured.
    """

    name: str
    modules: tuple[str, ...]
    added_bytes: int | None = None
    kl: WonBack | None = None
    metric: WonBack | None = None
    same: bool = False
    option: str = ""
    failure: str = ""

    @property
    def won(self) -> WonBack | None:
        """What the table is sorted by: KL, else the metric."""
        return self.kl if self.kl is not None else self.metric

    @property
    def per_megabyte(self) -> float | None:
        """What is won back for each 1,000,000 bytes; None where either is not known."""
        if self.won is None or not self.added_bytes:
            return None
        return self.won.amount / self.added_bytes * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePrices:
    """The table of prices, the best buy first.

    Attributes:
        task, filter, metric: of which ``unit`` is the unit; the KL is on the same documents.
        unit: of the drifts: "sigma", or that of a limit's own figure.
        kl: mean KL of the candidate on them, in nats; None where it was not measured.
        drift: of the candidate in ``unit``; None likewise.
        documents: how many of ``n`` were scored under each row.
        confidence: of the intervals; ``level``: one-sided, at which a row is told from none.
        owner: whose option each row has: "llama.cpp", "compressed-tensors"; "" where unknown.
        evaluations: what it took, in full evaluations.
        notes: what is not known, and why, one line each.
    """

    rows: tuple[ModulePrice, ...]
    task: str
    filter: str
    metric: str
    unit: str
    kl: float | None = None
    drift: float | None = None
    documents: int
    n: int
    confidence: float = 0.95
    level: float = 0.025
    owner: str = ""
    evaluations: float = field(default=0.0, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> tuple[ModulePrice, ...]:
        """The rows that win something back, with Holm's correction over all; the best first."""
        return tuple(
            row for row in self.rows if row.won is not None and row.won.adjusted_p <= self.level
        )


def sort_prices(rows: Sequence[ModulePrice], level: float) -> tuple[ModulePrice, ...]:
    """Sort rows by what a megabyte buys; where the cost of one is unknown, by what is won.

    Rows that are told from none come first: what is measured of a small module is all noise, and a
    megabyte of it would be the best buy. Rows without a number come last, in the order given.

    Args:
        level: one-sided, with Holm's correction.
    """
    measured = [row for row in rows if row.won is not None]
    priced = all(row.per_megabyte is not None for row in measured)

    def worth(row: ModulePrice) -> tuple[bool, float]:
        assert row.won is not None
        worth = row.per_megabyte if priced and row.per_megabyte is not None else row.won.amount
        return row.won.adjusted_p <= level, worth

    return (
        *sorted(measured, key=worth, reverse=True),
        *(row for row in rows if row.won is None),
    )
