"""Models of the small world as two sides of a comparison, and what scoring them gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.core.settings import Variant
from evalguard.engine.executor import Evaluation
from evalguard.engine.sources import ModelSource

Score = Callable[..., list[Evaluation]]


def source(
    models: dict[str, Path], name: str, *, dtype: str = "float32", **settings: Any
) -> ModelSource:
    arguments = {"pretrained": str(models[name]), "dtype": dtype}
    return ModelSource(
        name=name, variant=Variant(name=name, model="hf", model_args=arguments, **settings)
    )


def values(evaluations: Sequence[Evaluation]) -> list[Any]:
    return [
        (table.key, table.values.tobytes(), table.token_hashes)
        for evaluation in evaluations
        for scores in evaluation.scores.values()
        for table in scores.tables
    ]


def kl(evaluations: Sequence[Evaluation], task: str) -> np.ndarray:
    found = evaluations[1].divergences[task]
    assert found.reason == ""
    return np.concatenate([d.kl for document in found.documents for d in document.requests])
