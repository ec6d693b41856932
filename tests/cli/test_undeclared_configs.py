"""Two models that nobody described: what a failed comparison of them leads to."""

from __future__ import annotations

import json
import shutil

import pytest
from small_world import SmallWorld, run_here


@pytest.mark.slow
def test_configs_that_differ_lead_to_the_bisection_that_has_its_settings_from_them(
    world: SmallWorld, capfd: pytest.CaptureFixture[str]
) -> None:
    port = world.folder / "port"
    shutil.copytree(world.models["llama"], port)
    config = json.loads((port / "config.json").read_text(encoding="utf-8"))
    (port / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.9}))
    sides = ("--base", world.models["llama"], "--cand", port)
    asked = ("--tasks", "sw_word", "--include_path", world.tasks, "--gate-metric", "kl_mean=0.01")
    done = run_here(["compare", *sides, *asked, "--output-path", world.folder / "own"], capfd)
    assert done.code == 1
    _, _, steps = done.out.partition("\nNext, ")
    assert steps.startswith("to name the culprits (the configs of the two models differ):\n")
    assert 0 < steps.index("evalguard bisect ") < steps.index("evalguard trace ")
