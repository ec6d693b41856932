"""Base and candidate that are one model: equal scores then say nothing of a conversion."""

from __future__ import annotations

from evalguard.core.findings import Finding
from evalguard.core.scorer import ModelDescription
from evalguard.engine.scored_side import ScoredSide
from evalguard.harness.finished_runs.run_facts import RunOrigin


def find_same_model(scored: tuple[ScoredSide, ScoredSide]) -> tuple[Finding, ...]:
    """Say that both sides are the same model; () where they differ, or it is not known.

    A folder that is named twice, and a conversion that wrote the original again, pass like a
    lossless one. What proves it is the identity by which scores are kept: all that can change one.
    Finished lm-eval runs record a model by its name and arguments; what stood there may have
    changed between them. Of a server it rests on what the user vouches for, and nothing is said.
    """
    base, candidate = scored
    if _is_proved(base.description, candidate.description):
        text = "base and candidate are one model: the same weights, configuration and code"
    elif _is_recorded(base.origin, candidate.origin):
        text = "both runs record the same model, with the same arguments"
    elif base.identity.kind == "dump" and base.identity.digest == candidate.identity.digest:
        text = (
            "both folders hold the same outputs to the last bit, as a copy of a dump does, or what "
            "one model wrote twice"
        )
    else:
        return ()
    proved = base.description is not None
    return (Finding(kind="same_model", text=text, values={"proved": proved}),)


def _is_proved(base: ModelDescription | None, candidate: ModelDescription | None) -> bool:
    if base is None or candidate is None or base.identity is None:
        return False
    return base.identity == candidate.identity and not base.identity.get("served")


def _is_recorded(base: RunOrigin | None, candidate: RunOrigin | None) -> bool:
    return base is not None and candidate is not None and base.model == candidate.model != {}
