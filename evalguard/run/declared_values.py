"""What the files of models say that another library runs: it does not show what it holds."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from evalguard.core.tracing.hyperparameters import HeldValue
from evalguard.errors import EvalguardError
from evalguard.run.loading.own_environment import is_runtime
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.run.sources import ModelSource, Source
from evalguard.store.cache_folder import default_cache_dir

_LOG = logging.getLogger(__name__)


def with_declared(
    sources: tuple[Source, Source], scored: tuple[ScoredSide, ScoredSide], cache_dir: Path | None
) -> tuple[ScoredSide, ScoredSide]:
    """Return both sides with the hyper-parameters that their files name, where nothing else does.

    They have been loaded and scored: files that cannot be read cost no verdict.
    """
    folder = cache_dir or default_cache_dir()
    first, second = (
        replace(side, declared=_read(source, side, folder))
        for source, side in zip(sources, scored, strict=True)
    )
    return first, second


def _read(source: Source, side: ScoredSide, cache_dir: Path) -> tuple[HeldValue, ...]:
    if not isinstance(source, ModelSource) or side.description is None:
        return ()
    if side.description.configuration or not is_runtime(source.variant):
        return ()
    from evalguard.run.tracing.worker_sides import read_declared_hyperparameters

    try:
        return tuple(read_declared_hyperparameters(source.variant, cache_dir))
    except EvalguardError:
        _LOG.info("what the files of %s declare is not known", source.name, exc_info=True)
        return ()
