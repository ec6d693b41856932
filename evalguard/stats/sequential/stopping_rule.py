"""StoppingRule: when a sequential comparison may stop, and at which level."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evalguard.core.verdict import Margin


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """The rule of one run.

    The full run regresses if any of its K gated metrics does. If none of them does, a wrong verdict
    needs one that is wrongly shown above the margin: each has alpha / K for that (Bonferroni). If
    some do, a wrong verdict needs all of these to be wrongly shown below it, so that alpha is
    enough for each (intersection-union test; R. L. Berger, Technometrics 24, 1982, 295-300).

    Attributes:
        margin: of the metric that is looked at; a number is in standard errors of the base over
            all documents. Metrics of one run may have margins of their own.
        alpha: chance, over the orders of the documents, that the gate's verdict is not that of all
            documents.
        gated: K, the number of gated metrics.
        seed: of the order.
        real: whether a metric above the margin fails the gate only if all documents would show
            its drift to be real, too, at ``level`` over all gated metrics.
    """

    margin: float | Margin
    alpha: float
    gated: int
    seed: int
    real: bool = False
    level: float = 0.025

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 0.5:
            raise ValueError(f"a chance of error lies between 0 and 0.5, not {self.alpha!r}")
        if self.gated < 1:
            raise ValueError(f"at least one metric is gated, not {self.gated!r}")

    @property
    def tolerated(self) -> Margin:
        """The margin with its unit."""
        return self.margin if isinstance(self.margin, Margin) else Margin(self.margin)

    def of(self, margin: Margin) -> StoppingRule:
        """The rule for a metric with this margin."""
        return replace(self, margin=margin)

    @property
    def alpha_below(self) -> float:
        """The level at which a metric is shown to stay below the margin."""
        return self.alpha

    @property
    def alpha_above(self) -> float:
        """The level at which a metric is shown to be above the margin."""
        return self.alpha / self.gated

    @property
    def level_of_real(self) -> float:
        """The p-value that all documents would have to give one of K metrics, by Bonferroni."""
        return self.level / self.gated

    @property
    def alpha_far(self) -> float:
        """The level of an interval's end that no verdict rests on."""
        return self.alpha / 10.0

    @property
    def interval_confidence(self) -> float:
        """Chance that the interval holds sigma of all documents, whenever one looks.

        Each end is either the one that the verdict rests on or one that none does, so that both
        ways to be wrong are counted.
        """
        return 1.0 - self.alpha_below - self.alpha_above - 2.0 * self.alpha_far
