"""What is kept of the base's distributions, for probes to be held against."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from evalguard.errors import EvaluationError, StoreError
from evalguard.harness import Block
from evalguard.pipeline.bisection.asking import Asking
from evalguard.pipeline.bisection.assigned import Assigned
from evalguard.pipeline.bisection.inquiry import HeldTo
from evalguard.pipeline.bisection.place import Place
from evalguard.pipeline.bisection.runner import Runner
from evalguard.pipeline.kept_blocks import KeptBlocks
from evalguard.pipeline.referencing import SAMPLES, References
from evalguard.pipeline.sources import ModelSource
from evalguard.reference import Reference
from evalguard.scorer import DistributionScorer, Scorer
from evalguard.store import ReferenceCache


def base_references(
    held_to: HeldTo, place: Place, asking: Asking, runner: Runner, stack: ExitStack
) -> References:
    """Have the base leave its most probable tokens, block by block; those that are kept stand.

    Args:
        asking: how the task is asked.
        stack: ends with the search, and with it what nothing would recognise later.

    Raises:
        EvalguardError: the base cannot be loaded, or shows no distributions.
    """
    if not isinstance(held_to.base, ModelSource):
        raise EvaluationError(f"'{held_to.base.name}' is a finished run: it holds no distributions")
    source = replace(held_to.base, policy=place.policy)
    blocks = asking.cut(Assigned(source=source, known=None), runner)

    def made(scorer: Scorer) -> References:
        if not scorer.describe().gives_rows:
            raise EvaluationError(f"{source.name} shows no distributions")
        key = place.evaluator.key(scorer)
        references = References(
            top_k=place.choices.distributions.top_k,
            kept=KeptBlocks(ReferenceCache(_folder(key, place, stack)), place.evaluator.note),
            key=key,
        )
        for block in blocks:
            if references.known(block) is None:
                _leave(references, block, cast(DistributionScorer, scorer))
        return references

    return runner.ask(source, made)


def beside(references: References, block: Block) -> Sequence[Reference | None]:
    """What the base left for a block of an assignment.

    Raises:
        StoreError: it is gone: a full disk, a cleared cache. That is no assignment's fault.
    """
    found = references.beside(block)
    if found is None:
        raise StoreError(
            "what was kept of the base's distributions is gone from the cache",
            hint="the same command makes it again; scores in the cache are not computed twice",
        )
    return found


def _leave(references: References, block: Block, scorer: DistributionScorer) -> None:
    _, left = scorer.score_reference(block.requests, top_k=references.top_k, samples=SAMPLES)
    references.put(block, left)


def _folder(key: str | None, place: Place, stack: ExitStack) -> Path:
    if key is not None:
        return place.cache_dir / "references"
    return Path(stack.enter_context(TemporaryDirectory(prefix="evalguard-references-")))
