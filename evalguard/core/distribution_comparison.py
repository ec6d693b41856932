"""DistributionComparison: how two models' next-token distributions differ on one task."""

from __future__ import annotations

from dataclasses import dataclass, field

from evalguard.core.noise_floor import DistributionFloor

# Nats a token. Measured on the demo model and stories260K: at most 2e-12 for another batch size,
# attention implementation or number of threads in float32, 7e-4 for bfloat16.
ROUNDING_KL = 1e-6
# What no rounding of a whole model makes: ten times what bfloat16 does, and another most likely
# token at one position of fifty.
FAR_KL, FAR_TOP1 = 1e-2, 0.98
# Of a floor that was measured.
_TIMES_FLOOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with what is known of its error.

    Attributes:
        value: over the scored positions; may be infinite; None where there is no number.
        stderr: standard error over documents; None where it cannot be had.
        interval: two-sided, at the comparison's confidence; an end may be infinite. None where it
            cannot be had.
        bounds: proven bounds of the exact value over these positions, where ``value`` is an
            estimate from a reference; None where it is exact. They say nothing of other documents.
    """

    value: float | None = None
    stderr: float | None = None
    interval: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """The smallest value that ``percent`` % of the positions do not exceed; 100: the largest.

    Percentiles of 0 and 100 have no interval: documents not seen may reach beyond.

    Attributes:
        percent: 0: the smallest value, 100: the largest.
    """

    percent: float
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppFigures:
    """What ``llama-perplexity --kl-divergence`` prints at its end, by its own formulas.

    Its errors take positions for independent ones; percentiles lie between two positions.

    Attributes:
        positions: scored tokens.
        perplexity: of the candidate; its errors, and those of what follows, by the delta method.
        base_perplexity: of the base.
        correlation: of the two means' errors; None where one does not vary.
        log_ratio: ln(PPL(candidate) / PPL(base)).
        ratio, difference: of the two perplexities.
        kl: mean KL(base || candidate), nats.
        kl_percentiles: ascending, from 0 (smallest) to 100 (largest).
        dp: mean change of the scored token's probability.
        dp_percentiles: ascending.
        dp_rms: root of its mean square.
        same_top: share of positions where both have the same most probable token.
    """

    positions: int
    perplexity: Figure
    base_perplexity: Figure
    correlation: float | None
    log_ratio: Figure
    ratio: Figure
    difference: Figure
    kl: Figure
    kl_percentiles: tuple[Percentile, ...]
    dp: Figure
    dp_percentiles: tuple[Percentile, ...]
    dp_rms: Figure
    same_top: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPosition:
    """One scored token: document, request of that document, position of that request, token id."""

    doc_id: int
    request: int
    position: int
    token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionComparison:
    """Base and candidate at every scored token of one task.

    Attributes:
        n: documents with a scored token; ``positions`` counts these tokens.
        clusters: number of clusters of documents, and ``cluster_field`` that says which belong
            together; None and "" where each document stands alone.
        exact: False where KL is estimated from a reference of the base.
        llama_cpp: the figures that llama.cpp prints, where it is one of the two runtimes; None
            elsewhere, and of fewer than 100 positions.
        bit_identical: KL is 0 at every position, and every scored token's log-probability is the
            same to the last bit; never said of a reference.
        kl: mean KL(base || candidate), in nats a token.
        kl_percentiles: ascending, from 0 (smallest) to 100 (largest); ``kl_max_at``: where the
            largest is.
        dp: mean change of the scored token's probability, candidate - base: below 0 the candidate
            gives it less. ``dp_rms``: root of the mean square; ``dp_min_at``: where it lost most.
        same_top1: share of positions where both find the same token most probable.
        same_topk: mean share of the ``top_k`` most probable tokens that both have.
        base_perplexity, candidate_perplexity: per scored token, of all requests.
        log_perplexity_ratio: mean of log p_base - log p_candidate, ln(PPL(candidate) / PPL(base));
            ``perplexity_ratio`` and ``perplexity_difference`` are those of the two perplexities.
        correlation: Pearson's, of the two models' log-probabilities of the scored tokens; None
            where one of them does not vary.
        floor: its mean KL beside that of the unchanged base; None where that is not known.
        failure: why there are no numbers, "" where there are.
        dp_percentiles: of the change in probability, ascending.
        positions: scored tokens.
        top_k: how many most probable tokens same_topk looks at.
        perplexity_ratio: PPL(candidate) / PPL(base).
        perplexity_difference: PPL(candidate) - PPL(base).
        cluster_field: field of the document that says which belong together; "" without clusters.
    """

    task: str
    n: int
    positions: int
    top_k: int
    confidence: float
    exact: bool = True
    bit_identical: bool = False
    kl: Figure = field(default_factory=Figure)
    kl_percentiles: tuple[Percentile, ...] = ()
    kl_max_at: TokenPosition | None = None
    dp: Figure = field(default_factory=Figure)
    dp_rms: Figure = field(default_factory=Figure)
    dp_percentiles: tuple[Percentile, ...] = ()
    dp_min_at: TokenPosition | None = None
    same_top1: Figure = field(default_factory=Figure)
    same_topk: Figure = field(default_factory=Figure)
    base_perplexity: Figure = field(default_factory=Figure)
    candidate_perplexity: Figure = field(default_factory=Figure)
    log_perplexity_ratio: Figure = field(default_factory=Figure)
    perplexity_ratio: Figure = field(default_factory=Figure)
    perplexity_difference: Figure = field(default_factory=Figure)
    correlation: float | None = None
    clusters: int | None = None
    cluster_field: str = ""
    floor: DistributionFloor | None = None
    llama_cpp: LlamaCppFigures | None = None
    failure: str = ""
    caveats: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """Whether the whole interval of the mean KL lies above what float32's rounding leaves."""
        if self.kl.interval is None or self.kl.value is None:
            return False
        return self.kl.interval[0] > ROUNDING_KL

    @property
    def moved_far(self) -> bool:
        """Whether distributions moved by more than any rounding makes, and than an own floor.

        The whole interval of the mean KL, or that of the share of the same top token, lies beyond.
        """
        kl, top1 = FAR_KL, 1.0 - FAR_TOP1
        if self.floor is not None:
            kl = max(kl, _TIMES_FLOOR * self.floor.kl_upper)
            top1 = max(top1, _TIMES_FLOOR * self.floor.top1_changed)
        lowest = None if self.kl.interval is None else self.kl.interval[0]
        highest = None if self.same_top1.interval is None else self.same_top1.interval[1]
        return (lowest is not None and lowest > kl) or (
            highest is not None and 1.0 - highest > top1
        )

    def kl_at(self, percent: float) -> Figure:
        """The KL that ``percent`` % of the positions do not exceed; empty where unknown."""
        return next((p.figure for p in self.kl_percentiles if p.percent == percent), Figure())
