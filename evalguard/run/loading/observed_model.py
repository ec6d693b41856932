"""A model that runs code of others, in a worker that watches what that code reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.observed_reads import ObservedReads
from evalguard.conversion.observing import Observer
from evalguard.conversion.planning import ConversionPlan, plan_conversion
from evalguard.core.scorer import ModelDescription, Scorer
from evalguard.models.checkpoint_files import split_revision
from evalguard.models.model_folders import hub_snapshot
from evalguard.run.loading.foreign_code import brings_code
from evalguard.worker.messages import Load


def load_watched(load: Load, known: KnownDigests | None) -> Scorer:
    """Load a variant in this process, watched from the start where it runs code of others."""
    variant, plan = load.variant, plan_conversion(load.variant)
    observer = None
    if brings_code(variant, plan):
        observer = Observer()
        observer.start()
    # Not before it is watched: what these import is what other people's code may meet.
    from evalguard.run.loading.load_scorer import load_scorer

    cache_dir = Path(load.cache_dir)
    scorer = load_scorer(
        variant,
        load.policy,
        cache_dir=cache_dir,
        known=known,
        reusable=load.reusable,
        watched=observer is not None,
    )
    if observer is None:
        return scorer
    observer.ignore([str(cache_dir)])
    observer.ignore_model(map(str, _model_files(plan)))
    return cast("Scorer", _WatchedScorer(scorer, observer))


def _model_files(plan: ConversionPlan) -> Iterator[Path]:
    """Folders and files that are digested as the model itself."""
    arguments = plan.model_args
    revision = str(arguments.get("revision") or "main")
    names = [str(arguments.get(n) or "") for n in ("pretrained", "peft", "delta", "tokenizer")]
    own = [(name, revision) for name in names if name]
    for source, at in (*own, *map(split_revision, plan.checkpoints)):
        folder = Path(source).expanduser()
        found = folder if folder.exists() else hub_snapshot(source, at)
        if found is not None:
            yield found


class _WatchedScorer:
    """A scorer whose identity names all that code of others has read up to now."""

    def __init__(self, scorer: Scorer, observer: Observer) -> None:
        self._scorer = scorer
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scorer, name)

    def describe(self) -> ModelDescription:
        """Return what was loaded, and what was read for it."""
        found = self._scorer.describe()
        if found.identity is None:
            return found
        from evalguard.run.loading.known_models import OBSERVED, observed_packages

        reads = ObservedReads.of(self._observer.told(), observed_packages)
        if reads.reasons:
            return replace(found, identity=None, caveats=(*found.caveats, _not_kept(reads)))
        identity = {**found.identity, OBSERVED: reads.digest}
        return replace(found, identity=identity, observed=reads.plain)


def _not_kept(reads: ObservedReads) -> str:
    more = f" (and {len(reads.reasons) - 1} more)" if len(reads.reasons) > 1 else ""
    return f"its scores are not kept for other runs: {reads.reasons[0]}{more}"
