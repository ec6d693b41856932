"""Two configs differ where that can change what is computed, in words of JSON."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from transformers import Gemma3TextConfig, LlamaConfig

from evalguard.models.config_overrides import compare_configs, to_json_value


def differences(kind: Any, **changes: Any) -> dict[str, tuple[Any, Any]]:
    found = compare_configs(kind(), kind(**changes))
    assert all(one.known for one in found)
    return {one.path: (one.base, one.candidate) for one in found}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, {}),
        ({"rms_norm_eps": 0.1}, {"rms_norm_eps": (1e-6, 0.1)}),
        ({"hidden_act": "gelu"}, {"hidden_act": ("silu", "gelu")}),
        ({"bos_token_id": 7}, {"bos_token_id": (1, 7)}),
        ({"attention_bias": True}, {"attention_bias": (False, True)}),
        (
            {"dtype": "bfloat16", "use_cache": False, "tie_word_embeddings": True,
             "attention_dropout": 0.5, "initializer_range": 0.5},
            {},
        ),
    ],
)  # fmt: skip
def test_differences_of_plain_attributes(changes: dict[str, Any], found: dict[str, Any]) -> None:
    assert differences(LlamaConfig, **changes) == found


def test_rope_parameters_of_each_kind_of_layer_are_compared_inside() -> None:
    rope = Gemma3TextConfig().rope_parameters
    other = {**rope, "full_attention": {**rope["full_attention"], "rope_theta": 5.0}}
    path = "rope_parameters.full_attention.rope_theta"
    assert differences(Gemma3TextConfig, rope_parameters=other) == {path: (1000000.0, 5.0)}


def test_dictionaries_with_other_keys_are_one_value() -> None:
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    found = differences(LlamaConfig, rope_parameters=linear)
    assert found == {"rope_parameters": ({"rope_theta": 10000.0, "rope_type": "default"}, linear)}


def test_what_the_class_derives_is_compared_as_it_comes_out() -> None:
    found = differences(Gemma3TextConfig, num_hidden_layers=3)
    assert found["num_hidden_layers"] == (26, 3)
    assert len(found["layer_types"][0]) == 26


def test_a_key_that_no_class_knows_is_shown_as_such() -> None:
    (one,) = compare_configs(LlamaConfig(), LlamaConfig(invented=3))
    assert (one.path, one.base, one.candidate, one.known) == ("invented", None, 3, False)


def test_a_value_of_an_enumeration_is_the_word_that_config_json_has() -> None:
    class Text(str, Enum):
        torchao = "torchao"

    class Number(Enum):
        four = 4

    assert to_json_value({"quant_method": Text.torchao, "bits": [Number.four]}) == {
        "quant_method": "torchao",
        "bits": [4],
    }
