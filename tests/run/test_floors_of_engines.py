"""The floor of an engine in this process: one engine asked everything twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_stand_in import install

import evalguard
from evalguard.errors import EvaluationError

Measure = Callable[..., evalguard.FloorResult]


@pytest.fixture
def measure(
    tiny_llama: Path, task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Measure:
    install(monkeypatch)

    def floor(**flags: Any) -> evalguard.FloorResult:
        arguments = {"pretrained": str(tiny_llama), **flags}
        models = {"engine": {"model": "stand_in", "model_args": arguments}}
        guard = tmp_path / "guard.yaml"
        guard.write_text(yaml.safe_dump({"models": models}))
        return evalguard.floor(
            "engine", config=guard, tasks=["sw_word"], include_path=task_folder, vary=["cache"],
            cache_dir=tmp_path / "cache", quiet=True,
        )  # fmt: skip

    return floor


def test_a_warm_cache_that_is_sound_moves_neither_scores_nor_distributions(
    measure: Measure,
) -> None:
    report = measure(enable_prefix_caching=True).report
    assert [one.name for one in report.variations] == ["asked again"]
    assert all(shift.bit_identical for shift in report.shifts)
    (distribution,) = report.distribution_shifts
    assert distribution.kl < 1e-9


def test_a_warm_cache_that_is_stale_is_found_by_kl(measure: Measure) -> None:
    report = measure(enable_prefix_caching=True, stale=True).report
    assert not all(shift.bit_identical for shift in report.shifts)
    (floor,) = report.distribution_floors
    assert floor.variation == "asked again"
    assert floor.kl == pytest.approx(0.1**2 / 2.0, rel=0.3)


def test_without_a_prefix_cache_there_is_nothing_to_vary(measure: Measure) -> None:
    with pytest.raises(EvaluationError, match="its prefix cache is off"):
        measure(enable_prefix_caching=False)
