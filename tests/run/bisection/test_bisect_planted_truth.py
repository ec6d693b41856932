"""Models that wrote their documents: what is planted in them is what they lose."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.bisect_knobs import knobs
from benchmarks.bisect_truth import Truth
from benchmarks.sampled_models import CONFIGS, Sampled, sampled


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    return sampled(request.param, tmp_path_factory.mktemp("sampled"), documents=96, seed=5)


def test_a_model_predicts_its_own_documents_far_better_than_chance(place: Sampled) -> None:
    scores = Truth(place, ()).scores(frozenset())
    assert scores.shape == (96,)
    two_words = 2.0 * math.log(254.0)
    assert scores.mean() > -two_words + 5.0 * scores.std() / 96**0.5


def test_a_harmless_value_costs_nothing_and_its_dial_all_the_more(place: Sampled) -> None:
    knob = knobs(place.kind, place.model)["last_norm"]
    assert knob.dial is not None
    drifts = [
        Truth(place, (knob.setting(value),)).sigma(frozenset({knob.name}))
        for value in (knob.harmless, knob.dial(2.0), knob.dial(6.0))
    ]
    assert abs(drifts[0]) < 0.05
    assert 1.0 < drifts[1] < drifts[2]


def test_without_any_setting_at_its_candidate_value_the_model_is_the_base(place: Sampled) -> None:
    settings = tuple(k.setting(k.harmless) for k in knobs(place.kind, place.model).values())
    told = Truth(place, settings).scores(frozenset())
    assert np.array_equal(told, Truth(place, ()).scores(frozenset()))
