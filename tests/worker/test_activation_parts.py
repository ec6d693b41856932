"""Activations come out of a worker in parts, one tensor at a time, and to the last bit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evalguard
from evalguard.core.codec import PlainError, codec_of
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import OwnEnvironment, Variant
from evalguard.core.trace_record import ActivationError, LayerDelta, TokenDetail, Trace, TwinFacts
from evalguard.engine.loading.runtime_in_worker import load_runtime_scorer
from evalguard.errors import EvaluationError, UsageError, WorkerError
from evalguard.worker import pieces as activation_parts
from evalguard.worker.client import WorkerScorer
from evalguard.worker.messages import CALLS, ActivationsCall
from evalguard.worker.pieces import cut_activations, join_activations
from evalguard.worker.server import ActivationCalls

IDS = (0, 5, 9, 30)
VALUES = [
    ("a:out", np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
    ("b:in", np.array([np.nan, -np.inf, -0.0], dtype=np.float32)),
    ("c:out", np.zeros((0, 4), dtype=np.float32)),
]


@pytest.mark.parametrize("most", [1, 20, 10**9])
def test_parts_of_any_size_give_the_values_back(monkeypatch: Any, most: int) -> None:
    monkeypatch.setattr(activation_parts, "MOST_BYTES", most)
    parts = cut_activations(iter(VALUES))
    found = list(join_activations(lambda: next(parts, None)))
    assert [point for point, _ in found] == ["a:out", "b:in", "c:out"]
    for (_, value), (_, expected) in zip(found, VALUES, strict=True):
        assert value.shape == expected.shape
        assert value.tobytes() == expected.tobytes()


def test_a_pass_is_begun_once_and_broken_off_when_something_else_is_asked() -> None:
    closed = []

    class Model:
        def activations(self, *_: Any) -> Iterator[Any]:
            try:
                yield from VALUES
            finally:
                closed.append(True)

    calls = ActivationCalls()
    with pytest.raises(WorkerError, match="no pass was begun"):
        calls.next_part()
    wanted = ActivationsCall(ids=IDS, wanted=(), forced={})
    calls.open(wanted, Model())  # type: ignore[arg-type]
    part = calls.next_part()
    assert part is not None
    assert part.point == "a:out"
    calls.close()
    assert closed
    with pytest.raises(UsageError, match="shows no activations"):
        calls.open(wanted, object())  # type: ignore[arg-type]


def test_a_trace_comes_out_of_a_worker_with_every_number() -> None:
    error = ActivationError(
        relative_l2=float("inf"), cosine=float("nan"), max_abs=1e-300, sum_base=-0.0,
        sum_candidate=0.1, mean_base=0.0, mean_candidate=0.2, elements=7,
    )  # fmt: skip
    layer = LayerDelta(
        point="a:out", module="a", kind="leaf", layer=2, order=0, local=error, local_ratio=3.5,
        since=("b:in",),
    )  # fmt: skip
    twin = TwinFacts(
        dtype="float32", weights="float32", votes={"float32": 3}, threshold=4.0,
        attention=("eager", "sdpa"),
    )  # fmt: skip
    trace = Trace(
        layers=(layer,), suspects=(), first=None, twin=twin, documents=1, tokens=4,
        details=(TokenDetail(point="a:out", tokens=((1.0, 2.0), (3.0,))),),
    )  # fmt: skip
    codec = CALLS["trace_recorded"].value
    found = codec.decode(json.loads(json.dumps(codec.encode(trace))))
    assert repr(found) == repr(trace)
    with pytest.raises(PlainError, match=r"layers\[0\].kind: expected one of"):
        codec.encode(dataclasses.replace(trace, layers=(dataclasses.replace(layer, kind="x"),)))
    with pytest.raises(TypeError, match="no codec for"):
        codec_of(complex)


@pytest.mark.slow
def test_a_worker_shows_what_its_model_shows_here(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(evalguard.__file__).parent.parent))
    variant = Variant(
        name="tiny", model="transformers", model_args={"pretrained": str(tiny_llama)},
        environment=OwnEnvironment(python="", requirements=()),
    )  # fmt: skip
    policy = ScoringPolicy(device="cpu", threads=1)
    here = load_runtime_scorer(variant, policy)
    expected = dict(here.activations(IDS))  # type: ignore[attr-defined]
    there = WorkerScorer(variant, policy, cache_dir=tmp_path, log=tmp_path / "worker.log")
    try:
        found = dict(there.activations(IDS))
        assert found.keys() == expected.keys()
        assert all(found[point].tobytes() == expected[point].tobytes() for point in expected)
        half = there.activations(IDS)
        next(half)
        half.close()  # type: ignore[attr-defined]
        file = tmp_path / "forced.npy"
        np.save(file, np.zeros(3))
        with pytest.raises(EvaluationError, match="to be forced at"):
            list(there.activations(IDS, forced={"model.norm:in": str(file)}))
        assert len(dict(there.activations(IDS, ["model.norm:in"]))) == 1
        assert there.is_running
    finally:
        there.close()
        here.close()
