"""RWKV-7 by rwkv-pip and by flash-linear-attention: one model, two implementations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from system_models import (
    MODEL,
    ROOT,
    Compare,
    healthy,
    kl_mean,
    largest_difference,
    list_refusals,
    named,
    run_in,
    save_rwkv7,
)

from evalguard.recipes.rwkv7 import convert

pytestmark = [pytest.mark.systems, pytest.mark.nightly]

PIP_REQUIREMENTS = ["torch==2.13.0", "rwkv==0.8.32", "tokenizers", "numpy"]
FLA_REQUIREMENTS = [
    "torch==2.13.0", "transformers==5.23.0", "triton==3.9.0", "flash-linear-attention==0.6.0",
]  # fmt: skip
TRAINED = ROOT / "demo" / "rwkv7" / "rwkv7.pth"
PIP: dict[str, Any] = {
    "model": "rwkv",
    "model_args": {"pretrained": str(TRAINED), "tokenizer": str(MODEL), "max_length": 512},
    "requirements": PIP_REQUIREMENTS,
}
KNOBS: dict[str, Any] = {
    "bos": {"reference": True, "candidate": False, "target": "model_args.add_bos_token"},
    "dtype": {"reference": "float32", "candidate": "bfloat16", "target": "dtype:model,lm_head"},
    "g_norm": {
        "reference": "float32",
        "candidate": "bfloat16",
        "target": "dtype:model.layers.*.attn.g_norm",
    },
    "prefill": {"reference": "recurrent", "candidate": "chunk", "target": "model_args.prefill"},
    "fuse_norm": {"reference": False, "candidate": True, "target": "model_args.fuse_norm"},
    "pad_to": {"reference": 1, "candidate": 64, "target": "model_args.pad_to"},
    "state": {"reference": "kv", "candidate": "vk", "target": "model_args.state_layout"},
}
FLA: dict[str, Any] = {
    "model": "fla",
    "model_args": {"max_length": 512, "segment": 64},
    "requirements": FLA_REQUIREMENTS,
    "build": {
        "call": "evalguard.recipes.rwkv7:convert",
        "inputs": {"source": str(TRAINED), "tokenizer": str(MODEL)},
    },
}


def port(*knobs: str) -> dict[str, Any]:
    """fla's port with these settings at their candidates, all others at reference."""
    return {**FLA, "settings": {name: KNOBS[name] for name in knobs}}


def test_rwkv_half_precision_is_named_and_a_bos_that_hardly_matters_is_not(
    compare: Compare, tmp_path: Path
) -> None:
    file = save_rwkv7(tmp_path / "rwkv7.pth", vocabulary=1344)
    own = {**PIP, "model_args": {**PIP["model_args"], "pretrained": str(file)}}
    settings = {
        "bos": {"reference": True, "candidate": False, "target": "model_args.add_bos_token"},
        "strategy": {
            "reference": "cpu fp32",
            "candidate": "cpu bf16",
            "target": "model_args.strategy",
        },
    }
    candidate = {**own, "settings": settings}
    original = {**own, "model_args": {**own["model_args"], "add_bos_token": True}}
    gate = {"metrics": {"kl_mean": 3e-4}}
    same = compare({"pip": original, "port": candidate}, *healthy(settings), gate=gate)
    assert kl_mean(same) == 0.0
    found = compare(
        {"pip": original, "port": candidate}, "--bisect", "auto", "--allow-differing", "tokens",
        code=1, gate=gate,
    )  # fmt: skip
    assert named(found) == {"strategy"}


def test_rwkv_and_fla_an_argument_that_makes_no_sense_is_a_usage_error(
    cache_dir: Path, tmp_path: Path
) -> None:
    pip = PIP["model_args"]
    of_pip = {
        ("strategy", "tpu fp32"): "strategy: device: 'tpu' is not a device",
        ("strategy", "vulkan fp32"): "strategy: device 'vulkan' is not to be had",
        ("strategy", "cpu  fp32"): "'cpu  fp32' is not known",
        ("strategy", "fp32"): "'fp32' is not known",
        ("tokenizer", "banana"): "banana",
        ("pretrained", "banana"): "there is nothing at banana",
    }
    convert(tmp_path / "fla", str(TRAINED), tokenizer=str(MODEL))
    folder = {"pretrained": str(tmp_path / "fla")}
    of_fla = {
        ("prefill", "chunked"): "did you mean 'chunk'",
        ("fuse_norm", "banana"): "neither true nor false",
        ("pad_to", 0): "no whole number from 1 on",
        ("segment", "banana"): "no whole number",
        ("state_layout", "vk"): "no state is handed over without",
        ("state_layout", "banana"): "'banana' is not known",
        ("dtype", "banana"): "is no dtype here",
        ("device", "banana"): "'banana' is not a device",
        ("max_length", "banana"): "no whole number",
        ("add_bos_token", "banana"): "neither true nor false",
        ("prefix_token_id", "banana"): "no whole number from 0 on",
        ("tokenizer", "banana"): "banana",
        ("pretrained", "banana"): "there is nothing at banana",
        ("banana", 1): "takes no argument 'banana'",
    }
    for kind, requirements, given, wrong in (
        ("rwkv", PIP_REQUIREMENTS, pip, of_pip), ("fla", FLA_REQUIREMENTS, folder, of_fla),
    ):  # fmt: skip
        asked = [given, *({**given, name: value} for name, value in wrong)]
        healthy_one, *told = list_refusals(kind, requirements, asked, cache_dir)
        assert healthy_one == ("", "")
        for argument, (error, message), said in zip(wrong, told, wrong.values(), strict=True):
            assert error == "UsageError", argument
            assert said in message, argument


def test_rwkv_that_shows_no_config_is_no_model_that_settings_are_derived_from(
    compare: Compare, tmp_path: Path
) -> None:
    file = save_rwkv7(tmp_path / "other.pth", vocabulary=1344)
    other = {**PIP, "model_args": {**PIP["model_args"], "pretrained": str(file)}}
    found = compare({"orig": PIP, "other": other}, code=1, limit=16)
    assert "none can be derived: 'orig' is of model type rwkv" in found["bisect_reason"]
    assert found["distributions"]


def test_fla_token_by_token_is_rwkv_pip(compare: Compare) -> None:
    knobs = port(*KNOBS)
    found = compare(
        {"orig": PIP, "fla-port": knobs}, *healthy(KNOBS), "--distributions", "reference"
    )
    assert largest_difference(found) < 1e-4
    assert kl_mean(found) < 1e-9


@pytest.mark.parametrize(
    "planted", [{"bos"}, {"bos", "state"}], ids=lambda planted: "+".join(sorted(planted))
)
def test_fla_a_missing_bos_and_a_transposed_state_are_named_beside_five_other_settings(
    planted: set[str], compare: Compare
) -> None:
    knobs = port(*(name for name in KNOBS if name != "state" or name in planted))
    found = compare(
        {"orig": PIP, "fla-port": knobs}, "--bisect", "auto", "--allow-differing", "tokens",
        code=1, gate={"metrics": {"kl_mean": 5e-4}},
    )  # fmt: skip
    assert named(found) == planted


def test_fla_a_context_that_is_cut_is_named(compare: Compare) -> None:
    length = {"reference": 512, "candidate": 24, "target": "model_args.max_length"}
    candidate = port("prefill", "pad_to")
    candidate["settings"] = {**candidate["settings"], "length": length}
    found = compare(
        {"orig": PIP, "fla-port": candidate}, "--bisect", "auto", "--allow-differing", "tokens",
        code=1, gate={"metrics": {"kl_mean": 5e-4}},
    )  # fmt: skip
    assert named(found) == {"length"}


def test_fla_a_rounded_group_norm_is_named_by_a_limit_on_kl(compare: Compare) -> None:
    gate = {"metrics": {"kl_mean": 1e-7}}
    found = compare(
        {"orig": PIP, "fla-port": port("g_norm", "fuse_norm", "pad_to")}, "--bisect", "auto",
        code=1, gate=gate,
    )  # fmt: skip
    assert named(found) == {"g_norm"}


def test_fla_of_a_checkpoint_that_is_rounded_already_the_norms_weights_are_no_setting(
    compare: Compare, tmp_path: Path
) -> None:
    """Only the computation is left of it: rounding a bf16 weight to bf16 changes nothing."""
    weights = torch.load(TRAINED, weights_only=True)
    rounded = {name: tensor.bfloat16().float() for name, tensor in weights.items()}
    torch.save(rounded, tmp_path / "rounded.pth")
    build = {
        **FLA["build"],
        "inputs": {"source": str(tmp_path / "rounded.pth"), "tokenizer": str(MODEL)},
    }
    precise, short = ({**FLA, "build": build} for _ in range(2))
    short["build"] = {**build, "inputs": {**build["inputs"], "dtype": "bfloat16"}}
    short["model_args"] = {**FLA["model_args"], "dtype": "float32"}
    found = compare({"precise": precise, "short": short}, "--distributions", "reference")
    assert kl_mean(found) == 0.0


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_fla_our_kernels_round_where_flas_do(device: str, cache_dir: Path) -> None:
    """On a CPU fla's run in Triton's interpreter, the very code that a GPU compiles."""
    script = str(Path(__file__).parent / "fla_agreement.py")
    found = json.loads(run_in(FLA_REQUIREMENTS, cache_dir, script, device))
    unit = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}
    for name, one in found.items():
        kind = name.rpartition(" ")[2]
        if name.startswith("recurrence against"):
            continue
        if name.startswith("chunks") and kind == "float32":
            # A unit of float16 in the inverse, here and there: far less than what the chunk costs.
            cost = found[f"recurrence against chunks, both fla's {kind}"]
            assert one["rms"] < 0.3 * cost["rms"], name
            assert one["largest"] < 1e-4 * one["scale"], name
        else:
            assert one["largest"] < 8 * unit[kind] * one["scale"], (name, one)


def test_the_world_vocabulary_cuts_texts_as_package_rwkv_does(
    cache_dir: Path, tmp_path: Path
) -> None:
    script = tmp_path / "tokens.py"
    script.write_text(
        "import json, pathlib, random, rwkv.rwkv_tokenizer as theirs\n"
        "from evalguard.models.runtimes.tokenizer import open_tokenizer\n"
        "folder = pathlib.Path(theirs.__file__).parent\n"
        "ours = open_tokenizer(folder)\n"
        "known = theirs.TRIE_TOKENIZER(str(folder / 'rwkv_vocab_v20230424.txt'))\n"
        "draw = random.Random(1)\n"
        "alphabet = [chr(c) for c in [*range(32, 127), 10, 9, 0xe9, 0x4e2d, 0x1f600, 0x200b]]\n"
        "texts = [''.join(draw.choices(alphabet, k=draw.randint(0, 80))) for _ in range(400)]\n"
        "texts += ['The quick brown fox  jumps\\n\\nover', ' def f(x):\\n    return x']\n"
        "wrong = [t for t in texts if list(known.encode(t)) != ours.encode(t)]\n"
        "back = [t for t in texts if ours.decode(ours.encode(t)) != t]\n"
        "print(json.dumps([len(texts), len(wrong), len(back), len(ours.vocabulary)]))\n"
    )
    found = json.loads(run_in(PIP_REQUIREMENTS, cache_dir, str(script)))
    assert found == [402, 0, 0, 65529]


def test_a_model_of_fla_that_needs_a_gpu_says_so(compare: Compare, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    folder = tmp_path / "gla"
    folder.mkdir()
    config = {"model_type": "gla", "architectures": ["GLAForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    gla = {
        "model": "fla",
        "model_args": {"pretrained": str(folder), "tokenizer": str(MODEL)},
        "requirements": FLA_REQUIREMENTS,
    }
    found = compare({"orig": PIP, "gla": gla}, code=2)
    assert "kernels for gla need a GPU" in found["error"]["message"]
