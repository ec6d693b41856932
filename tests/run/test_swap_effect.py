"""What one module of the base does in the candidate's place, through the ordinary scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changed_models import changed
from small_world import SmallWorld, make_world
from tiny_models import save_llama

from evalguard.bisect.swap_effect import SwapEffect, measure_swap_effects
from evalguard.comparison.compare import compare_sides
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.config.options import make_options
from evalguard.core.settings import Value
from evalguard.errors import UsageError

pytestmark = pytest.mark.slow

FAULT = "model.layers.1.mlp"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SmallWorld:
    folder = tmp_path_factory.mktemp("swapped")
    return make_world(folder, save_llama(folder / "orig", tied=False))


@pytest.fixture(scope="module")
def port(world: SmallWorld) -> Path:
    return changed(world.models["llama"], world.folder / "port", only=FAULT)


def compared(world: SmallWorld, candidate: Path, **given: Any) -> FinishedComparison:
    options = make_options(
        None, tasks=["sw_word"], include_path=[world.tasks], device="cpu", threads=1,
        cache_dir=world.folder / "cache", quiet=True, write=False, bisect="never", **given,
    )  # fmt: skip
    return compare_sides(str(world.models["llama"]), str(candidate), options, cwd=world.folder)


def sigma(finished: FinishedComparison) -> float:
    found = finished.report.comparisons[0].sigma
    assert found is not None
    return found


def test_the_guilty_module_takes_all_drift_away_and_an_innocent_none(
    world: SmallWorld, port: Path
) -> None:
    finished = compared(world, port)
    names = [FAULT, "model.layers.1", "model.layers.0", f"{FAULT}.down_proj", "model.nowhere"]
    effects = dict(zip(names, measure_swap_effects(finished, names), strict=True))
    drift = sigma(finished)
    for name in (FAULT, "model.layers.1"):
        one = effects[name]
        assert one.sigma == pytest.approx(drift)
        assert one.drift == pytest.approx(drift)
        assert one.left == pytest.approx(0.0, abs=1e-12)
        assert one.n == 24
        assert one.interval is not None
        assert one.interval[0] < one.sigma < one.interval[1]
        assert not one.same
    assert effects["model.layers.0"].sigma == 0.0
    assert effects["model.layers.0"].same
    part = effects[f"{FAULT}.down_proj"]
    assert part.sigma is not None
    assert abs(part.sigma - drift) > 1e-6
    lost: SwapEffect = effects["model.nowhere"]
    assert (lost.sigma, lost.interval) == (None, None)
    assert "no module is named 'model.nowhere'" in lost.failure


def test_an_effect_is_the_paired_difference_of_two_comparisons(
    world: SmallWorld, port: Path
) -> None:
    finished = compared(world, port)
    guard = world.folder / "swapped.yaml"
    setting = f"{{reference: {world.models['llama']}, candidate: null, target: module:{FAULT}.*}}"
    guard.write_text(
        f"models: {{swapped: {{model_args: {{pretrained: {port}}}, settings: {{s: {setting}}}}}}}"
    )
    value: dict[str, Value] = {"s": "reference"}
    swapped = compared(world, Path("swapped"), config=guard, cand_set=value)
    (effect,) = measure_swap_effects(finished, [FAULT], key=("sw_word", "none", "perplexity"))
    assert effect.left == pytest.approx(sigma(swapped), abs=1e-12)
    own, taken = (
        next(one for one in side.tables if one.metric == "perplexity").values
        for side in (finished.scored[1], swapped.scored[1])
    )
    base = next(one for one in finished.scored[0].tables if one.metric == "perplexity").values
    stderr = float(np.std(base, ddof=1) / np.sqrt(base.size))
    gone = float(np.mean(taken - own))
    candidate = float(np.mean(base - own))
    wanted = (np.expm1(candidate) - np.expm1(candidate - gone)) / stderr
    assert effect.sigma == pytest.approx(wanted)


def test_a_finished_run_has_no_modules(world: SmallWorld, port: Path) -> None:
    finished = compared(world, port)
    stored = finished.sources[1]
    broken = FinishedComparison(
        named=finished.named,
        sources=(stored, object()),  # type: ignore[arg-type]
        scored=finished.scored,
        choices=finished.choices,
        options=finished.options,
        report=finished.report,
    )
    with pytest.raises(UsageError, match="one of them is a finished run"):
        measure_swap_effects(broken, [FAULT])
    assert measure_swap_effects(broken, []) == ()
