"""The words of a verdict, each with one definition: for screens, pages, and docs/verdict.md.

Whoever shows one of these words to a reader takes what it means from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evalguard.core.comparison import Outcome

# Short enough to stand beside a table.
SIGMA_UNIT = "standard errors of the base, + is worse"

# How an outcome of JSON is called where people read it; the others are called as they are.
TOLERATED = "tolerated"

GLOSSARY: Mapping[str, str] = {
    "base": "the model that is compared with: the original.",
    "candidate": "the model that is compared: what became of it.",
    "drift": "how far the candidate's score is from the base's on the same documents.",
    "sigma": f"the unit of a drift: {SIGMA_UNIT}. The standard error is lm-eval's own, of the "
    "base's score.",
    "interval": "where the drift lies, in sigma, at 95% (`--confidence`): from the difference that "
    "each document makes, and so often far narrower than 1 sigma.",
    "paired p": "how often chance alone would give so large a drift to the worse, by the same "
    "differences.",
    "margin": "the drift that is allowed: 1 sigma, unless `--margin` says otherwise.",
    "gate": "the rule that makes the exit code: by default a metric fails it whose drift is above "
    "the margin and real.",
    "real": "not chance: the interval lies above 0, adjusted for the number of metrics that the "
    "gate judges.",
    "Holm": "that adjustment: over all metrics together an unchanged candidate has one that is "
    "called real in at most 2.5 of 100 runs, if documents are independent and not very skewed.",
}

OUTCOMES: Mapping[Outcome, str] = {
    "regressed": "worse by more than the margin, and real: the gate fails.",
    "degraded": "worse, and real, but by no more than the margin: allowed. In JSON: `degraded`.",
    "improved": "better: the interval lies below 0.",
    "unchanged": "shown not to be worse by the margin: the interval holds 0 and ends below it.",
    "undecided": "not known: the interval holds 0 and reaches the margin, or the drift is above "
    "the margin and may be chance.",
    "failed": "no number, so nothing is known.",
}


def outcome_definitions(outcomes: Iterable[Outcome]) -> tuple[tuple[str, str], ...]:
    """Return names of outcomes, as people read them, with what they mean, the gravest first."""
    found = set(outcomes)
    return tuple((outcome_name(one), text) for one, text in OUTCOMES.items() if one in found)


def outcome_name(outcome: Outcome, *, fails: bool = False) -> str:
    """Return an outcome as people read it.

    Args:
        fails: whether the gate fails for it: then a real drift within the margin is no tolerated
            one.
    """
    return TOLERATED if outcome == "degraded" and not fails else outcome
