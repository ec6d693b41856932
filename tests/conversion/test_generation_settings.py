"""generation.X sets what generating tasks read, and nothing that is not there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from variants import variant

from evalguard.conversion.edits import read_generation, set_generation
from evalguard.conversion.planning import plan_conversion
from evalguard.errors import SettingError


def generating(**values: object) -> torch.nn.Module:
    model = torch.nn.Linear(1, 1)
    model.generation_config = SimpleNamespace(top_k=50, repetition_penalty=1.0, **values)  # type: ignore[assignment]
    return model


def test_an_attribute_is_set_and_read_back() -> None:
    model = generating()
    wanted = plan_conversion(variant({"generation.repetition_penalty": 1.3}))
    assert wanted.edits_model
    set_generation(model, wanted.generation)
    assert read_generation(model, "s0", "repetition_penalty", 1.3) == 1.3
    with pytest.raises(SettingError, match=r"did not take: generation.repetition_penalty is 1.3"):
        read_generation(model, "s0", "repetition_penalty", 2.0)


def test_an_unknown_attribute_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"no attribute 'repetition_penalti'; did you mean"):
        set_generation(generating(), {"s": ("repetition_penalti", 1.3)})


def test_a_model_that_does_not_generate_is_refused() -> None:
    with pytest.raises(SettingError, match="Linear has no generation config"):
        set_generation(torch.nn.Linear(1, 1), {"s": ("top_k", 1)})
