"""Base and candidate that are one model: equal scores then say nothing of a conversion."""

from __future__ import annotations

from evalguard.core.reports.compare_report import RunIdentity
from evalguard.core.reports.findings import Finding
from evalguard.core.scorer import ModelDescription


def find_same_model(
    sides: tuple[RunIdentity, RunIdentity],
    models: tuple[ModelDescription | None, ModelDescription | None],
) -> tuple[Finding, ...]:
    """Say that both sides are the same model; () where they differ, or it cannot be proved.

    A folder that is named twice, and a conversion that wrote the original again, pass like a
    lossless one. What proves it is the identity by which scores are kept: all that can change one.
    Of a server it rests on what the user vouches for, and proves nothing.

    Args:
        sides, models: of base and candidate; None for a finished run.
    """
    base, candidate = models
    if base is None or candidate is None or base.identity is None:
        return ()
    if base.identity != candidate.identity or base.identity.get("served"):
        return ()
    text = "base and candidate are one model: the same weights, configuration and code"
    return (Finding(kind="same_model", text=text, values={"digest": sides[0].digest}),)
