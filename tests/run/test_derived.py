"""Settings derived from two models lead from one to the other, bit for bit at both ends."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save_architecture
from changed_models import at_reference, changed, edit_json, generated, model, scores
from safetensors.torch import load_file, save_file
from tiny_models import save_llama, save_mamba

from evalguard.bisect.bisection import RefinedCandidate
from evalguard.bisect.settings.derived_settings import DerivedCandidate, derive_settings
from evalguard.core.settings import Setting, Target, Variant
from evalguard.engine.sources import ModelSource
from evalguard.errors import UsageError


def names(found: DerivedCandidate) -> list[str]:
    return [setting.name for setting in found.variant.settings]


def values(found: DerivedCandidate, name: str) -> tuple[Any, Any]:
    one = next(setting for setting in found.variant.settings if setting.name == name)
    return one.reference, one.candidate


def refined(found: DerivedCandidate, variant: Variant, *named: str) -> Variant:
    source = ModelSource(name="cand", variant=variant)
    return RefinedCandidate.of(source, found.groups, named).whole.variant


NOTHING = "-"  # in the name of no tensor

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2: learned positions": {"layer_norm_epsilon": 0.1, "activation_function": "relu"},
    "gemma3: two kinds of rotary": {"rms_norm_eps": 0.1, "query_pre_attn_scalar": 64},
    "qwen3_5: gated delta rule": {"rms_norm_eps": 0.1, "hidden_act": "gelu"},
    "mixtral: experts": {"num_experts_per_tok": 1, "sliding_window": 4},
    "falcon_h1: attention beside a state": {"key_multiplier": 2.0, "mamba_chunk_size": 4},
    "cohere: scaled logits": {"logit_scale": 0.5},
}
KINDS = {
    "gpt2: learned positions": {"embeddings", "norms", "attention", "mlp", "output_head"},
    "gemma3: two kinds of rotary": {"embeddings", "norms", "attention", "mlp", "output_head"},
    "qwen3_5: gated delta rule": {  # a layer of either kind
        "embeddings", "norms", "layers.0.recurrent", "layers.1.attention", "mlp", "output_head",
    },
    "mixtral: experts": {"embeddings", "norms", "attention", "mlp", "output_head"},
    "falcon_h1: attention beside a state": {
        "embeddings", "norms", "attention", "recurrent", "mlp", "output_head",
    },
    "cohere: scaled logits": {"embeddings", "norms", "attention", "mlp", "output_head"},
}  # fmt: skip


QUICK = ("gpt2: learned positions", "gemma3: two kinds of rotary", "qwen3_5: gated delta rule")


@pytest.mark.parametrize(
    "family",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in FAMILIES],
)
def test_at_candidate_it_is_the_candidate_and_at_reference_the_base(
    family: str, tmp_path: Path
) -> None:
    base = save_architecture(tmp_path / "base", family)
    candidate = changed(base, tmp_path / "cand", config=FAMILIES[family])
    found = derive_settings(model(base), model(candidate, dtype="bfloat16"))
    assert found.complete, found.notes
    weights = {f"weights.{kind}" for kind in KINDS[family]}
    assert set(names(found)) == {"dtype", *weights, *(f"config.{key}" for key in FAMILIES[family])}
    base_scores = scores(model(base), tmp_path)
    assert scores(at_reference(found.variant), tmp_path) == base_scores
    wanted = scores(model(candidate, dtype="bfloat16"), tmp_path)
    assert scores(found.variant, tmp_path) == wanted
    assert wanted != base_scores


def test_finer_settings_say_the_same_together(tmp_path: Path) -> None:
    base = save_architecture(tmp_path / "base", "qwen3_5: gated delta rule")
    candidate = changed(base, tmp_path / "cand")
    found = derive_settings(model(base), model(candidate))
    coarse = found.variant.assigned({"weights.norms": str(base)})
    fine = refined(found, found.variant, "weights.norms")
    inner = found.groups["weights.norms"]
    assert [one.name for one in inner] == [
        "weights.layers.0.norms", "weights.layers.1.norms", "weights.model.norm",
    ]  # fmt: skip
    finest = refined(found, fine, *(one.name for one in inner if one.name in found.groups))
    wanted = scores(coarse, tmp_path)
    for variant in (fine, finest):
        assert scores(variant, tmp_path) == scores(model(candidate), tmp_path)
        norms = {one.name: one.reference for one in variant.settings if one not in coarse.settings}
        assert len(norms) > 2
        assert scores(variant.assigned(norms), tmp_path) == wanted


def test_where_few_layers_differ_each_is_a_setting_with_its_kinds_inside(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    candidate = changed(base, tmp_path / "cand", only="layers.1.")
    found = derive_settings(model(base), model(candidate))
    assert names(found) == ["weights.layers.1"]
    inner = [one.name for one in found.groups["weights.layers.1"]]
    assert inner == [f"weights.layers.1.{kind}" for kind in ("attention", "mlp", "norms")]
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)
    fine = refined(found, found.variant, "weights.layers.1")
    assert scores(fine, tmp_path) == scores(model(candidate), tmp_path)
    assert scores(at_reference(fine), tmp_path) == scores(model(base), tmp_path)


def test_what_is_the_same_in_both_is_left_out(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    candidate = changed(base, tmp_path / "cand", only="layers.1.mlp.up_proj")
    found = derive_settings(model(base), model(candidate))
    assert names(found) == ["weights.model.layers.1.mlp.up_proj"]
    assert found.variant.settings[0].target.path == "model.layers.1.mlp.up_proj"
    assert found.groups == {}
    assert "tensors are the same in both and were left out" in " ".join(found.notes)
    twin = Path(shutil.copytree(base, tmp_path / "twin"))
    assert names(derive_settings(model(base), model(twin))) == []
    assert names(derive_settings(model(base), model(base))) == []


def test_weights_that_are_the_same_after_the_cast_of_loading_are_left_out(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    rounded = Path(shutil.copytree(base, tmp_path / "rounded"))
    tensors = load_file(rounded / "model.safetensors")
    stored = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(stored, rounded / "model.safetensors", metadata={"format": "pt"})
    both = {"dtype": "bfloat16"}
    assert names(derive_settings(model(base, **both), model(rounded, **both))) == []
    wide = derive_settings(model(base), model(rounded))
    assert "dtype" not in names(wide)
    assert names(wide) == ["weights.tensors (16 of 21, rounded to bf16)"]


def test_nested_rope_parameters_are_settings_of_their_own(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    one = derive_settings(
        model(base), model(changed(base, tmp_path / "one", config=theta, only=NOTHING))
    )
    assert values(one, "config.rope_parameters.rope_theta") == (10000.0, 500.0)
    linear = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}
    other = changed(base, tmp_path / "other", config=linear, only=NOTHING)
    found = derive_settings(model(base), model(other))
    assert names(found) == ["config.rope_parameters"]
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)
    assert scores(found.variant, tmp_path) == scores(model(other), tmp_path)


def test_bookkeeping_and_training_values_are_no_settings_and_unknown_keys_are_told(
    tmp_path: Path,
) -> None:
    base = save_llama(tmp_path / "base")
    harmless = {
        "transformers_version": "4.0", "initializer_range": 0.9, "attention_dropout": 0.5,
        "use_cache": False, "architectures": ["Other"],
    }  # fmt: skip
    candidate = changed(base, tmp_path / "cand", config=harmless, only=NOTHING)
    assert names(derive_settings(model(base), model(candidate))) == []
    odd = changed(base, tmp_path / "odd", config={"invented": 3}, only=NOTHING)
    found = derive_settings(model(base), model(odd))
    assert not found.complete
    assert "config.invented: None in the base, 3 in the candidate" in " ".join(found.notes)


def test_attributes_that_fit_the_weights_only_together_are_held_together(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")  # 4 heads of 8, 2 keys
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4}
    candidate = changed(base, tmp_path / "cand", config=heads)
    found = derive_settings(model(base), model(candidate))
    assert {f"config.{name}" for name in heads} <= set(names(found))
    assert found.complete
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)
    assert scores(found.variant, tmp_path) == scores(model(candidate), tmp_path)
    with pytest.raises(UsageError, match="a constraint excludes this assignment"):
        found.variant.assigned({"config.head_dim": 8})
    with pytest.raises(UsageError, match="a constraint excludes this assignment"):
        found.variant.assigned({"config.head_dim": 8, "config.num_attention_heads": 4})


def test_attributes_that_shape_weights_come_with_them(tmp_path: Path) -> None:
    base = save_architecture(tmp_path / "base", "qwen3: wide heads")  # 4 heads of 16, 2 keys
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
    candidate = changed(base, tmp_path / "cand", config=heads, only=NOTHING)
    tensors = load_file(candidate / "model.safetensors")
    for name in list(tensors):
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            tensors[name] = tensors[name][:8].clone()
    save_file(tensors, candidate / "model.safetensors", metadata={"format": "pt"})
    found = derive_settings(model(base), model(candidate))  # the norms have other shapes
    assert names(found) == ["model"]
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)


def test_another_vocabulary_is_one_setting_with_the_weights(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    candidate = changed(base, tmp_path / "cand", config={"vocab_size": 400, "rms_norm_eps": 0.1})
    tensors = load_file(candidate / "model.safetensors")
    embeddings = tensors["model.embed_tokens.weight"]
    padding = torch.zeros(400 - len(embeddings), embeddings.shape[1])
    tensors["model.embed_tokens.weight"] = torch.cat([embeddings, padding])
    save_file(tensors, candidate / "model.safetensors", metadata={"format": "pt"})
    found = derive_settings(model(base), model(candidate))
    assert names(found) == ["config.rms_norm_eps", "model"]
    assert "tensors have other names or shapes (model.embed_tokens.weight: [384, 32]" in (
        " ".join(found.notes)
    )
    assert found.complete
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)
    assert scores(found.variant, tmp_path) == scores(model(candidate), tmp_path)


def test_another_architecture_is_one_setting_and_the_note_says_what_to_do(tmp_path: Path) -> None:
    base, candidate = save_llama(tmp_path / "base"), save_mamba(tmp_path / "cand")
    found = derive_settings(model(base, dtype="float32"), model(candidate, dtype="bfloat16"))
    assert names(found) == ["dtype", "model"]
    assert "the architectures differ (LlamaForCausalLM, MambaForCausalLM)" in found.notes[0]
    assert "declare settings of the candidate in a guard file" in found.notes[0]
    assert scores(at_reference(found.variant), tmp_path) == scores(
        model(base, dtype="float32"), tmp_path
    )


@pytest.mark.parametrize(("one", "other"), [(True, False), (False, True)])
def test_tied_and_untied_heads_are_weights_of_the_output_head(
    one: bool, other: bool, tmp_path: Path
) -> None:
    base = save_llama(tmp_path / "base", tied=one)
    candidate = changed(save_llama(tmp_path / "plain", tied=other), tmp_path / "cand")
    found = derive_settings(model(base), model(candidate))
    assert "weights.output_head" in names(found)
    assert not any("tie" in name for name in names(found))
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)
    assert scores(found.variant, tmp_path) == scores(model(candidate), tmp_path)


def test_a_tokenizer_without_bos_is_two_settings(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    candidate = changed(base, tmp_path / "cand", only=NOTHING)
    edit_json(candidate / "tokenizer.json", post_processor=None)
    found = derive_settings(model(base), model(candidate))
    assert names(found) == ["tokenizer", "add_bos_token"]
    assert values(found, "tokenizer") == (str(base), None)
    assert values(found, "add_bos_token") == (True, False)
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)
    assert scores(found.variant, tmp_path) == scores(model(candidate), tmp_path)
    bos = found.variant.assigned({"add_bos_token": True})
    assert scores(model(candidate), tmp_path) != scores(model(base), tmp_path)
    assert bos.assignment["tokenizer"] is None


def test_arguments_of_loading_are_settings_with_what_loading_gives_where_they_are_left_out(
    tmp_path: Path,
) -> None:
    base = save_llama(tmp_path / "base")
    given = {"max_length": 24, "attn_implementation": "eager", "truncation": True}
    found = derive_settings(model(base), model(base, **given))
    assert {name: values(found, name) for name in names(found)} == {
        "attn_implementation": ("sdpa", "eager"),
        "max_length": (None, 24),
        "truncation": (False, True),
    }
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)
    laid = derive_settings(model(base), model(base, rms_norm_eps=0.1))
    assert values(laid, "rms_norm_eps") == (1e-6, 0.1)
    assert str(laid.variant.settings[0].target) == "model_args.rms_norm_eps"


def test_dtypes_are_compared_by_what_they_come_to(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    same = derive_settings(model(base), model(base, dtype="float32"))
    assert names(same) == []
    candidate = changed(base, tmp_path / "cand", config={"dtype": "bfloat16"}, only=NOTHING)
    found = derive_settings(model(base), model(candidate))
    assert values(found, "dtype") == ("float32", "bfloat16")


def test_quantisation_of_other_shapes_is_one_setting_that_takes_the_whole_checkpoint(
    tmp_path: Path,
) -> None:
    base = save_llama(tmp_path / "base")
    told = {"quantization_config": {"quant_method": "fp8"}, "rms_norm_eps": 0.1}
    candidate = changed(base, tmp_path / "cand", config={**told, "num_hidden_layers": 1})
    edit_json(candidate / "tokenizer.json", post_processor=None)
    found = derive_settings(model(base), model(candidate))
    assert values(found, "quantization") == (str(base), str(candidate))
    assert values(found, "tokenizer") == (str(base), str(candidate))
    assert "config.rms_norm_eps" in names(found)
    assert any("weights are quantised, and 9 tensors have other" in one for one in found.notes)
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)


def test_attributes_of_the_generation_config_are_settings(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    candidate = changed(base, tmp_path / "cand", only=NOTHING)
    edit_json(candidate / "generation_config.json", repetition_penalty=1.3)
    found = derive_settings(model(base), model(candidate))
    assert names(found) == ["generation.repetition_penalty"]
    assert values(found, "generation.repetition_penalty") == (None, 1.3)
    texts = {
        name: generated(variant, tmp_path)
        for name, variant in {
            "base": model(base), "candidate": model(candidate), "all": found.variant,
            "none": at_reference(found.variant),
        }.items()
    }  # fmt: skip
    assert texts["all"] == texts["candidate"]
    assert texts["none"] == texts["base"]
    assert texts["base"] != texts["candidate"]


def test_declared_settings_stay_and_win(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    other = {"rms_norm_eps": 0.1, "hidden_act": "gelu"}
    candidate = changed(base, tmp_path / "cand", config=other, only=NOTHING)
    eps = Setting(
        name="eps", reference=1e-6, candidate=0.2, target=Target.parse("config.rms_norm_eps")
    )
    declared = Variant(
        name="cand", model="hf", model_args={"pretrained": str(candidate)}, settings=(eps,),
        assignment={"eps": 0.2},
    )  # fmt: skip
    found = derive_settings(model(base), declared)
    assert names(found) == ["eps", "config.hidden_act"]
    assert found.variant.assignment == {"eps": 0.2, "config.hidden_act": "gelu"}
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)
    assert scores(found.variant, tmp_path) == scores(declared, tmp_path)


def test_models_without_a_config_give_nothing_and_say_so(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    other = Variant(name="x", model="dummy", model_args={})
    found = derive_settings(model(base), other)
    assert found.variant is other
    assert not found.complete
    assert found.notes == (
        "'x' is of model type dummy, which shows no config: declare settings in a guard file",
    )


def test_hub_models_are_found_in_the_cache_under_their_id_or_a_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    base = save_llama(tmp_path / "base")
    candidate = changed(base, tmp_path / "cand", only="mlp")
    edit_json(candidate / "tokenizer.json", post_processor=None)
    for name, folder in (("base", base), ("cand", candidate)):
        place = cache / f"models--owner--{name}"
        for commit in ("a" * 40, "b" * 40):
            shutil.copytree(folder, place / "snapshots" / commit)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("a" * 40)
    main = derive_settings(model(Path("owner/base")), model(Path("owner/cand")))
    assert values(main, "weights.mlp") == ("owner/base", None)
    assert values(main, "tokenizer") == ("owner/base", None)
    assert scores(at_reference(main.variant), tmp_path) == scores(model(base), tmp_path)
    old = derive_settings(model(Path("owner/base"), revision="b" * 40), model(Path("owner/cand")))
    assert values(old, "weights.mlp") == (f"owner/base@{'b' * 40}", None)
    assert values(old, "tokenizer")[0] == str(
        cache / "models--owner--base" / "snapshots" / ("b" * 40)
    )
    assert scores(at_reference(old.variant), tmp_path) == scores(model(base), tmp_path)


def test_a_base_with_pickled_weights_is_read_with_the_leave_it_has(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    candidate = changed(base, tmp_path / "cand", only="mlp")
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    allowed = replace(model(base), allow_pickle=True)
    found = derive_settings(allowed, model(candidate))
    assert names(found) == ["weights.mlp"]
    assert scores(at_reference(found.variant), tmp_path) == scores(allowed, tmp_path)
