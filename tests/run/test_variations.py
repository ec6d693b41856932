"""Variations: which there are for a model, what is loaded for one, and whether it took."""

from __future__ import annotations

from typing import Any

import pytest

from evalguard.core.noise_floor import FACTORS, Variation
from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.engine.sources import ModelSource
from evalguard.floors.variations import apply_variation, plan_variations, why_not_taken

USUAL: dict[str, Value] = {
    "batch_size": 16,
    "threads": 4,
    "device": "cpu",
    "attention": "sdpa",
    "softmax_dtype": "float32",
}


def described(
    *, dtype: str = "bfloat16", model_type: str = "hf", **found: Value
) -> ModelDescription:
    return ModelDescription(
        model_type=model_type, dtype=dtype, parameters=9, computation={**USUAL, **found}
    )


def planned(description: ModelDescription) -> dict[str, list[Value]]:
    found, _ = plan_variations(description, FACTORS)
    values: dict[str, list[Value]] = {}
    for variation in found:
        values.setdefault(variation.factor, []).append(variation.value)
    return values


def reasons(description: ModelDescription) -> dict[str, str]:
    return {left.factor: left.reason for left in plan_variations(description, FACTORS)[1]}


@pytest.fixture
def only_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)


@pytest.mark.usefixtures("only_cpu")
def test_every_factor_departs_from_what_the_model_has() -> None:
    assert planned(described()) == {
        "repeat": [None],
        "batch_size": [1, 32],
        "threads": [1],
        "attention": ["eager"],
        "softmax_dtype": ["bfloat16"],
    }
    assert reasons(described()) == {
        "device": "there is no other kind than cpu here",
        "concurrency": "the model is not asked over a connection",
        "cache": "the model keeps nothing of one prompt for the next",
    }
    changed = planned(described(batch_size=1, threads=1, attention="eager"))
    assert changed["batch_size"] == [2]
    assert changed["threads"] == [2]
    assert changed["attention"] == ["sdpa"]


@pytest.mark.usefixtures("only_cpu")
@pytest.mark.parametrize(
    ("description", "factor", "said"),
    [
        (described(dtype="float32"), "softmax_dtype", "no narrower than float32"),
        (described(model_type="gguf"), "softmax_dtype", "has a softmax of its own"),
        (described(model_type="gguf"), "device", "is not moved to another"),
        (described(model_type="gguf"), "attention", "names no implementation"),
        (described(batch_size="auto"), "batch_size", "chooses it by itself"),
        (described(batch_size=None), "batch_size", "shows none"),
        (described(device="cuda"), "threads", "computes on cuda"),
        (described(prefix_cache=False), "cache", "is off (model_args: enable_prefix_caching"),
    ],
)
def test_what_cannot_be_had_is_listed_with_its_reason(
    description: ModelDescription, factor: str, said: str
) -> None:
    assert factor not in planned(description)
    assert said in reasons(description)[factor]


@pytest.mark.usefixtures("only_cpu")
def test_a_second_kind_of_device_is_a_variation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert planned(described())["device"] == ["cuda"]
    assert planned(described(device="cuda"))["device"] == ["cpu"]


@pytest.mark.parametrize(
    ("model_type", "keeps", "value", "name"),
    [
        ("local-completions", None, "warm", "asked again"),  # it does not say
        ("vllm", True, "warm", "asked again"),
        ("llama_server", True, "cold", "without its cache"),  # it is told so with every prompt
    ],
)
def test_an_engine_that_may_keep_prompts_is_asked_with_and_without_them(
    model_type: str, keeps: bool | None, value: str, name: str
) -> None:
    found, _ = plan_variations(described(model_type=model_type, prefix_cache=keeps), ["cache"])
    assert [(one.value, one.name) for one in found] == [(value, name)]


def test_a_cache_that_is_still_read_did_not_take() -> None:
    cold = Variation(factor="cache", name="without its cache", value="cold")
    assert why_not_taken(cold, described(prefix_cache=False)) == ""
    assert "did not take" in why_not_taken(cold, described(prefix_cache=True))


def test_only_what_is_wanted_is_varied() -> None:
    found, left = plan_variations(described(), ["threads"])
    assert [variation.name for variation in found] == ["1 thread"]
    assert left == []


def source(**model_args: Any) -> ModelSource:
    return ModelSource(name="m", variant=Variant(name="m", model="hf", model_args=model_args))


@pytest.mark.parametrize(
    ("variation", "model_args", "policy"),
    [
        (Variation(factor="repeat", name="x"), {}, {}),
        (Variation(factor="batch_size", name="x", value=1), {}, {"batch_size": 1}),
        (Variation(factor="threads", name="x", value=2), {}, {"threads": 2}),
        (Variation(factor="device", name="x", value="cuda"), {}, {"device": "cuda"}),
        (
            Variation(factor="attention", name="x", value="eager"),
            {"attn_implementation": "eager"},
            {},
        ),
        (
            Variation(factor="softmax_dtype", name="x", value="bfloat16"),
            {},
            {"softmax_dtype": "model"},
        ),
        (Variation(factor="cache", name="x", value="warm"), {}, {}),
        (Variation(factor="cache", name="x", value="cold"), {"cache_prompt": False}, {}),
    ],
)
def test_a_variation_changes_one_thing(
    variation: Variation, model_args: dict[str, Any], policy: dict[str, Any]
) -> None:
    varied = apply_variation(variation, source(pretrained="p"), ScoringPolicy())
    assert varied.variant.model_args == {"pretrained": "p", **model_args}
    assert varied.policy == ScoringPolicy(**policy)
    assert varied.name == "m, x"


def test_an_engine_in_this_process_is_told_how_many_prompts_at_once() -> None:
    variation = Variation(factor="concurrency", name="x", value=1)
    engine = ModelSource(name="m", variant=Variant(name="m", model="vllm", model_args={}))
    varied = apply_variation(variation, engine, ScoringPolicy())
    assert varied.variant.model_args == {"max_num_seqs": 1}
    shown = described(model_type="vllm", concurrency=256)
    assert planned(shown)["concurrency"] == [1]
    assert "threads" not in planned(shown)


def test_a_device_in_the_models_own_arguments_is_replaced_there() -> None:
    variation = Variation(factor="device", name="on cpu", value="cpu")
    varied = apply_variation(variation, source(device="cuda:1"), ScoringPolicy())
    assert varied.variant.model_args["device"] == "cpu"
    assert varied.policy == ScoringPolicy()


def test_a_variation_that_the_model_does_not_show_did_not_take() -> None:
    variation = Variation(factor="attention", name="eager attention", value="eager")
    assert why_not_taken(variation, described(attention="eager")) == ""
    said = why_not_taken(variation, described())
    assert said == "it did not take: eager was asked for, and the model has sdpa"
    assert why_not_taken(Variation(factor="repeat", name="the same again"), described()) == ""
