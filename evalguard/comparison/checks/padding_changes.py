"""Padding: does it change what one of the two models answers, and not the other?"""

from __future__ import annotations

import math
from collections.abc import Mapping

from evalguard.core.findings import Finding, FindingValue
from evalguard.core.scorer import ModelDescription, PaddingEffect

# How many times the other side's own change a change has to be, to be one side's alone.
_TIMES_OTHER = 4.0


def find_padding_changes(
    base: ModelDescription | None, candidate: ModelDescription | None, names: tuple[str, str]
) -> tuple[Finding, ...]:
    """Say where padding changes the answers of one model, by more than rounding and the other's.

    Of a base that is not there, a finished run, nothing is known: then it is said of a candidate
    that keeps no state, for which padding before a text is always a fault.

    Args:
        names: of base and candidate.
    """
    base_padding, candidate_padding = (
        None if side is None else side.padding for side in (base, candidate)
    )
    if (
        candidate is not None
        and candidate_padding is not None
        and candidate_padding.matters
        and base_padding is None
    ):
        reason = f"of {names[0]} that is not known"
        return (
            ()
            if candidate_padding.keeps_state
            else (_padding_finding("candidate", names[1], candidate, reason),)
        )
    if base_padding is None or candidate_padding is None or base is None or candidate is None:
        return ()
    findings = []
    for role, name, own, other_name, other_padding in (
        ("candidate", names[1], candidate, names[0], base_padding),
        ("base", names[0], base, names[1], candidate_padding),
    ):
        assert own.padding is not None
        alone = not own.padding.size <= max(own.padding.limit, _TIMES_OTHER * other_padding.size)
        if own.padding.matters and alone:
            findings.append(_padding_finding(role, name, own, f"not {other_name}'s", other_padding))
    return tuple(findings)


def _padding_finding(
    role: str,
    name: str,
    description: ModelDescription,
    beside: str,
    other: PaddingEffect | None = None,
) -> Finding:
    effect = description.padding
    assert effect is not None
    size = description.computation.get("batch_size")
    if not effect.before_matters:
        where, fault = "behind a text ", "no causal mask"
    elif isinstance(size, int) and size > 1 and not effect.keeps_state:
        where, fault = "", f"positions or mask; generated padded, as --batch-size {size} asks"
    else:
        where, fault = "", "positions or mask; generated one by one, --batch-size 8 pads"
    text = (
        f"padding {where}changes {name}'s answers by up to {effect.size:.2g} nats a token, "
        f"{beside}: {fault}"
    )
    values: dict[str, str | float] = {
        "side": role,
        "left_nats": effect.left,
        "right_nats": effect.right,
        "limit_nats": effect.limit,
    }
    if other is not None:
        values |= {"other_left_nats": other.left, "other_right_nats": other.right}
    return Finding(kind="padding_changes", text=text, values=_finite_numbers(values))


def _finite_numbers(values: Mapping[str, str | float]) -> dict[str, FindingValue]:
    return {
        name: value if isinstance(value, str) or math.isfinite(value) else None
        for name, value in values.items()
    }
