"""Where no model scores, nothing can be lost: what holds there is no pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_world import SmallWorld, make_world

from evalguard import compare


@pytest.fixture(scope="module")
def world(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallWorld:
    return make_world(tmp_path_factory.mktemp("zero"), tiny_llama)


def exit_code(world: SmallWorld, out: Path, candidate: str, *gated: str) -> int:
    places = {"output_path": out / "runs", "cache_dir": out / "cache"}
    guard = world.saying(more=f"gate: {{only: [{', '.join(gated)}]}}") if gated else world.guard
    return compare("orig", candidate, config=guard, quiet=True, **places).exit_code


def test_both_answering_nothing_rightly_and_otherwise_is_no_pass(
    world: SmallWorld, tmp_path: Path
) -> None:
    assert exit_code(world, tmp_path, "other", "acc") == 3


def test_the_same_model_twice_passes_on_any_task(world: SmallWorld, tmp_path: Path) -> None:
    assert exit_code(world, tmp_path, "same", "acc") == 0


def test_beside_a_metric_that_can_show_a_loss_it_is_a_finding(
    world: SmallWorld, tmp_path: Path
) -> None:
    assert exit_code(world, tmp_path, "other") in (0, 1)
