"""Why there are no settings to search, as the two sides show before they run."""

from __future__ import annotations

from evalguard.core.settings import Variant
from evalguard.errors import SettingError, UsageError
from evalguard.run.modules.module_settings import describe_module_source
from evalguard.run.options import BisectOver
from evalguard.run.sources import DumpSource, ModelSource, RunSource, Source


def why_unsearchable(
    base: Source, candidate: Source, *, over: BisectOver = "settings"
) -> UsageError | None:
    """Say why no settings of a candidate can be searched, and what to do; None where some may be.

    Declared settings need the candidate's model alone, derived ones and parts of the model both.
    """
    if not isinstance(candidate, ModelSource):
        return UsageError(
            f"the candidate {candidate.name} is a {_kind(candidate)}: it cannot be run with other "
            "settings",
            hint=f"name the candidate's model in place of its {_kind(candidate).split()[-1]}",
        )
    if over != "settings":
        return _why_no_modules(base, candidate, over)
    if names_off_reference(candidate.variant):
        return None
    if candidate.variant.settings:
        return UsageError(
            f"every setting of the candidate {candidate.name} stands at its reference value: "
            "there is nothing to search",
            hint="leave out --set NAME=reference, or compare without a bisection",
        )
    if isinstance(base, ModelSource):
        return None
    kept = "a finished lm-eval run" if isinstance(base, RunSource) else "a stored base"
    return UsageError(
        f"the candidate {candidate.name} declares no settings, and they can be derived from two "
        f"models only: {base.name} is {kept}, without its model",
        hint="declare the candidate's settings in a guard file, or name the base's model with "
        "--base alone",
    )


def _kind(source: Source) -> str:
    return "dump" if isinstance(source, DumpSource) else "finished run"


def _why_no_modules(base: Source, candidate: ModelSource, over: str) -> UsageError | None:
    if not isinstance(base, ModelSource):
        return UsageError(
            f"{over} are searched by taking them from the base's model, and {base.name} is a "
            "finished run",
            hint="name the base's model with --base, or search the settings that the candidate "
            "declares",
        )
    try:
        describe_module_source(base.variant, candidate.variant)
    except (UsageError, SettingError) as error:
        return UsageError(str(error), hint=error.hint)
    return None


def names_off_reference(variant: Variant) -> tuple[str, ...]:
    """The settings that are not at their reference value."""
    settings = variant.settings
    return tuple(s.name for s in settings if variant.assignment.get(s.name) != s.reference)
