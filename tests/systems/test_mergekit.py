"""Merges by mergekit: a healthy merge passes, a planted fault is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from system_models import (
    MODEL,
    ORIGINAL,
    Compare,
    healthy,
    named,
    perplexity,
    run_in,
)

from evalguard.run.tensors.compare_tensors import TensorOptions, compare_tensors

pytestmark = pytest.mark.systems


MERGEKIT = ["torch==2.13.0", "transformers==5.23.0", "mergekit==0.1.5"]


def merged(noisy: Path) -> dict[str, Any]:
    return {
        "model_args": {"dtype": "float32"},
        "requirements": MERGEKIT,
        "build": {
            "call": "evalguard.recipes.mergekit:merge",
            "inputs": {
                "base": str(noisy),
                "models": [{"model": str(MODEL), "weight": 1.0}],
                "method": "ties",
            },
        },
        "settings": {
            "density": {"reference": 1.0, "candidate": 0.2, "target": "build.density"},
            "normalize": {"reference": False, "candidate": True, "target": "build.normalize"},
            # 2% less of the task vector: every trained element is another, and the scores hold.
            "lambda": {"reference": 1.0, "candidate": 0.98, "target": "build.parameters.lambda"},
            "dtype": {"reference": "float32", "candidate": "bfloat16", "target": "build.dtype"},
        },
    }


def test_mergekit_a_whole_task_vector_gives_the_tuned_model(
    compare: Compare, noisy_model: Path, cache_dir: Path
) -> None:
    port = merged(noisy_model)
    found = compare({"tuned": ORIGINAL, "merged": port}, *healthy(port["settings"]))
    assert abs(perplexity(found)["sigma"]) < 1e-3
    facts = [
        json.loads(file.read_text()) for file in cache_dir.glob("builds/*/*/evalguard-merge.json")
    ]
    # The cache has merges of several task vectors from other tests, of which no mask is checked.
    masks = [one["sign_mask"] for one in facts if one["dtype"] == "float32" and "sign_mask" in one]
    assert any(one["elements"] for one in masks)


@pytest.mark.nightly
def test_mergekit_a_density_that_loses_the_tuning_is_named(
    compare: Compare, noisy_model: Path
) -> None:
    found = compare({"tuned": ORIGINAL, "merged": merged(noisy_model)}, "--bisect", "auto", code=1)
    assert named(found) == {"density"}


@pytest.mark.nightly
def test_mergekit_a_method_that_trims_is_named(compare: Compare, noisy_model: Path) -> None:
    method = {"reference": "task_arithmetic", "candidate": "ties", "target": "build.method"}
    port = merged(noisy_model)
    build = {**port["build"], "inputs": {**port["build"]["inputs"], "density": 0.2}}
    port = {**port, "build": build, "settings": {**port["settings"], "method": method}}
    del port["settings"]["density"]
    found = compare({"tuned": ORIGINAL, "merged": port}, "--bisect", "auto", code=1)
    assert named(found) == {"method"}


def test_mergekit_an_interpolation_that_stops_halfway_is_named(
    compare: Compare, noisy_model: Path
) -> None:
    port = merged(noisy_model)
    inputs = {
        "base": str(noisy_model),
        "models": [{"model": str(noisy_model)}, {"model": str(MODEL)}],
        "method": "slerp",
    }
    settings = {
        "t": {"reference": {"t": 1.0}, "candidate": {"t": 0.5}, "target": "build.parameters"},
        "dtype": port["settings"]["dtype"],
    }
    port = {**port, "build": {**port["build"], "inputs": inputs}, "settings": settings}
    found = compare({"tuned": ORIGINAL, "merged": port}, "--bisect", "auto", code=1)
    assert named(found) == {"t"}


@pytest.mark.nightly
def test_mergekit_a_weight_of_a_half_is_named(compare: Compare, noisy_model: Path) -> None:
    port = merged(noisy_model)
    inputs = {**port["build"]["inputs"], "method": "task_arithmetic"}
    weights = {
        "reference": [{"model": str(MODEL), "weight": 1.0}],
        "candidate": [{"model": str(MODEL), "weight": 0.5}],
        "target": "build.models",
    }
    settings = {"weight": weights, "dtype": port["settings"]["dtype"]}
    port = {**port, "build": {**port["build"], "inputs": inputs}, "settings": settings}
    found = compare({"tuned": ORIGINAL, "merged": port}, "--bisect", "auto", code=1)
    assert named(found) == {"weight"}


PARAMETERS = """
import json, sys
from evalguard.errors import EvalguardError
from evalguard.recipes.mergekit import merge

base, tuned, output = sys.argv[1:4]
told = {}
for name, changes in json.loads(sys.argv[4]).items():
    inputs = {"base": base, "models": [{"model": tuned, "weight": 1.0}], "method": "ties"}
    try:
        merge(f"{output}/{name}", **{**inputs, **changes})
        told[name] = json.load(open(f"{output}/{name}/evalguard-merge.json"))["parameters"]
    except EvalguardError as error:
        told[name] = str(error)
print(json.dumps(told))
"""


def test_mergekit_a_parameter_is_taken_or_is_an_error(
    cache_dir: Path, noisy_model: Path, tmp_path: Path
) -> None:
    """mergekit 0.1.5 by itself merges all down to "empty" without a word."""
    tuned = {"model": str(MODEL), "weight": 1.0}
    mlp = {"filter": "mlp", "value": 0.5}
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "attribute": ({"parameters": {"consensus_method": "count"}}, "sum in ties, dare_ties"),
        "short": ({"parameters": {"consensus": "nonsense"}}, "the method's name decides"),
        "misspelt": ({"parameters": {"densty": 0.5}}, "did you mean 'density'?"),
        "of a model": ({"models": [{**tuned, "normalise": True}]}, "did you mean 'normalize'?"),
        "place": ({"models": [{**tuned, "normalize": False}]}, "one normalize for the whole merge"),
        "own": ({"density": 0.5, "models": [{**tuned, "density": 1.0}]}, "every model has its own"),
        "base": (
            {"models": [tuned, {"model": str(noisy_model), "weight": 1.0}]}, "the base has none"
        ),
        "filter": ({"parameters": {"density": [{**mlp, "filter": "mpl"}]}}, "the filter is 'mpl'"),
        "later": ({"parameters": {"density": [{"value": 1.0}, mlp]}}, "no tensor takes 0.5"),
        "key": ({"parameters": {"density": {"fliter": "mlp", "value": 1.0}}}, "is no condition"),
        "empty": ({"parameters": {"density": []}}, "an empty list"),
        "value": ({"parameters": {"normalize": "nonsense"}}, "takes bool there, not 'nonsense'"),
        "gradient": ({"parameters": {"density": [1.0, "x"]}}, "takes float there"),
        "method": ({"method": "tise"}, "did you mean 'ties'?"),
        "dtype": ({"dtype": "bfloat61"}, "did you mean 'bfloat16'?"),
        "model": ({"models": [{"modle": str(MODEL)}]}, "models.0 names no folder"),
    }  # fmt: skip
    right: dict[str, dict[str, Any]] = {
        "mask": {"parameters": {"int8_mask": True, "lambda": 0.98}},
        "layers": {"parameters": {"density": [{**mlp, "value": [0.2, 0.8]}, {"value": 0.1}]}},
    }
    script = tmp_path / "parameters.py"
    script.write_text(PARAMETERS, encoding="utf-8")
    given = json.dumps({name: changes for name, (changes, _) in wrong.items()} | right)
    words = (str(script), str(noisy_model), str(MODEL), str(tmp_path), given)
    told = json.loads(run_in(MERGEKIT, cache_dir, *words))
    for name, (_, expected) in wrong.items():
        assert expected in told[name], name
    assert (told["mask"]["int8_mask"], told["mask"]["lambda"]) == ([True], [0.98])
    taken = told["layers"]["density"]
    assert (taken[0], taken[1], taken[-1]) == (0.1, 0.2, 0.8)
    assert len(taken) > 3, "between the ends of a gradient"


SIGNS = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import save_file
from evalguard.recipes.mergekit import check_sign_mask

base = 0.02 * torch.randn(3000, 2000, generator=torch.Generator().manual_seed(3))
step = torch.randn(base.shape, generator=torch.Generator().manual_seed(4))
masks = {}
for size in (2e-4, 5e-4, 1e-3):
    for stored, dtype in (("bfloat16",) * 2, ("bfloat16", "float32"), ("float32",) * 2):
        for name, weights in (("base", base), ("tuned", base + size * step)):
            folder = Path(sys.argv[1], f"{size} {stored}", name)
            folder.mkdir(parents=True, exist_ok=True)
            save_file({"w": weights.to(getattr(torch, stored))}, folder / "model.safetensors")
        found = check_sign_mask(str(folder.parent / "base"), str(folder), dtype)
        masks[f"{size} {stored} {dtype}"] = found
print(json.dumps(masks))
"""


def test_mergekit_the_sign_mask_of_one_task_vector_is_false_where_bfloat16_loses_the_delta(
    cache_dir: Path, tmp_path: Path
) -> None:
    """Measured before with weights of std 0.02: 17.0%, 7.10% and 3.6% of the elements; in float32
    1.0e-6 at 5e-4.
    """
    script = tmp_path / "signs.py"
    script.write_text(SIGNS, encoding="utf-8")
    masks = json.loads(run_in(MERGEKIT, cache_dir, str(script), str(tmp_path)))
    found = {name: mask["false_share"] for name, mask in masks.items()}
    for size, share in ((2e-4, 0.170), (5e-4, 0.0710), (1e-3, 0.036)):
        assert found[f"{size} bfloat16 bfloat16"] == pytest.approx(share, abs=5e-4)
        # A bfloat16 checkpoint is no better for being read in float32.
        assert found[f"{size} bfloat16 float32"] == found[f"{size} bfloat16 bfloat16"]
    assert found["0.0005 float32 float32"] < 4e-6
    options = TensorOptions(invariants=("sign-consensus",))
    for name, mask in masks.items():
        folder = tmp_path / name.rpartition(" ")[0]
        report = compare_tensors(str(folder / "base"), str(folder / "tuned"), options)
        # Read off the files alone, and the same to the element.
        assert report.invariants[0].violations == mask["false"], name
