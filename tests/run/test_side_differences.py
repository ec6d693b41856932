"""Configs, tokenizers and code that differ are said of every comparison of two models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import save_llama
from unpadded_models import HEALTHY, save_gpt2

from evalguard.comparison.checks.side_differences import (
    find_side_differences,
    list_side_differences,
)
from evalguard.core.compare_report import RunIdentity, SettingState
from evalguard.core.findings import Finding
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.models.assigned_model import AssignedModel
from evalguard.models.hyperparameters_read import read_named_values
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm
from evalguard.worker.messages import DESCRIPTION

POLICY = ScoringPolicy(device="cpu")
SIDES = (RunIdentity(name="base", digest="1"), RunIdentity(name="port", digest="2"))


def describe(folder: Path, dtype: str = "float32") -> ModelDescription:
    given = {"pretrained": str(folder), "dtype": dtype}
    lm = load_lm("hf", given, {}, POLICY, trust_remote_code=True, allow_pickle=False)
    scorer = LMScorer(lm, POLICY, model_type="hf", assigned=AssignedModel(provenance={}))
    return scorer.describe()


def found(base: Any, port: Any, sides: Any = SIDES) -> Finding | None:
    told = find_side_differences(list_side_differences(sides, (base, port)))
    assert len(told) < 2
    return told[0] if told else None


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelDescription]:
    folder = save_llama(tmp_path_factory.mktemp("llama") / "base")
    return folder, describe(folder)


def edit(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / name
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))


def change_file(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder, name, lambda told: told.update(values))


def change_rope(folder: Path) -> None:
    edit(folder, "config.json", lambda told: told["rope_parameters"].update(rope_theta=50000.0))


def drop_bos(folder: Path) -> None:
    edit(folder, "tokenizer.json", lambda told: told.update(post_processor=None))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "rope": (change_rope, "configs differ: rope_theta 10000 -> 50000"),
    "eps": (change_file("config.json", rms_norm_eps=1e-5), "rms_norm_eps 1e-06 -> 1e-05"),
    "activation": (change_file("config.json", hidden_act="gelu"), "hidden_act silu -> gelu"),
    "context": (
        change_file("config.json", max_position_embeddings=32),
        "max_position_embeddings 48 -> 32",
    ),
    "eos of texts": (
        change_file("generation_config.json", eos_token_id=[1, 5]),
        "configs differ: eos_token_id 1 -> [1, 5]",
    ),
    "eos of both": (
        change_file("config.json", eos_token_id=5),
        "configs differ: eos_token_id 1 -> 5",
    ),
    "penalty": (
        change_file("generation_config.json", repetition_penalty=1.2),
        "repetition_penalty none -> 1.2",
    ),
    "chat template": (
        change_file("tokenizer_config.json", chat_template="{{ messages }}"),
        "tokenizer: chat template on the candidate only",
    ),
    "BOS": (drop_bos, "puts BOS first yes -> no"),
    "special token": (
        change_file("tokenizer_config.json", eos_token="<s>"),
        "tokenizer: EOS </s> -> <s>",
    ),
}  # fmt: skip
NOTHING: dict[str, Callable[[Path], None]] = {
    "a copy": lambda _: None,
    "another version": change_file("config.json", transformers_version="4.0.0"),
    "a name": change_file("config.json", _name_or_path="/elsewhere"),
    "training": change_file("config.json", initializer_range=0.01, attention_dropout=0.1),
    "labels": change_file("config.json", id2label={"0": "yes"}, use_cache=False),
    "padding": change_file("config.json", pad_token_id=1),
    "an integer for a float": lambda folder: edit(
        folder, "config.json", lambda told: told["rope_parameters"].update(rope_theta=10000)
    ),
    "sampling": change_file("generation_config.json", temperature=0.6, top_p=0.9, do_sample=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_can_change_numbers_or_texts_is_said(
    llama: tuple[Path, ModelDescription], tmp_path: Path, change: str
) -> None:
    folder, base = llama
    port = shutil.copytree(folder, tmp_path / "port")
    make, said = CHANGES[change]
    make(port)
    told = found(base, describe(port))
    assert told is not None
    assert told.kind == "sides_differ"
    assert said in told.text
    assert told.text.count("eos_token_id") < 2


@pytest.mark.parametrize("change", NOTHING)
def test_what_changes_no_number_is_not_said(
    llama: tuple[Path, ModelDescription], tmp_path: Path, change: str
) -> None:
    folder, base = llama
    port = shutil.copytree(folder, tmp_path / "elsewhere")
    NOTHING[change](port)
    assert found(base, describe(port)) is None


def test_dtypes_are_said(llama: tuple[Path, ModelDescription]) -> None:
    told = found(llama[1], describe(llama[0], "bfloat16"))
    assert told is not None
    assert told.text == "configs differ: dtype float32 -> bfloat16"
    assert told.values == {"configs.dtype": ("float32", "bfloat16")}


def test_code_of_a_checkpoints_own_is_said(tmp_path: Path) -> None:
    base = describe(save_gpt2(tmp_path / "base"))
    port = describe(save_gpt2(tmp_path / "port", HEALTHY["as GPT-2 has it"]))
    other = describe(save_gpt2(tmp_path / "other", HEALTHY["a mask of booleans"]))
    told = found(base, port)
    assert told is not None
    assert told.text == "code: remote on the candidate (Port)"
    told = found(port, base)
    assert told is not None
    assert told.text == "code: remote on the base (Port)"
    told = found(port, other)
    assert told is not None
    assert told.text == "code: remote, and not the same"


def test_architectures_are_compared_by_what_both_have(
    llama: tuple[Path, ModelDescription], tmp_path: Path
) -> None:
    told = found(llama[1], describe(save_gpt2(tmp_path)))
    assert told is not None
    assert "class LlamaForCausalLM -> GPT2LMHeadModel" in told.text or "more" in told.text
    assert told.values["code.class"] == ("LlamaForCausalLM", "GPT2LMHeadModel")
    assert told.values["configs.activation"] == ("silu", "gelu (tanh)")
    assert told.values["configs.context"] == (48, 96)


def described(config: dict[str, Any], **about: Any) -> ModelDescription:
    sections = {"config": {"model_type": "x", **config}, "generation": {}}
    sections |= {"tokenizer": {}, "code": {"class": "X", "remote": False, "digest": ""}}
    return ModelDescription(model_type="hf", configuration=sections, **about)


def test_two_lines_are_enough_and_the_rest_is_counted() -> None:
    many = {f"some_number_{at}": at for at in range(30)}
    told = found(described(many), described(dict.fromkeys(many, 100) | {"rope_theta": 1.0}))
    assert told is not None
    assert len(told.text) < 160
    assert told.text.startswith("configs differ: rope_theta none -> 1, ")
    assert len(told.values) == 31
    said = told.text.count(" -> ")
    assert told.text.endswith(f"and {31 - said} more")


def setting(name: str, target: str, value: Any, reference: Any) -> SettingState:
    return SettingState(name=name, value=value, reference=reference, candidate=value, target=target)


def test_settings_are_named_once() -> None:
    port = RunIdentity(
        name="port",
        digest="2",
        settings=(
            setting("theta", "config.rope_parameters.rope_theta", 2.0, 1.0),
            setting("gain", "attr:model.norm.weight", 2.0, 1.0),
            setting("off", "attr:model.embed.scale", 1.0, 1.0),
        ),
    )
    base = described({"rope_parameters.rope_theta": 1.0})
    told = found(base, described({"rope_parameters.rope_theta": 2.0}), (SIDES[0], port))
    assert told is not None
    assert told.text == "configs differ: rope_theta 1 -> 2; settings differ: gain 1 -> 2"


def test_a_finished_run_shows_none_of_it() -> None:
    assert found(None, described({})) is None
    assert found(described({}), None) is None


def test_a_description_keeps_its_configuration(llama: tuple[Path, ModelDescription]) -> None:
    assert DESCRIPTION.decode(DESCRIPTION.encode(llama[1])) == llama[1]
    config = llama[1].configuration["config"]
    assert isinstance(config, dict)
    assert config["rope_parameters.rope_theta"] == 10000.0


def gguf(**changes: Any) -> list[HeldValue]:
    metadata = {
        "general.architecture": "llama", "llama.attention.layer_norm_rms_epsilon": 9.99999975e-06,
        "llama.rope.freq_base": 10000.0, "llama.attention.head_count": 8, "general.name": "x",
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 0,
    }  # fmt: skip
    return read_named_values({**metadata, **changes}, prefix="")


CONFIG = {
    "rms_norm_eps": 1e-5, "rope_parameters.rope_theta": 10000.0, "num_attention_heads": 8,
    "eos_token_id": 2,
}  # fmt: skip
OTHER_LIBRARY = ModelDescription(model_type="hf")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"llama.rope.freq_base": 50000.0}, "rope_theta 10000 -> 50000"),
        ({"llama.attention.layer_norm_rms_epsilon": 1e-6}, "norm_eps 1e-05 -> 1e-06"),
        ({"llama.attention.head_count": 4}, "heads 8 -> 4"),
        ({"tokenizer.ggml.eos_token_id": 7}, "eos_token_id 2 -> 7"),
        ({"general.name": "y", "tokenizer.ggml.padding_token_id": 5}, ""),
    ],
)
def test_of_another_librarys_model_its_files_are_compared(
    changes: dict[str, Any], said: str
) -> None:
    differences = list_side_differences(
        SIDES, (described(CONFIG), OTHER_LIBRARY), ((), gguf(**changes))
    )
    told = find_side_differences(differences)
    texts = [one.text for one in told]
    assert texts == ([f"configs differ: {said}"] if said else [])
