"""The systems that people port with, by their own packages: a healthy port passes, a planted fault
is detected, and the search names it and nothing else.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from interpreters import interpreter
from system_models import (
    MODEL,
    ORIGINAL,
    Compare,
    healthy,
    kl_mean,
    largest_difference,
    named,
    perplexity,
    run_in,
)
from tiny_models import save_llama

from evalguard.run.tensors.compare_tensors import TensorOptions, compare_tensors

pytestmark = pytest.mark.systems

# GGUF by llama.cpp.

GGUF: dict[str, Any] = {
    "weights": {"reference": "F32", "candidate": "Q8_0", "target": "build.type"},
    "kv_keys": {"reference": "f32", "candidate": "f16", "target": "model_args.type_k"},
    "flash": {"reference": "off", "candidate": "on", "target": "model_args.flash_attn"},
    "eps": {"reference": 1e-6, "candidate": 1e-5, "target": "build.eps"},
    "rope": {"reference": 4000.0, "candidate": 400.0, "target": "build.rope_base"},
}
KV_VALUES = {"reference": "f32", "candidate": "f16", "target": "model_args.type_v"}
LLAMA_CPP: dict[str, Any] = {
    "model": "llama_cpp",
    "model_args": {"type_v": "f32"},
    "requirements": ["xllamacpp==2026.10.11549", "gguf==0.19.0", "safetensors", "numpy"],
    "build": {
        "call": "evalguard.recipes.gguf:convert",
        "output": "model.gguf",
        "inputs": {"source": str(MODEL)},
    },
    "settings": GGUF,
}


def test_gguf_a_port_with_everything_at_reference_is_the_model(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": LLAMA_CPP}, *healthy(GGUF), "--distributions", "reference"
    )
    assert abs(perplexity(found)["sigma"]) < 0.01
    # llama.cpp looks GELU up in a table of fp16 numbers.
    assert kl_mean(found) < 1e-5


def llama_pair(folder: Path) -> dict[str, Any]:
    """A random Llama, and its GGUF in float32."""
    llama = str(save_llama(folder / "llama", max_length=512))
    build = {**LLAMA_CPP["build"], "inputs": {"source": llama, "type": "F32"}}
    return {
        "original": {"model_args": {"pretrained": llama, "dtype": "float32"}},
        "port": {**LLAMA_CPP, "build": build, "settings": {"kv_keys": GGUF["kv_keys"]}},
    }


def test_gguf_a_llama_in_float32_is_the_model(compare: Compare, tmp_path: Path) -> None:
    found = compare(llama_pair(tmp_path), "--set", "kv_keys=reference")
    assert largest_difference(found) < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_gguf_runs_in_another_python(version: str, compare: Compare, tmp_path: Path) -> None:
    models = llama_pair(tmp_path)
    models["port"]["python"] = interpreter(version)
    found = compare(models, "--set", "kv_keys=reference")
    assert largest_difference(found) < 1e-4
    assert found["environment"]["candidate"]["python"].startswith(version)


def test_gguf_an_eps_that_is_the_same_number_in_float32_is_inert_and_another_is_named(
    compare: Compare, tmp_path: Path
) -> None:
    def eps(value: float) -> dict[str, Any]:
        return {"reference": 1e-6, "candidate": value, "target": "build.eps"}

    models = llama_pair(tmp_path)
    limit = {"metrics": {"kl_mean": 1e-7}}
    models["port"]["settings"] = {"eps": eps(9.99999997e-07), "kv_values": KV_VALUES}
    printed = compare(models, "--bisect", "always", code=1, gate=limit)
    assert named(printed) == {"kv_values"}
    assert "eps" in printed["bisect"]["searches"][0]["inert"]
    models["port"]["settings"]["eps"] = eps(1e-3)
    wrong = compare(models, "--bisect", "auto", code=1, gate=limit)
    assert "eps" in named(wrong)


def test_gguf_a_rope_base_with_a_digit_too_few_is_named(compare: Compare) -> None:
    found = compare({"original": ORIGINAL, "port": LLAMA_CPP}, "--bisect", "auto", code=1)
    assert named(found) == {"rope"}


def test_gguf_a_truncated_file_is_an_error_and_no_verdict(
    compare: Compare, cache_dir: Path, tmp_path: Path
) -> None:
    llama, file = save_llama(tmp_path / "llama", max_length=512), tmp_path / "model.gguf"
    script = tmp_path / "convert.py"
    script.write_text(
        "import sys\nfrom evalguard.recipes.gguf import convert\n"
        "convert(sys.argv[2], sys.argv[1], type='F32')\n"
    )
    run_in(LLAMA_CPP["requirements"], cache_dir, str(script), str(llama), str(file))
    port = {
        "model": "llama_cpp",
        "model_args": {"pretrained": str(file), "type_k": "f32", "type_v": "f32"},
        "requirements": LLAMA_CPP["requirements"],
    }
    original = {"model_args": {"pretrained": str(llama), "dtype": "float32"}}
    assert compare({"original": original, "port": port})["exit_code"] == 0
    whole = file.read_bytes()
    for share in (0.05, 0.5, 0.999):
        file.write_bytes(whole[: int(share * len(whole))])
        found = compare({"original": original, "port": port}, code=3)
        assert "cannot be loaded" in found["error"]["message"]


def test_gguf_a_bos_that_the_checkpoint_adds_and_the_file_does_not_is_named(
    compare: Compare,
) -> None:
    bos = {"reference": None, "candidate": False, "target": "build.add_bos"}
    settings = {"bos": bos, "kv_keys": GGUF["kv_keys"], "flash": GGUF["flash"]}
    found = compare(
        {"original": ORIGINAL, "port": {**LLAMA_CPP, "settings": settings}},
        "--bisect", "auto", "--allow-differing", "tokens", code=1,
        gate={"metrics": {"kl_mean": 1e-3}},
    )  # fmt: skip
    assert named(found) == {"bos"}


def test_gguf_of_another_vocabulary_is_refused_and_no_verdict(
    compare: Compare, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(MODEL, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    build = {**LLAMA_CPP["build"], "inputs": {"source": str(folder)}}
    port = {**LLAMA_CPP, "build": build, "settings": {}}
    found = compare({"original": ORIGINAL, "port": port}, code=3)
    assert "requests differently" in found["error"]["message"]
    assert "token ids" in found["error"]["message"]


# mergekit.


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
            "consensus": {"reference": "sum", "candidate": "count", "target": "build.consensus"},
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
