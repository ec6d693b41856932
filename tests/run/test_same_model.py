"""A model that is compared with itself is said to be, since its scores are equal anyway."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from scored_models import Score, source

from evalguard.core.scorer import ModelDescription
from evalguard.run.run_identities import identify_model
from evalguard.run.scoring.same_model import find_same_model


@pytest.fixture
def described(score: Score, models: dict[str, Path]) -> dict[str, ModelDescription]:
    names = ("llama", "copy", "other")
    models["copy"] = models["llama"].with_name("copy")
    shutil.copytree(models["llama"], models["copy"], dirs_exist_ok=True)
    found = dict(zip(names[:2], score("llama", "copy"), strict=True))
    found["other"] = score("llama", "other")[1]
    return {name: found[name].description for name in names}


def kinds(models: dict[str, Path], base: ModelDescription, other: ModelDescription) -> list[str]:
    sides = (
        identify_model(source(models, "llama"), base),
        identify_model(source(models, "llama"), other),
    )
    return [one.kind for one in find_same_model(sides, (base, other))]


def test_a_copy_is_the_same_model_and_other_weights_are_not(
    described: dict[str, ModelDescription], models: dict[str, Path]
) -> None:
    base = described["llama"]
    assert kinds(models, base, described["copy"]) == ["same_model"]
    assert kinds(models, base, described["other"]) == []


def test_nothing_is_said_where_a_model_cannot_be_proved(
    described: dict[str, ModelDescription], models: dict[str, Path]
) -> None:
    base = described["llama"]
    unproved = replace(base, identity=None)
    served = replace(base, identity={**(base.identity or {}), "served": "llama"})
    assert kinds(models, unproved, unproved) == []
    assert kinds(models, base, unproved) == []
    assert kinds(models, served, served) == []
    sides = identify_model(source(models, "llama"), base)
    assert find_same_model((sides, sides), (base, None)) == ()
