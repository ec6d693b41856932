"""Ports to GGUF, run by llama.cpp: a healthy port passes, a planted fault is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from interpreters import interpreter
from system_models import (
    MODEL,
    ORIGINAL,
    ROOT,
    Compare,
    healthy,
    kl_mean,
    largest_difference,
    named,
    perplexity,
    run_in,
)
from tiny_models import save_llama

from evalguard import compare_several

pytestmark = pytest.mark.systems


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
    assert all(one["llama_cpp"] for one in found["distributions"] if one["positions"] >= 100)


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
    for share, said in (
        (0.05, "ends in the middle of its header"),
        (0.5, "cannot be loaded"),
        (0.999, "cannot be loaded"),
    ):
        file.write_bytes(whole[: int(share * len(whole))])
        found = compare({"original": original, "port": port}, code=3)
        assert said in found["error"]["message"]


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


def test_gguf_k_quants_are_those_of_ggml_and_types_that_do_not_fit_are_named(
    compare: Compare, cache_dir: Path, tmp_path: Path
) -> None:
    """Rows of the demo's model are of 128 and 256 weights; a K-quant's block has 256."""
    found = compare(
        {"original": ORIGINAL, "port": {**LLAMA_CPP, "settings": {
            "weights": {"reference": "F32", "candidate": "Q4_K", "target": "build.type"}
        }}},
        "--distributions", "reference", "--bisect", "never",
    )  # fmt: skip
    assert 1e-4 < kl_mean(found) < 1e-2
    size = found["candidate"]["size"]
    assert (size["kind"], size["weights"]) == ("gguf", found["base"]["size"]["weights"])
    assert 5.0 < size["bits_per_weight"] < 6.0
    (note,) = [one for one in found["notes"] if "in place of" in one]
    assert "Q5_0 in place of Q4_K: token_embd.weight" in note
    script = tmp_path / "rounded.py"
    script.write_text(
        "import sys, numpy as np\n"
        "from gguf import GGMLQuantizationType as T\n"
        "from gguf.quants import dequantize\n"
        "from evalguard.recipes.gguf import quantise_rows\n"
        "x = np.random.default_rng(5).normal(size=(8, 512)).astype('f4')\n"
        "for name in ('Q6_K', 'Q5_K', 'Q4_K', 'Q3_K', 'Q2_K', 'IQ4_XS', 'IQ4_NL', 'IQ3_S'):\n"
        "    y = dequantize(quantise_rows(x, T[name]), T[name])\n"
        "    print(name, float(np.sqrt(np.mean((x - y) ** 2))))\n"
    )
    told = run_in(LLAMA_CPP["requirements"], cache_dir, str(script)).split()
    error = dict(zip(told[::2], map(float, told[1::2]), strict=True))
    # of a normal of spread 1, each bit that is left out about doubles the error
    assert error["Q6_K"] < 0.02 < error["Q5_K"] < 0.05 < error["Q4_K"] < 0.1
    assert error["Q4_K"] < error["Q3_K"] < 0.2 < error["Q2_K"] < 0.45
    assert error["IQ4_NL"] < 0.11
    assert error["IQ3_S"] < 0.25


def test_gguf_the_kl_of_a_quantised_file_is_split_into_engine_and_quantisation(
    cache_dir: Path, tmp_path: Path
) -> None:
    inputs = {"source": str(MODEL)}
    models = {
        "orig": ORIGINAL,
        "f16": {**LLAMA_CPP, "settings": {}, "build": {
            **LLAMA_CPP["build"], "inputs": {**inputs, "type": "F16"}}},
        "q8": {**LLAMA_CPP, "settings": {}, "build": {
            **LLAMA_CPP["build"], "inputs": {**inputs, "type": "Q8_0"}}},
    }  # fmt: skip
    guard = tmp_path / "guard.yaml"
    told = {"models": models, "tasks": ["evalguard_lastword"], "include_path": str(ROOT / "tasks")}
    guard.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
    found = compare_several(
        "orig", ["f16", "q8"], chain=True, config=guard, limit=48, cache_dir=cache_dir,
        output_path=tmp_path / "runs", quiet=True, track=("none",),
    )  # fmt: skip
    (split,) = found.report.kl_splits
    assert [part.kind for part in split.parts] == ["engine", "quantisation"]
    engine, quantised = (part.share.value or 0.0 for part in split.parts)
    assert engine + quantised == pytest.approx(1.0)
    assert 0.0 < engine < 0.05
    assert "the engine (orig -> f16) is 0." in " ".join(found.render().split())
