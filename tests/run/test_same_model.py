"""A model that is compared with itself is said to be, since its scores are equal anyway."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scored_models import Score

from evalguard.comparison.checks.same_model import find_same_model
from evalguard.core.compare_report import RunIdentity
from evalguard.core.scorer import ModelDescription
from evalguard.engine.scored_side import ScoredSide
from evalguard.harness.finished_runs.run_facts import RunOrigin


@pytest.fixture
def described(score: Score, models: dict[str, Path]) -> dict[str, ModelDescription]:
    names = ("llama", "copy", "other")
    models["copy"] = models["llama"].with_name("copy")
    shutil.copytree(models["llama"], models["copy"], dirs_exist_ok=True)
    found = dict(zip(names[:2], score("llama", "copy"), strict=True))
    found["other"] = score("llama", "other")[1]
    return {name: found[name].description for name in names}


def side(description: ModelDescription | None, **about: Any) -> ScoredSide:
    identity = RunIdentity(name="one", digest="1")
    return ScoredSide(identity=identity, tables=(), description=description, **about)


def proved(base: ModelDescription | None, other: ModelDescription | None) -> list[object]:
    return [one.values["proved"] for one in find_same_model((side(base), side(other)))]


def test_a_copy_is_the_same_model_and_other_weights_are_not(
    described: dict[str, ModelDescription],
) -> None:
    base = described["llama"]
    assert proved(base, described["copy"]) == [True]
    assert proved(base, described["other"]) == []


def test_nothing_is_said_where_a_model_cannot_be_proved(
    described: dict[str, ModelDescription],
) -> None:
    base = described["llama"]
    unproved = replace(base, identity=None)
    served = replace(base, identity={**(base.identity or {}), "served": "llama"})
    assert proved(unproved, unproved) == proved(base, unproved) == proved(base, None) == []
    assert proved(served, served) == []


def test_finished_runs_are_of_the_model_that_they_record() -> None:
    one = RunOrigin(name="llama", model={"model": "hf", "model_args: pretrained": "./llama"})
    other = RunOrigin(name="llama", model={**one.model, "model_args: dtype": "bfloat16"})
    unknown = RunOrigin(name="llama")
    told = [
        [found.values["proved"] for found in find_same_model((side(None, origin=one), second))]
        for second in (side(None, origin=of) for of in (one, other, unknown, None))
    ]
    assert told == [[False], [], [], []]
    assert find_same_model((side(None, origin=unknown), side(None, origin=unknown))) == ()
