"""Unsearchable: why there are no settings to search, as the two sides show before they run."""

from __future__ import annotations

from evalguard.errors import UsageError
from evalguard.pipeline.sources import KeptSource, ModelSource, Source
from evalguard.settings import Variant


def unsearchable(base: Source, candidate: Source) -> UsageError | None:
    """Say why no settings of a candidate can be searched, and what to do; None where some may be.

    Declared settings need the candidate's model alone, derived ones both.
    """
    if not isinstance(candidate, ModelSource):
        return UsageError(
            f"the candidate {candidate.name} is a finished run: it cannot be run with other "
            "settings",
            hint="name the candidate's model in place of its run",
        )
    if changed(candidate.variant):
        return None
    if candidate.variant.settings:
        return UsageError(
            f"every setting of the candidate {candidate.name} stands at its reference value: "
            "there is nothing to search",
            hint="leave out --set NAME=reference, or compare without a bisection",
        )
    if isinstance(base, ModelSource):
        return None
    kept = "a stored base" if isinstance(base, KeptSource) else "a finished lm-eval run"
    return UsageError(
        f"the candidate {candidate.name} declares no settings, and they can be derived from two "
        f"models only: {base.name} is {kept}, without its model",
        hint="declare the candidate's settings in a guard file, or name the base's model with "
        "--base alone",
    )


def changed(variant: Variant) -> tuple[str, ...]:
    """The settings that are not at their reference value."""
    settings = variant.settings
    return tuple(s.name for s in settings if variant.assignment.get(s.name) != s.reference)
