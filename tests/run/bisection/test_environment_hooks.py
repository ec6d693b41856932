"""Hooks that read the environment, beside hooks that do not: who is guilty is named exactly.

An environment setting and a hook act in one process: the search has to give every assignment a
process of its own, or a variable of one would be read by the hook of another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from planted_world import BASE, CANDIDATE, PlantedWorld

import evalguard

pytestmark = pytest.mark.nightly
_HOOKS = Path(__file__).with_name("environment_hooks.py")


def hook(function: str) -> dict[str, Any]:
    return {"reference": False, "candidate": True, "target": f"call:{_HOOKS}:{function}"}


SETTINGS: dict[str, dict[str, Any]] = {
    "kernel": {"reference": "plain", "candidate": "fast", "target": "env.EVALGUARD_TEST_KERNEL"},
    "other_hook": hook("rounds"),
    "eps": {"reference": 1e-6, "candidate": 1e-5, "target": "config.rms_norm_eps"},
    "length": {"reference": 64, "candidate": 128, "target": "model_args.max_length"},
}


def bisected(
    world: PlantedWorld, folder: Path, settings: dict[str, dict[str, Any]], **given: Any
) -> evalguard.CompareResult:
    guard = yaml.safe_load(world.guard.read_text())
    guard["models"][CANDIDATE]["settings"] = {**SETTINGS, **settings}
    file = folder / "guard.yaml"
    file.write_text(yaml.safe_dump(guard, sort_keys=False))
    return evalguard.compare(
        BASE, CANDIDATE, config=file, device="cpu", threads=1, cache_dir=folder / "cache",
        write=False, quiet=True, **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "guilty"),
    [
        ({"hook": hook("either_will_do")}, {"hook": "redundant", "kernel": "redundant"}),
        ({"hook": hook("follows_the_kernel")}, {"kernel": "additive"}),
        (
            {"hook": hook("needs_the_kernel"), "other_hook": hook("damages")},
            {"hook": "together", "kernel": "together", "other_hook": "additive"},
        ),
    ],
    ids=["either", "the environment alone", "a pair and another hook"],
)
def test_a_hook_that_reads_the_environment_is_told_from_its_partner(
    planted_world: PlantedWorld,
    tmp_path: Path,
    settings: dict[str, dict[str, Any]],
    guilty: dict[str, str],
) -> None:
    result = bisected(planted_world, tmp_path, settings, bisect="always")
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert {culprit.setting: culprit.role for culprit in found.culprits} == guilty
    assert found.status == "minimal"
    assert found.repaired is not None
    assert found.repaired.passed


@pytest.mark.parametrize(
    ("function", "at_candidate", "damaged"),
    [
        ("needs_the_kernel", {"hook", "kernel"}, True),
        ("needs_the_kernel", {"hook"}, False),
        ("either_will_do", {"hook"}, True),
        ("follows_the_kernel", {"hook"}, False),
    ],
)
def test_what_the_hooks_do_by_hand(
    planted_world: PlantedWorld,
    tmp_path: Path,
    function: str,
    at_candidate: set[str],
    damaged: bool,
) -> None:
    settings = {"hook": hook(function)}
    put_right = dict.fromkeys({*SETTINGS, "hook"} - at_candidate, "reference")
    result = bisected(planted_world, tmp_path, settings, bisect="never", cand_set=put_right)
    (comparison,) = result.report.comparisons
    assert comparison.sigma is not None
    assert (comparison.sigma > 1.5) == damaged
    assert (abs(comparison.sigma) < 0.2) != damaged
