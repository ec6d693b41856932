"""Models that torchao quantised, saved and loaded again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from system_models import MODEL, ORIGINAL, Compare, kl_mean, named, run_in

pytestmark = [pytest.mark.systems, pytest.mark.nightly]


TORCHAO: dict[str, Any] = {
    "quantiser": {
        "reference": "none",
        "candidate": "Float8WeightOnlyConfig",
        "target": "build.config",
    },
    "head": {"reference": ["lm_head"], "candidate": [], "target": "build.skip"},
}
QUANTISED: dict[str, Any] = {
    "model_args": {"dtype": "float32"},
    "requirements": ["torch==2.13.0", "transformers==5.23.0", "torchao==0.18.0"],
    "build": {
        "call": "evalguard.recipes.torchao:quantise",
        "inputs": {"source": str(MODEL)},
    },
    "settings": TORCHAO,
}
TORCHAO_GATE: dict[str, Any] = {"metrics": {"kl_mean": 3e-4}}


def test_torchao_int8_weights_pass_a_limit_on_kl(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": QUANTISED},
        "--set", "quantiser=Int8WeightOnlyConfig", gate=TORCHAO_GATE,
    )  # fmt: skip
    assert 1e-8 < kl_mean(found) < 3e-4


def test_torchao_a_coarser_quantiser_is_named(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": QUANTISED}, "--bisect", "auto", code=1, gate=TORCHAO_GATE
    )
    assert named(found) == {"quantiser"}


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    """The demo's model with an output embedding of its own, equal to the input's."""
    folder = tmp_path / "untied"
    shutil.copytree(MODEL, folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**told, "tie_word_embeddings": False}))
    return folder


def test_torchao_an_output_embedding_that_is_quantised_is_named_beside_larger_groups(
    compare: Compare, untied: Path
) -> None:
    def weights(group: int) -> dict[str, Any]:
        return {"weight_dtype": "int8", "granularity": {"PerGroup": group}}

    settings = {
        "group": {"reference": weights(32), "candidate": weights(128), "target": "build.arguments"},
        "head": TORCHAO["head"],
    }
    inputs = {"source": str(untied), "config": "IntxWeightOnlyConfig"}
    port = {**QUANTISED, "settings": settings, "build": {**QUANTISED["build"], "inputs": inputs}}
    # What both have in common costs 4.1e-5 nats a token, the groups 0.1e-5, the head 1.4e-5.
    limit = {"metrics": {"kl_mean": 5e-5}}
    found = compare({"original": ORIGINAL, "port": port}, "--bisect", "auto", code=1, gate=limit)
    assert named(found) == {"head"}


ARGUMENTS = """
import json, sys
from evalguard.errors import EvalguardError
from evalguard.recipes.torchao import quantise

told = []
for config, arguments in json.loads(sys.argv[2]):
    try:
        quantise(sys.argv[3], sys.argv[1], config, arguments)
        told.append("taken")
    except EvalguardError as error:
        told.append(str(error))
print(json.dumps(told))
"""


def test_torchao_an_argument_that_is_true_or_false_is_no_text(
    cache_dir: Path, tmp_path: Path
) -> None:
    """torchao 0.18.0 takes any text for true: a range of 7 bits, without a word."""
    dynamic = "Int8DynamicActivationInt8WeightConfig"
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("Int8WeightOnlyConfig", {"set_inductor_config": "banana"}),
        ("Float8WeightOnlyConfig", {"set_inductor_config": 1}),
        (dynamic, {"reduce_range": "no"}),
        (dynamic, {"reduce_range": 7}),
        (dynamic, {"weight_only_decode": []}),
        (dynamic, {"set_inductor_config": None}),
    ]
    no_number: list[tuple[str, dict[str, Any]]] = [
        ("Int4WeightOnlyConfig", {"group_size": "banana"}),
        ("Int8WeightOnlyConfig", {"version": True}),
    ]
    right = (dynamic, {"reduce_range": True, "set_inductor_config": False})
    script = tmp_path / "arguments.py"
    script.write_text(ARGUMENTS, encoding="utf-8")
    words = (
        str(script),
        str(MODEL),
        json.dumps([*wrong, *no_number, right]),
        str(tmp_path / "made"),
    )
    told = json.loads(run_in(QUANTISED["requirements"], cache_dir, *words).splitlines()[-1])
    for (config, arguments), said in zip([*wrong, *no_number], told[:-1], strict=True):
        ((name, value),) = arguments.items()
        kind = "neither true nor false" if (config, arguments) in wrong else "no whole number"
        assert said == f"arguments: {name}: {value!r} is {kind}"
    assert told[-1] == "taken"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_torchao_int8_weights_on_a_gpu_give_what_they_give_on_a_cpu(compare: Compare) -> None:
    inputs = {**QUANTISED["build"]["inputs"], "config": "Int8WeightOnlyConfig"}
    sides = {
        device: {
            **QUANTISED,
            "settings": {},
            "build": {**QUANTISED["build"], "inputs": inputs},
            "model_args": {"dtype": "float32", "device": device},
        }
        for device in ("cpu", "cuda")
    }
    found = compare(sides, "--distributions", "reference")
    assert kl_mean(found) < 1e-6
