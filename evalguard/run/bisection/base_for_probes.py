"""What is kept of the base's distributions, for probes to be held against."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from evalguard.core.scorer import Scorer
from evalguard.errors import EvaluationError
from evalguard.run.bisection.probe_context import ProbeContext
from evalguard.run.bisection.questions import BlockScoring
from evalguard.run.bisection.settings_oracle import SearchedLimit
from evalguard.run.executing.base_references import BaseReferences
from evalguard.run.executing.work import Unit, WorkRunner, score_unit
from evalguard.run.sources import ModelSource


def collect_base_references(
    held_to: SearchedLimit,
    place: ProbeContext,
    asking: BlockScoring,
    runner: WorkRunner,
    stack: ExitStack,
) -> BaseReferences:
    """Have the base leave its most probable tokens, block by block; those that are kept stand.

    Args:
        asking: how the task is asked.
        stack: ends with the search, and with it what nothing would recognise later.

    Raises:
        EvalguardError: the base cannot be loaded, or shows no distributions.
    """
    if not isinstance(held_to.base, ModelSource):
        raise EvaluationError(f"the model of '{held_to.base.name}' is not at hand")
    base = place.identified(replace(held_to.base, policy=place.policy))
    blocks = asking.cut(base, runner)

    def referenced(key: str | None) -> BaseReferences:
        folder = _reference_folder(key, place, stack)
        top_k = place.choices.distributions.top_k
        return place.evaluator.store.references_of(key, top_k=top_k, folder=folder)

    def made(scorer: Scorer) -> BaseReferences:
        if not scorer.describe().gives_rows:
            raise EvaluationError(f"{base.source.name} shows no distributions")
        base.describe_as(scorer.describe())
        references = referenced(base.key if place.kept is not None else None)
        for block in blocks:
            if references.known(block) is None:
                answer = score_unit(scorer, Unit(block=block, leaves=references))
                references.put(block, answer.references)
        return references

    if place.kept is not None and base.key is not None:
        kept = referenced(base.key)
        if all(kept.known(block) is not None for block in blocks):
            return kept
    return runner.ask(base.source, made)


def _reference_folder(key: str | None, place: ProbeContext, stack: ExitStack) -> Path:
    if key is not None and place.kept is not None:
        return place.kept / "references"
    return Path(stack.enter_context(TemporaryDirectory(prefix="evalguard-references-")))
