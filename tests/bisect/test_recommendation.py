"""The assignment that is nearest to the candidate and passes: alternatives of the culprits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_scores import YARDSTICK, N

from evalguard.bisect.search.find_culprits import Recommendation, recommend
from evalguard.core.question import Floats, Indices, Untestable
from evalguard.core.settings import Value

REFERENCES: dict[str, Value] = {"norm": "float32", "scale": 1.0}
SIGMA: dict[Value, float] = {
    "float32": 0.0, "bfloat16": 3.0, "tf32": 0.4, "float16": 0.7, 1.0: 0.0, 1.1: 4.0, 1.01: 0.5
}  # fmt: skip


class Values:
    """Drift of a few values, which adds up."""

    n_documents = N

    def __init__(self, cannot: Callable[[Mapping[str, Value]], bool] = lambda values: False):
        self._cannot = cannot
        self._base = np.random.default_rng(1).standard_normal(N)
        self.asked: list[tuple[dict[str, Value], int]] = []

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        assert not candidate_settings
        return np.asarray(self._base[documents])

    def measure_values(self, values: Mapping[str, Value], documents: Indices) -> Floats:
        self.asked.append((dict(values), documents.size))
        if self._cannot(values):
            raise Untestable("no such kernel")
        drift = sum(SIGMA[value] for value in values.values())  # type: ignore[index]
        return np.asarray(self._base[documents] - drift * YARDSTICK)


def recommended(oracle: Values, **alternatives: list[Value]) -> Recommendation | None:
    return recommend(
        oracle, ["scale", "norm"], alternatives,
        references=REFERENCES, margin=1.0, yardstick=YARDSTICK,
    )  # fmt: skip


def test_the_first_alternative_that_passes_is_taken_and_measured_on_all_documents() -> None:
    found = recommended(Values(), norm=["bfloat16", "float16", "tf32"])
    assert found is not None
    assert found.values == {"scale": 1.0, "norm": "float16"}
    assert found.drift_sigma == pytest.approx(0.7)
    assert [trial.passed for trial in found.trials] == [False, True]
    assert found.trials[-1].documents == N


def test_what_was_chosen_for_one_culprit_counts_for_the_next() -> None:
    # float16 alone would pass; beside a scale of 1.01 it is beyond the margin.
    found = recommended(Values(), scale=[1.01], norm=["float16", "tf32"])
    assert found is not None
    assert found.values == {"scale": 1.01, "norm": "tf32"}
    assert found.drift_sigma == pytest.approx(0.9)


def test_a_clearly_bad_alternative_costs_a_part_of_the_documents() -> None:
    found = recommended(Values(), norm=["bfloat16", "tf32"])
    assert found is not None
    assert found.trials[0].documents < N / 2
    assert found.cost == pytest.approx(sum(trial.cost for trial in found.trials))
    assert found.cost < 2.1


def test_without_alternatives_the_references_are_verified() -> None:
    found = recommended(Values())
    assert found is not None
    assert found.values == REFERENCES
    assert found.trials[0].documents == N


def test_an_alternative_that_cannot_be_built_is_skipped_with_its_reason() -> None:
    found = recommended(Values(lambda values: values["norm"] == "tf32"), norm=["tf32", "float16"])
    assert found is not None
    assert found.values["norm"] == "float16"
    assert (found.trials[0].outcome, found.trials[0].untestable) == (
        "cannot_build",
        "no such kernel",
    )
    assert math.isnan(found.trials[0].drift_sigma)


def test_where_nothing_passes_nothing_is_recommended() -> None:
    assert recommended(Values(lambda values: True), norm=["tf32"]) is None


def test_a_budget_ends_the_trials_with_what_is_verified() -> None:
    def within(budget: float) -> Recommendation | None:
        return recommend(
            Values(), ["norm", "scale"], {"norm": ["tf32"], "scale": [1.01]},
            references=REFERENCES, margin=1.0, yardstick=YARDSTICK, budget=budget,
        )  # fmt: skip

    assert within(0.5) is None
    one = within(1.5)
    assert one is not None
    assert one.values == {"norm": "tf32", "scale": 1.0}
    both = within(3.0)
    assert both is not None
    assert both.values == {"norm": "tf32", "scale": 1.01}


@given(norm=st.permutations(["bfloat16", "tf32", "float16"]), scale=st.permutations([1.1, 1.01]))
def test_whatever_is_recommended_passes_and_no_earlier_alternative_would_have(
    norm: list[Value], scale: list[Value]
) -> None:
    found = recommended(Values(), norm=norm, scale=scale)
    assert found is not None
    chosen = found.values
    assert sum(SIGMA[value] for value in chosen.values()) <= 1.0  # type: ignore[index]
    # the first culprit chose beside the reference of the second
    assert chosen["scale"] == next(v for v in scale if SIGMA[v] <= 1.0)  # type: ignore[index]
    room = 1.0 - SIGMA[chosen["scale"]]  # type: ignore[index]
    fitting = [value for value in norm if SIGMA[value] <= room]  # type: ignore[index]
    assert chosen["norm"] == fitting[0]
