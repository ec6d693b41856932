"""What a gate's verdicts come to: one state, and one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from evalguard.core.limits import LimitVerdict

GateState = Literal["passed", "regressed", "undecided", "failed"]
Key = tuple[str, str, str]
ByState = Mapping[GateState, tuple[Key, ...]]
_GRAVEST_FIRST: tuple[GateState, ...] = ("regressed", "failed", "undecided")
_MOST_NAMED = 3


def overall(by_state: ByState, limits: Sequence[LimitVerdict], *, compared: bool) -> GateState:
    """The gravest state of any metric or limit; "failed" where nothing was compared."""
    of_limits = {limit.state for limit in limits}
    for state in _GRAVEST_FIRST:
        if by_state[state] or state in of_limits:
            return state
    return "passed" if compared else "failed"


def reason(
    by_state: ByState,
    limits: Sequence[LimitVerdict],
    total: int,
    *,
    accepted: int = 0,
    shown: int = 0,
) -> str:
    """Say which metrics and limits brought about what.

    Args:
        accepted: gated metrics that regressed and that waivers let through.
        shown: metrics that were compared and are not gated.
    """
    if total == 0 and not limits and shown:
        return (
            f"the gate judges none of the {shown} metrics compared (only and advisory of the gate "
            "leave out all of them), so nothing is known"
        )
    if total == 0 and not limits:
        return "nothing was compared, so nothing is known"
    parts = []
    for state in _GRAVEST_FIRST:
        names = [f"{task} {metric}" for task, _, metric in by_state[state]]
        parts += _count(names, f"of {total} gated metrics {state}")
        beyond = [f"{v.task} {v.metric}".strip() for v in limits if v.state == state]
        parts += _count(beyond, f"of {len(limits)} limits {state}")
    if accepted:
        parts.append(f"{accepted} of {total} gated metrics regressed and accepted by waivers")
    return "; ".join(parts) or _passed(total, len(limits))


def _count(names: Sequence[str], what: str) -> list[str]:
    if not names:
        return []
    suffix = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [f"{len(names)} {what} ({', '.join(names[:_MOST_NAMED])}{suffix})"]


def _passed(total: int, limits: int) -> str:
    if total == 0:
        return f"all {limits} limits kept"
    metrics = "the gated metric passed" if total == 1 else f"all {total} gated metrics passed"
    return metrics + (f", and all {limits} limits kept" if limits else "")
