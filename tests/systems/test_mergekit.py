"""Merges by mergekit: a healthy merge passes, a planted fault is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from system_models import (
    MODEL,
    ORIGINAL,
    Compare,
    healthy,
    named,
    perplexity,
    run_in,
)

from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors

pytestmark = [pytest.mark.systems, pytest.mark.nightly]


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
    # The cache has merges of other tests, too.
    assert any(one["deltas"]["trained"] for one in facts if "deltas" in one)


def test_mergekit_a_density_that_loses_the_tuning_is_named(
    compare: Compare, noisy_model: Path
) -> None:
    found = compare({"tuned": ORIGINAL, "merged": merged(noisy_model)}, "--bisect", "auto", code=1)
    assert named(found) == {"density"}


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
        "required": ({"dtype": "bfloat16", "require_sign_consensus": True}, "most in model."),
        "none": ({"models": []}, "models names none"),
        "share": ({"models": [{**tuned, "density": 2}]}, "a density is a share from 0 to 1"),
        "model": ({"models": [{"modle": str(MODEL)}]}, "models.0 names no folder"),
        "twice": ({"models": [tuned, tuned]}, "models.1 is models.0 once more"),
        "same": ({"models": [tuned, {"model": f"{MODEL}/../model"}]}, "once more"),
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
from evalguard.recipes.mergekit import examine_deltas

base = 0.02 * torch.randn(3000, 2000, generator=torch.Generator().manual_seed(3))
step = torch.randn(base.shape, generator=torch.Generator().manual_seed(4))
masks = {}
for size in (2e-4, 5e-4, 1e-3):
    for stored, dtype in (("bfloat16",) * 2, ("bfloat16", "float32"), ("float32",) * 2):
        for name, weights in (("base", base), ("tuned", base + size * step)):
            folder = Path(sys.argv[1], f"{size} {stored}", name)
            folder.mkdir(parents=True, exist_ok=True)
            save_file({"w": weights.to(getattr(torch, stored))}, folder / "model.safetensors")
        found = examine_deltas(str(folder.parent / "base"), [str(folder)], dtype)
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
    found = {name: mask["mask_false"] / mask["elements"] for name, mask in masks.items()}
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
        assert report.invariants[0].violations == mask["mask_false"] == mask["lost_before"], name


DELTAS = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import save_file
from evalguard.recipes.mergekit import examine_deltas

def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

def save(name, embed, w):
    folder = Path(sys.argv[1], name)
    folder.mkdir()
    save_file({"embed": embed, "norm": torch.ones(64), "w": w}, folder / "model.safetensors")
    return str(folder)

embed, w, step = 0.02 * normal(1, 1000, 64), 0.02 * normal(2, 64, 64), 5e-4 * normal(3, 64, 64)
seen = embed.clone()
seen[890:] += 5e-4 * normal(4, 110, 64)
base, tuned = save("base", embed, w), save("tuned", seen, w + step)
other = save("other", seen, w - step)
print(json.dumps([
    examine_deltas(base, [tuned, other], "float32"),
    examine_deltas(base, [tuned, other], "bfloat16"),
    examine_deltas(base, [tuned], "float32", merged=base, weights={"embed": [0.3]}),
    examine_deltas(base, [tuned], "float32", merged=tuned),
]))
"""


def test_mergekit_deltas_of_several_vectors_are_counted_by_why_they_are_lost(
    cache_dir: Path, tmp_path: Path
) -> None:
    """89% of an embedding and a norm were never trained; in ``w`` two models moved apart."""
    script = tmp_path / "deltas.py"
    script.write_text(DELTAS, encoding="utf-8")
    told = json.loads(run_in(MERGEKIT, cache_dir, str(script), str(tmp_path)))
    whole, low, lost, added = told
    untrained, trained = 890 * 64 + 64, 110 * 64 + 64 * 64
    for one in (whole, low):
        assert (one["untrained"], one["trained"]) == (2 * untrained, 2 * trained)
    assert (whole["lost_before"], whole["lost_in_merge"]) == (0, 0)
    assert whole["outvoted"] == pytest.approx(64 * 64, rel=0.01), "one of the two, everywhere in w"
    assert low["lost_before"] == 0
    assert low["lost_in_merge"] / low["trained"] == pytest.approx(0.071, rel=0.15)
    assert {one["name"] for one in low["tensors"]} == {"embed", "w"}
    assert lost["lost_in_sum"] == lost["added"] == trained
    assert added["lost_in_sum"] == 0


def test_mergekit_what_rounding_has_eaten_stands_on_the_first_screen(
    compare: Compare, tmp_path: Path
) -> None:
    """Deltas of a quarter of a per cent, a third of which bfloat16 cannot add."""
    tuned = tmp_path / "tuned"
    shutil.copytree(MODEL, tuned)
    generator = torch.Generator().manual_seed(5)
    weights = load_file(tuned / "model.safetensors")
    for name, one in weights.items():
        if one.ndim == 2:
            step = torch.randn(one.shape, generator=generator)
            weights[name] = one + 2.5e-3 * one.std() * step
    save_file(weights, tuned / "model.safetensors", metadata={"format": "pt"})
    port = merged(MODEL)
    inputs = {"base": str(MODEL), "models": [{"model": str(tuned), "weight": 0.3}], "density": 0.5}
    port = {
        **port,
        "build": {**port["build"], "inputs": {**inputs, "method": "task_arithmetic"}},
        "settings": {"dtype": port["settings"]["dtype"]},
    }
    original = {"model_args": {"pretrained": str(tuned), "dtype": "float32"}}
    found = compare({"tuned": original, "merged": port})
    texts = {one["kind"]: one["text"] for one in found["findings"]}
    assert "'density' of the merge is inert" in texts["setting_unread"]
    eaten, left = [one for one in found["findings"] if one["kind"] == "deltas_lost"]
    assert "by dtype bfloat16; most in model." in eaten["text"]
    assert eaten["values"]["lost_in_merge"] / eaten["values"]["trained"] == pytest.approx(0.46, 0.1)
    assert left["values"]["lost_in_sum"] / left["values"]["added"] == pytest.approx(0.6, rel=0.2)
