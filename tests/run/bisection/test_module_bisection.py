"""--over layers and --over modules: a fault in one place is named there, and nowhere else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import evalguard
from benchmarks.sampled_models import TASK, Sampled, sampled
from evalguard.bisect.bisect_report import BisectReport

pytestmark = pytest.mark.slow

SCALE = '{reference: 0.288675, candidate: 4.0, target: "attr:model.layers.3.self_attn.scaling"}'
NORM = "model.layers.2.post_attention_layernorm"
EPS = f'{{reference: 1.0e-6, candidate: 5.0, target: "attr:{NORM}.eps"}}'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """A model with layers of two kinds, and the documents that it wrote."""
    return sampled("hybrid", tmp_path_factory.mktemp("hybrid"), documents=160, seed=11)


def ported(place: Sampled, folder: Path, *, settings: str = "", damaged: str = "") -> Path:
    """A guard file with a port whose every weight is off by a little: no part is the base's."""
    shutil.copytree(place.model, folder / "port")
    generator = torch.Generator().manual_seed(5)
    weights = {
        name: one + 1e-4 * torch.randn(one.shape, generator=generator)
        for name, one in load_file(place.model / "model.safetensors").items()
    }
    if damaged:
        noise = torch.randn(weights[damaged].shape, generator=generator)
        weights[damaged] += 0.8 * weights[damaged].std() * noise
    save_file(weights, folder / "port" / "model.safetensors", metadata={"format": "pt"})
    guard = folder / "guard.yaml"
    declared = f"\n    settings: {{fault: {settings}}}" if settings else ""
    guard.write_text(
        f"models:\n  orig: {{model_args: {{pretrained: {place.model}, dtype: float32}}}}\n"
        f"  port:\n    model_args: {{pretrained: ./port, dtype: float32}}{declared}\n"
    )
    return guard


def bisected(
    place: Sampled, guard: Path, over: str
) -> tuple[evalguard.CompareResult, BisectReport]:
    result = evalguard.bisect_settings(
        "orig", "port", config=guard, tasks=[TASK], include_path=place.tasks, device="cpu",
        threads=1, cache_dir=guard.parent / "cache", output_path=guard.parent / "runs",
        bisect_over=over, quiet=True,
    )  # fmt: skip
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    return result, found


def guilty(found: BisectReport) -> list[list[str]]:
    """The culprits of each search, one inside the other."""
    return [[culprit.setting for culprit in search.culprits] for search in found.searches]


def test_an_attention_scale_is_named_as_its_layers_attention_and_its_own_code(
    place: Sampled, tmp_path: Path
) -> None:
    result, found = bisected(place, ported(place, tmp_path, settings=SCALE), "layers")
    assert found.status == "minimal"
    assert guilty(found) == [
        ["model.layers.3"], ["model.layers.3.self_attn"], ["model.layers.3.self_attn.own"],
    ]  # fmt: skip
    assert all(abs(search.outside_sigma) < 1e-6 for search in found.searches[:1])
    assert found.repaired is not None
    assert found.repaired.passed
    assert "fault" not in found.searches[0].settings  # it is held, and not searched
    assert "candidate: 4.0" in found.fix  # ... and stands in the guard file as it was declared
    repaired = evalguard.compare(
        "base", "repaired", config=Path(found.fix_where), tasks=[TASK], include_path=place.tasks,
        device="cpu", threads=1, cache_dir=tmp_path / "cache", write=False, quiet=True,
        bisect="never",
    )  # fmt: skip
    assert repaired.report.gate.passed
    assert result.exit_code == 1


def test_an_epsilon_is_named_as_the_norm_that_has_it(place: Sampled, tmp_path: Path) -> None:
    _, found = bisected(place, ported(place, tmp_path, settings=EPS), "modules")
    assert found.status == "minimal"
    assert guilty(found) == [[NORM]]
    assert len(found.searches[0].settings) > 16


def test_a_damaged_matrix_is_named_and_a_trace_of_the_two_is_read_first(
    place: Sampled, tmp_path: Path
) -> None:
    damaged = "model.layers.1.mlp.up_proj"
    guard = ported(place, tmp_path, damaged=f"{damaged}.weight")
    trace = tmp_path / "runs" / "19990101T000000Z-trace"
    trace.mkdir(parents=True)
    suspects = [
        {"module": damaged, "operation": "weights", "local_ratio": 40.0},
        {"module": "model.layers.2.mlp", "operation": "operation", "local_ratio": 3.0},
    ]
    told = {"schema": "evalguard.trace/1", "base": {"name": "orig"}, "candidate": {"name": "port"}}
    (trace / "trace.json").write_text(json.dumps({**told, "suspects": suspects}))
    _, found = bisected(place, guard, "layers")
    assert guilty(found) == [["model.layers.1"], ["model.layers.1.mlp"], [damaged]]
    assert f"what the trace in {trace} suspects was measured first" in found.notes


Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """A model whose norms' weights scatter, so that folding them moves every number."""
    return sampled("granite", tmp_path_factory.mktemp("granite"), documents=160, seed=11)


def scale_values(weights: Weights) -> None:
    """Numbers of two, so that no score moves by a bit."""
    for name, one in weights.items():
        by = {"v_proj": 4.0, "o_proj": 0.25}.get(name.split(".")[-2], 1.0)
        weights[name] = by * one


def fold_norms(weights: Weights) -> None:
    for name in [one for one in weights if one.endswith("input_layernorm.weight")]:
        for reader in ("q_proj", "k_proj", "v_proj"):
            weights[name.replace("input_layernorm", f"self_attn.{reader}")] *= weights[name]
        weights[name] = torch.ones_like(weights[name])


def laid_out(place: Sampled, folder: Path, *changes: Callable[[Weights], None]) -> Path:
    """A guard file with a port whose weights were changed."""
    guard = ported(place, folder)
    weights = load_file(place.model / "model.safetensors")
    for change in changes:
        change(weights)
    save_file(weights, folder / "port" / "model.safetensors", metadata={"format": "pt"})
    return guard


@pytest.mark.parametrize("change", [scale_values, fold_norms])
def test_what_cancels_in_every_layer_has_no_culprit(
    change: Callable[[Weights], None], scattered: Sampled, tmp_path: Path
) -> None:
    result, found = bisected(scattered, laid_out(scattered, tmp_path, change), "layers")
    assert result.exit_code == 0
    assert guilty(found) == [[]]
    assert found.status == "not_reproduced"
    assert found.repaired is None
    assert found.fix == ""


def test_beside_what_cancels_the_fault_of_another_layer_alone_is_named(
    scattered: Sampled, tmp_path: Path
) -> None:
    def damage(weights: Weights) -> None:
        up = weights["model.layers.1.mlp.up_proj.weight"]
        up += 0.8 * up.std() * torch.randn(up.shape, generator=torch.Generator().manual_seed(5))

    guard = laid_out(scattered, tmp_path, scale_values, fold_norms, damage)
    _, found = bisected(scattered, guard, "layers")
    assert found.status == "minimal"
    assert guilty(found) == [["model.layers.1"], ["model.layers.1.mlp"]]
    assert found.repaired is not None
    assert found.repaired.passed
