"""A trained model with hooks that damage one part of it: that part is named, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import evalguard

pytestmark = [pytest.mark.data, pytest.mark.nightly]

_HOOKS = Path(__file__).with_name("hooks.py")
_SCALE = 8**-0.5
# name -> (reference, harmless value, target); what damages is given by each test
SETTINGS: dict[str, tuple[Any, Any, str]] = {
    "module": (0.0, 1e-4, f"call:{_HOOKS}:perturb_module"),
    "norms": (0.0, 1e-4, f"call:{_HOOKS}:perturb_norms"),
    "attention": (1.0, 1.0001, f"call:{_HOOKS}:scale_attention"),
    "eps": (1e-5, 2e-5, "config.rms_norm_eps"),
    "rope_base": (10000.0, 10010.0, "config.rope_parameters.rope_theta"),
    "final_norm_dtype": ("float32", "bfloat16", "dtype:model.norm"),
    "max_length": (512, 500, "model_args.max_length"),
}
LIMIT = 500


def bisected(
    stories: Path, tasks: Path, folder: Path, damage: dict[str, float]
) -> evalguard.CompareResult:
    declared = {
        name: {"reference": reference, "candidate": damage.get(name, harmless), "target": target}
        for name, (reference, harmless, target) in SETTINGS.items()
    }
    orig = {"model": "hf", "model_args": {"pretrained": str(stories), "dtype": "float32"}}
    models = {"orig": orig, "port": {"extends": "orig", "settings": declared}}
    guard = folder / "guard.yaml"
    guard.write_text(yaml.safe_dump({"models": models}, sort_keys=False))
    return evalguard.bisect_settings(
        "orig", "port", config=guard, tasks=["real_lastword"], include_path=tasks, limit=LIMIT,
        device="cpu", threads=1, cache_dir=folder / "cache", output_path=folder / "out", quiet=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [{"module": 0.25}, {"norms": 0.8, "attention": 0.65}],
    ids=lambda damage: "+".join(damage),
)
def test_what_a_hook_damages_is_named_exactly(
    stories: Path, real_tasks: Path, tmp_path: Path, damage: dict[str, float]
) -> None:
    result = bisected(stories, real_tasks, tmp_path, damage)
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert {culprit.setting for culprit in found.culprits} == set(damage)
    assert found.status == "minimal"
    assert found.repaired is not None
    assert found.repaired.passed
    assert found.evaluations < 12
    (folder,) = (tmp_path / "out").iterdir()
    stored = json.loads((folder / "result.json").read_text())["bisect"]
    assert [one["setting"] for one in stored["culprits"]] == [c.setting for c in found.culprits]
    assert stored["evaluations"] == pytest.approx(found.evaluations)
