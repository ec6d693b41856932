"""GateEntry: when a comparison fails, as a guard file says it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from evalguard.config.entry import Entry


def _distance(what: str, **more: Any) -> Any:
    return Field(default=None, ge=0, allow_inf_nan=False, description=f"At most: {what}", **more)


def _share(what: str) -> Any:
    return Field(default=None, ge=0, le=1, description=f"At least: {what}")


class LimitsEntry(Entry):
    """Absolute limits on how far the two models' distributions and answers differ, per task."""

    kl_mean: float | None = _distance("mean KL divergence from the base, in nats a token.")
    kl_median: float | None = _distance("median KL.")
    kl_p90: float | None = _distance("the KL that 90% of the tokens do not exceed.")
    kl_p95: float | None = _distance("the KL that 95% of the tokens do not exceed.")
    kl_p99: float | None = _distance("the KL that 99% of the tokens do not exceed.")
    kl_p99_9: float | None = _distance(
        "the KL that 99.9% of the tokens do not exceed.", alias="kl_p99.9"
    )
    kl_max: float | None = _distance("the largest KL.")
    dp_mean: float | None = _distance(
        "size of the mean change in the scored token's probability.", le=1
    )
    dp_rms: float | None = _distance(
        "root mean square change in the scored token's probability.", le=1
    )
    same_top1: float | None = _share("share of tokens with the same most probable token.")
    same_topk: float | None = _share("mean share of the most probable tokens that both have.")
    same_answer: float | None = _share("share of documents with the same answer.")


class GateEntry(Entry):
    """When a comparison fails."""

    margin: float = Field(
        default=1.0, gt=0, description="Tolerated drift, in standard errors of the base model."
    )
    fail_on: Literal["real", "margin", "significant", "certain", "any-degradation"] = Field(
        default="real",
        description="What fails: real (above the margin, and the paired test calls it real, by "
        "Holm over all gated metrics at 5%), margin (above the margin), significant (its own "
        "interval above 0), certain (the whole interval above the margin), any-degradation.",
    )
    confidence: float = Field(default=0.95, gt=0, lt=1, description="Of the interval of the drift.")
    undecided: Literal["warn", "fail"] = Field(
        default="warn", description="What too few documents to decide lead to."
    )
    subtasks: bool = Field(
        default=False,
        description="Whether the subtasks of a group with an aggregate are gated too.",
    )
    metrics: LimitsEntry = Field(
        default_factory=LimitsEntry, description="Absolute limits, beside the margin."
    )
