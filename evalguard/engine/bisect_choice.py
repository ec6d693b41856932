"""BisectChoice: whether a comparison bisects the candidate's settings, and at what price."""

from __future__ import annotations

from dataclasses import dataclass

from evalguard import tools
from evalguard.config.options import BisectOver, BisectUse, CompareOptions
from evalguard.core.settings import Variant
from evalguard.models.arguments import HF_TYPES


def why_not_derivable(variant: Variant) -> str:
    """Say why nothing can be derived for a model, "" if something may be."""
    if variant.model not in HF_TYPES:
        return f"'{variant.name}' is of model type {variant.model}, which shows no config"
    if variant.build is not None:
        return f"'{variant.name}' is made by a build recipe"
    return ""


def names_off_reference(variant: Variant) -> tuple[str, ...]:
    """The settings that are not at their reference value."""
    settings = variant.settings
    return tuple(s.name for s in settings if variant.assignment.get(s.name) != s.reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectChoice:
    """Whether and how to bisect.

    Attributes:
        use: "auto": where the gate fails and the candidate declares settings; "always": also
            where it passes, and with settings derived from the two models; "never".
        budget: full evaluations that may be spent; None: no limit but the search's own.
        thorough: be surer of small effects, and spend more.
        jobs: probes at the same time.
        over: what is searched: settings, or parts of the candidate's model.
        instead: of "never": what is searched in its place.
    """

    use: BisectUse = "auto"
    budget: float | None = None
    thorough: bool = False
    jobs: int = 1
    over: BisectOver = "settings"
    instead: str = ""


def choose_bisect(options: CompareOptions) -> BisectChoice:
    """Settle whether to bisect.

    ``git bisect run`` asks for a verdict on every commit, and bisects by itself: there "auto" is
    "never".

    Raises:
        UsageError: one is asked for, and the tool is missing.
    """
    use = options.bisect or "auto"
    if use == "always" and not tools.has("attach_bisection"):
        raise tools.missing("bisect")
    return BisectChoice(
        use="never" if use == "auto" and options.git_bisect else use,
        budget=options.bisect_budget,
        thorough=bool(options.bisect_thorough),
        jobs=options.bisect_jobs or 1,
        over=options.bisect_over or "settings",
    )
