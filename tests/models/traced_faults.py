"""What a trace tells of a fault that was made in one of two models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from traced_models import make_sequences

from evalguard.core.hyperparameters import HyperparameterDelta, compare_hyperparameters
from evalguard.models.hyperparameters_read import read_model

DOCUMENTS = make_sequences()


def after(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """Put a function behind a module, as code that multiplies what it should not."""

    def change(model: Any) -> None:
        module = model.get_submodule(name)
        own = module.forward
        module.forward = lambda *given, **options: function(own(*given, **options))

    return change


def differing(base: Any, candidate: Any) -> dict[str, HyperparameterDelta]:
    found = compare_hyperparameters(read_model(base), read_model(candidate))
    return {one.name: one for one in found if one.verdict == "differs"}
