"""Sums over activations, names of points, classes of weights, and two recordings compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from evalguard.core.tracing.points import PointName
from evalguard.core.tracing.precision import (
    CLASSES,
    classify_weight,
    relative_error,
    round_weights,
    vote_class,
)
from evalguard.core.tracing.recordings import compare_recordings
from evalguard.core.tracing.sums import ErrorSums
from evalguard.errors import EvaluationError, UsageError

RNG = np.random.default_rng(0)


class Held:
    """One sequence of activations, by name."""

    precision = "float32"

    def __init__(self, values: Mapping[str, NDArray[Any]]) -> None:
        self.values = values

    def names(self, sequence: int) -> Sequence[str]:
        return list(self.values)

    def read(self, sequence: int, point: str) -> NDArray[Any]:
        return self.values[point]


def test_a_point_is_named_by_module_call_and_end() -> None:
    for text in ("a.b:in", "a.b:out", "a.b:out.2", "a.b#3:out.1"):
        assert str(PointName.parse(text)) == text
    assert str(PointName.parse("a#1:out.0")) == "a:out"
    with pytest.raises(UsageError, match=r"'a\.b' is not the name of a point"):
        PointName.parse("a.b")


@given(st.integers(1, 5), st.integers(1, 5), st.floats(-2.0, 2.0))
def test_sums_over_pieces_are_those_of_the_whole(rows: int, cut: int, shift: float) -> None:
    rng = np.random.default_rng(rows)
    base = rng.standard_normal((rows + cut, 20)).astype(np.float32)
    other = base + np.float32(shift) * rng.standard_normal(base.shape).astype(np.float32)
    whole, pieces = ErrorSums(), ErrorSums()
    whole.add(base, other)
    pieces.add(base[:rows], other[:rows])
    pieces.add(base[rows:], other[rows:])
    expected = np.linalg.norm((other - base).astype(np.float64)) / np.linalg.norm(base)
    assert whole.relative_l2 == pytest.approx(float(expected), rel=1e-5, abs=1e-12)
    assert pieces.relative_l2 == pytest.approx(whole.relative_l2, rel=1e-5, abs=1e-12)
    assert pieces.relative_coherent == pytest.approx(whole.relative_coherent, rel=1e-4, abs=1e-9)
    assert pieces.error().sum_base == pytest.approx(float(base.sum(dtype=np.float64)), abs=1e-4)
    assert pieces.error().elements == base.size


def test_an_error_by_a_factor_is_all_coherent_and_rounding_is_not() -> None:
    base = RNG.standard_normal((30, 400)).astype(np.float32)
    scaled, rounded = ErrorSums(), ErrorSums()
    scaled.add(base, base * np.float32(1.01))
    rounded.add(base, round_weights(base, "bfloat16"))
    assert scaled.relative_coherent == pytest.approx(scaled.relative_l2, rel=1e-3)
    assert rounded.relative_coherent < 0.15 * rounded.relative_l2


def test_the_same_infinities_agree_and_a_new_nan_does_not() -> None:
    masked = np.array([[1.0, -np.inf, 2.0]], dtype=np.float32)
    same, broken = ErrorSums(), ErrorSums()
    same.add(masked, masked)
    broken.add(masked, np.array([[1.0, -np.inf, np.nan]], dtype=np.float32))
    assert same.relative_l2 == 0.0
    assert math.isnan(broken.relative_l2)
    assert broken.nonfinite == 1
    nothing = ErrorSums()
    nothing.add(np.zeros((1, 3)), np.ones((1, 3)))
    assert nothing.relative_l2 == math.inf


@pytest.mark.parametrize("name", CLASSES)
def test_a_weight_is_recognised_by_the_rule_that_rounded_it(name: str) -> None:
    weights = RNG.standard_normal((48, 96)).astype(np.float32)
    found = classify_weight(weights, round_weights(weights, name))
    assert (found.name, found.exact) == (name, True)


def test_rounding_to_bfloat16_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    weights = RNG.standard_normal(10_000).astype(np.float32)
    ours = round_weights(weights, "bfloat16")
    assert np.array_equal(ours, torch.from_numpy(weights).bfloat16().float().numpy())


def test_a_transposed_weight_has_no_class_and_the_majority_is_voted() -> None:
    weights = [RNG.standard_normal((32, 32)).astype(np.float32) for _ in range(4)]
    found = [classify_weight(w, round_weights(w, "int8 per channel")) for w in weights]
    found.append(classify_weight(weights[0], weights[0].T.copy()))
    assert found[-1].name == "other"
    assert vote_class(found) == ("int8 per channel", {"int8 per channel": 4, "other": 1})


@given(st.sampled_from(CLASSES), st.integers(0, 10_000))
def test_rounding_twice_is_rounding_once(name: str, seed: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((8, 32)).astype(np.float32)
    once = round_weights(weights, name)
    assert relative_error(once, round_weights(once, name)) < 1e-6


def test_two_recordings_say_where_the_error_grows() -> None:
    names = [f"layers.{i}.{part}:out" for i in range(3) for part in ("norm", "mlp")]
    base = {name: RNG.standard_normal((1, 5, 20)).astype(np.float32) for name in names}
    noise = {name: RNG.standard_normal((1, 5, 20)).astype(np.float32) for name in names}
    sizes = dict(zip(names, (1e-7, 2e-7, 3e-7, 1e-2, 1.2e-2, 1.5e-2), strict=True))
    candidate = {name: value + sizes[name] * noise[name] for name, value in base.items()}
    trace = compare_recordings(Held(base), Held(candidate), sequences=1)
    assert [s.module for s in trace.suspects] == ["layers.1.mlp"]
    assert trace.suspects[0].layer == 1
    assert not trace.localised
    assert trace.caveats


def test_recordings_without_common_points_are_refused_and_others_listed() -> None:
    values = np.ones((1, 2), dtype=np.float32)
    with pytest.raises(EvaluationError, match="no point with the same name"):
        compare_recordings(Held({"a:out": values}), Held({"b:out": values}), sequences=1)
    trace = compare_recordings(
        Held({"a:out": values, "b:out": values, "c:in": values}),
        Held({"a:out": values, "b:out": np.ones((3, 2)), "d:out": values}),
        sequences=1,
    )
    assert {(each.name, each.side) for each in trace.unaligned} == {
        ("b:out", "candidate"),
        ("c:in", "base"),
        ("d:out", "candidate"),
    }
