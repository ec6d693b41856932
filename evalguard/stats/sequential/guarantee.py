"""What a sequential verdict guarantees, and what it assumes, in words."""

from __future__ import annotations

from evalguard.scores import ScoreTable
from evalguard.stats.reason import number
from evalguard.stats.sequential.finding import Finding
from evalguard.stats.sequential.rule import StoppingRule

# Metrics of lm-eval whose score of a document can only be 0 or 1.
_ZERO_OR_ONE = frozenset({"acc", "acc_norm", "exact_match", "mc1", "contains", "em"})


def assumption(table: ScoreTable, finding: Finding) -> str:
    """What is taken for granted, "" where the method is exact."""
    if finding.assumed_worst is not None and finding.seen_worst is not None:
        moves = "gains" if finding.side == "above" else "loses"
        unit = {
            "bits_per_byte": " bits",
            "perplexity": " nats",
            "weighted_perplexity": " nats",
        }.get(table.aggregation, "")
        assumed = (
            f"no other document {moves} more than {number(finding.assumed_worst)}{unit} "
            f"(the most so far: {number(max(0.0, finding.seen_worst))})"
        )
        if finding.side == "above" and finding.unit_guessed:
            assumed += (
                " and no score of the base lies more than three times as far out as those seen"
            )
        return assumed
    if table.metric in _ZERO_OR_ONE:
        return ""
    return "all scores are 0 or 1 like those seen"


def guarantee(finding: Finding, rule: StoppingRule, assumed: str, *, n_total: int) -> str:
    """The sentence for a verdict from a part of the documents."""
    level = rule.alpha_above if finding.side == "above" else rule.alpha_below
    head = (
        f"the verdict is that of all {n_total:,} documents, wrong in at most "
        f"{100.0 * level:.3g}% of document orders"
    )
    kind = "exact" if finding.method == "flips-exact" else "asymptotic"
    return f"{head}; {kind}, if {assumed}" if assumed else f"{head}; {kind}"
