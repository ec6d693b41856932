"""From a finding to the Comparison of a metric whose documents were not all asked."""

from __future__ import annotations

import math
from dataclasses import replace

from evalguard.core.comparison import Comparison, Stopping
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.core.verdict import Margin, Verdict, decide
from evalguard.stats.betting import drift_of_all
from evalguard.stats.judgement import limit_words, number_text
from evalguard.stats.sequential_looks import LookResult, StoppingRule

_METHODS = {"flips-exact": "sequential-flips", "bounded-betting": "sequential-bounded"}


def stopped_comparison(
    paired: PairedScores, finding: LookResult, rule: StoppingRule, *, looks: tuple[int, ...]
) -> Comparison:
    """The comparison of all documents, as far as those asked show it.

    Sigma and the standard errors are those that all documents would have, estimated from those
    asked; the interval is that of sigma of all documents. No test stands beside it: those of
    the ordinary comparison do not allow for looking several times.

    Args:
        looks: that were planned; the last is the number of all documents.
    """
    n_total = looks[-1]
    table = paired.base
    confidence = rule.interval_confidence
    drift = drift_of_all(paired, n_total, confidence=confidence, unit=finding.unit)
    margin = rule.tolerated.value * finding.scale
    verdict = decide(drift.sigma, finding.low, finding.high, margin)
    assumed = assumption(table, finding)
    return Comparison(
        task=table.task,
        filter=table.filter,
        metric=table.metric,
        higher_is_better=table.higher_is_better,
        directed=table.directed,
        n=n_total,
        n_used=table.n,
        base=drift.base.point,
        base_stderr=drift.base.stderr,
        candidate=drift.candidate.point,
        candidate_stderr=drift.candidate.stderr,
        sigma=drift.sigma,
        sigma_interval=(finding.low, finding.high),
        paired_stderr=drift.paired_stderr,
        p_value=finding.p_value,
        method=_METHODS[finding.method],
        confidence=confidence,
        false_alarm_probability=drift.false_alarm_probability(margin),
        outcome=verdict.outcome,
        significant=verdict.significant,
        certain=verdict.certain,
        bit_identical=False,
        reason=_reason(verdict, finding, margin, rule, n=table.n, n_total=n_total),
        margin=margin,
        margin_text=rule.tolerated.text,
        flips=drift.flips,
        stopping=Stopping(
            n_total=n_total,
            n_used=table.n,
            look=looks.index(table.n) + 1,
            looks=looks,
            seed=rule.seed,
            alpha=rule.alpha,
            alpha_below=rule.alpha_below,
            alpha_above=rule.alpha_above,
            error_chance=finding.error_chance,
            method=finding.method,
            assumed_worst=finding.assumed_worst,
            seen_worst=finding.seen_worst,
            assumption=assumed,
            guarantee=guarantee(finding, rule, assumed, n_total=n_total),
        ),
        caveats=_caveats(paired, finding, rule, n_total=n_total),
        provenance=_provenance(paired),
    )


def complete(comparison: Comparison, rule: StoppingRule, *, looks: tuple[int, ...]) -> Comparison:
    """An ordinary comparison of all documents, as the end of a sequential run."""
    n = comparison.n
    return replace(
        comparison,
        stopping=Stopping(
            n_total=n,
            n_used=n,
            look=len(looks),
            looks=looks,
            seed=rule.seed,
            alpha=rule.alpha,
            alpha_below=rule.alpha_below,
            alpha_above=rule.alpha_above,
            error_chance=0.0,
            method="full",
            guarantee=f"all {n:,} documents were asked, so that this is the ordinary verdict",
        ),
    )


def _provenance(paired: PairedScores) -> tuple[str, ...]:
    sentences = [*paired.base.provenance, *paired.candidate.provenance]
    if paired.base.weights is not None:
        sentences.append(
            "lm-eval reports no standard error here; it is computed by the ratio estimator"
        )
    return tuple(dict.fromkeys(sentences))


def _caveats(
    paired: PairedScores, finding: LookResult, rule: StoppingRule, *, n_total: int
) -> tuple[str, ...]:
    caveats = [*paired.base.caveats, *paired.candidate.caveats, *paired.caveats]
    if finding.method != "flips-exact":
        missed = carriers_missed(paired.base.n, n_total, rule.alpha)
        caveats.append(
            "stopped early by a method that is asymptotic and takes documents not asked to move "
            f"not much farther than those asked; what {missed:,} documents or fewer carry alone "
            f"is missed by such a part in more than about {100.0 * rule.alpha:.3g}% of orders"
        )
    return tuple(dict.fromkeys(caveats))


def carriers_missed(n: int, population: int, alpha: float) -> int:
    """The largest group that n of N random documents miss with a chance above alpha.

    By (1 - n / N)^k, which is above the hypergeometric chance.
    """
    return max(0, math.ceil(math.log(alpha) / math.log1p(-n / population)) - 1)


def _reason(
    verdict: Verdict, finding: LookResult, size: float, rule: StoppingRule, *, n: int, n_total: int
) -> str:
    sigma, margin = finding.sigma, limit_words(size, rule.tolerated.text)
    word = "no net drift"
    if sigma != 0.0:
        direction = "worse" if sigma > 0.0 else "better"
        about = number_text(abs(sigma), beside=size)
        word = f"{direction} by about {about} standard errors of the base"
    shown = {
        "above": f"sigma of all {n_total:,} documents is above {margin}",
        "below": f"sigma of all {n_total:,} documents is below {margin}",
        None: f"on which side of {margin} sigma of all {n_total:,} documents is, is not shown",
    }[finding.side]
    real = ", and the drift is real" if verdict.outcome == "degraded" else ""
    return (
        f"{word}; {shown}{real} (interval {_end(finding.low)} to {_end(finding.high)}, "
        f"{n:,} documents asked)"
    )


def _end(value: float) -> str:
    return (
        number_text(value) if math.isfinite(value) else ("infinity" if value > 0.0 else "-infinity")
    )


def carry_over(
    before: LookResult | None, now: LookResult | None, *, margin: float | Margin
) -> LookResult | None:
    """The present finding, with what an earlier look has shown.

    The levels hold for all looks together, so that what was shown once may be kept while other
    metrics of the task go on; but not against an estimate that has moved to the other side since.
    Its ends hold in the margin's unit, and are counted in sigma anew.
    """
    if before is None or before.side is None or now is None or now.side is not None:
        return now
    size = (margin.value if isinstance(margin, Margin) else margin) * now.scale
    same = now.sigma > size if before.side == "above" else now.sigma < size
    if not same:
        return now
    again = now.scale / before.scale
    return replace(
        now,
        side=before.side,
        low=before.low * again,
        high=before.high * again,
        error_chance=before.error_chance,
    )


# Metrics of lm-eval whose score of a document can only be 0 or 1.
_ZERO_OR_ONE = frozenset({"acc", "acc_norm", "exact_match", "mc1", "contains", "em"})


def assumption(table: ScoreTable, finding: LookResult) -> str:
    """What is taken for granted, "" where the method is exact."""
    if finding.assumed_worst is not None and finding.seen_worst is not None:
        unit = {
            "bits_per_byte": " bits",
            "perplexity": " nats",
            "weighted_perplexity": " nats",
        }.get(table.aggregation, "")
        return (
            f"no other document loses more than {number_text(finding.assumed_worst)}{unit} "
            f"(the most so far: {number_text(max(0.0, finding.seen_worst))})"
        )
    if table.metric in _ZERO_OR_ONE:
        return ""
    return "all scores are 0 or 1 like those seen"


def guarantee(finding: LookResult, rule: StoppingRule, assumed: str, *, n_total: int) -> str:
    """The sentence for a verdict from a part of the documents."""
    if finding.side is None:
        return f"not gated, and no verdict of all {n_total:,} documents is shown"
    level = rule.alpha_above if finding.side == "above" else rule.alpha_below
    head = (
        f"the verdict is that of all {n_total:,} documents, wrong in at most "
        f"{100.0 * level:.3g}% of document orders"
    )
    kind = "exact" if finding.method == "flips-exact" else "asymptotic"
    return f"{head}; {kind}, if {assumed}" if assumed else f"{head}; {kind}"
