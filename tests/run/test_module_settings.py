"""Parts of a model from the base: all of them together are the base, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import packed_layers
import pytest
from architectures import save_architecture
from changed_models import POLICY, REQUESTS, at_reference, changed, edit_json, model
from tiny_models import save_gemma2, save_llama, save_mamba, save_t5

from evalguard.bisect.settings.module_settings import (
    ModuleSettings,
    derive_module_settings,
    drop_idle_modules,
    take_modules_from,
)
from evalguard.config.guard_search import load_guards
from evalguard.core.settings import Setting, Target, Value, Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.errors import EvaluationError, UsageError

Scores = list[float | None]


def scored(variant: Variant, cache: Path) -> Scores:
    with contextlib.closing(load_scorer(variant, POLICY, cache_dir=cache)) as scorer:
        return [one.loglikelihood for one in scorer.score(REQUESTS)]


def finest(found: ModuleSettings) -> Variant:
    """The candidate with every setting replaced by its finer ones, as far as there are any."""

    def parts(one: Setting) -> list[Setting]:
        inner = found.groups.get(one.name, ())
        return [part for one in inner for part in parts(one)] or [one]

    settings = tuple(part for one in found.variant.settings for part in parts(one))
    values = {one.name: found.variant.assignment.get(one.name) for one in settings}
    return replace(found.variant, settings=settings, assignment=values)


def with_settings(variant: Variant, **targets: tuple[str, Value]) -> Variant:
    """A variant with settings by name: target and value."""
    settings = tuple(
        Setting(name=name, reference=None, candidate=value, target=Target.parse(target))
        for name, (target, value) in targets.items()
    )
    values = {one.name: one.candidate for one in settings}
    return replace(variant, settings=settings, assignment=values)


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "llama": save_llama,
    "llama untied": lambda folder: save_llama(folder, tied=False),
    "gemma2": save_gemma2,
    "mamba": save_mamba,
    "t5": save_t5,
    **{
        name: lambda folder, name=name: save_architecture(folder, name)  # type: ignore[misc]
        for name in (
            "gpt2: learned positions",
            "qwen3_5: gated delta rule",
            "mixtral: experts",
            "falcon_h1: attention beside a state",
            "cohere: scaled logits",
        )
    },
}
QUICK = ("llama", "gemma2")


@pytest.mark.parametrize(
    "family",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in FAMILIES],
)
def test_all_parts_from_the_base_score_as_the_base_and_none_as_the_candidate(
    family: str, tmp_path: Path
) -> None:
    base = FAMILIES[family](tmp_path / "base")
    candidate = changed(base, tmp_path / "cand")
    of_base, own = scored(model(base), tmp_path), scored(model(candidate), tmp_path)
    assert of_base != own
    for level in ("layers", "modules"):
        found = derive_module_settings(model(base), model(candidate), level)
        for variant in (found.variant, finest(found)):
            assert scored(variant, tmp_path) == own
            assert scored(at_reference(variant), tmp_path) == of_base


def test_a_quantised_candidate_takes_parts_of_what_it_was_quantised_from(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base", tied=False)
    candidate = model(base, "quantised", quantization_config={"quant_method": packed_layers.NAME})
    of_base, own = scored(model(base), tmp_path), scored(candidate, tmp_path)
    assert of_base != own
    for level in ("layers", "modules"):
        found = derive_module_settings(model(base), candidate, level)
        for variant in (found.variant, finest(found)):
            assert scored(variant, tmp_path) == own
            assert scored(at_reference(variant), tmp_path) == of_base


def test_layers_come_first_with_their_modules_and_their_own_code_inside(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base", tied=False)
    found = derive_module_settings(model(base), model(changed(base, tmp_path / "c")), "layers")
    assert [one.name for one in found.variant.settings] == [
        "model.layers.0", "model.layers.1", "model.embed_tokens", "model.norm",
        "model.rotary_emb", "lm_head", "model.own",
    ]  # fmt: skip
    inside = [one.name for one in found.groups["model.layers.1"]]
    assert inside == [
        f"model.layers.1.{one}"
        for one in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm", "own")
    ]
    assert found.groups["model.layers.1"][-1].target == Target(kind="module", path="model.layers.1")
    attention = [one.name for one in found.groups["model.layers.1.self_attn"]]
    assert attention[-1] == "model.layers.1.self_attn.own"
    modules = derive_module_settings(model(base), model(base), "modules").variant.settings
    assert [one.name for one in modules][:5] == [one.replace("1", "0") for one in inside]
    assert not any(one.name == "model.layers.0" for one in modules)


def test_the_bases_own_settings_come_with_its_modules(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "base", tied=False)
    base = with_settings(
        model(folder, dtype="float32"),
        scale=("attr:model.layers.*.self_attn.scaling", 0.05),
        eps=("config.rms_norm_eps", 0.1),
        norms=("dtype:model.layers.*.input_layernorm", "bfloat16"),
        taken=("weights:model.layers.0.mlp", str(changed(folder, tmp_path / "other"))),
    )
    found = derive_module_settings(base, model(folder), "layers")
    assert scored(base, tmp_path) != scored(model(folder), tmp_path)
    assert scored(at_reference(found.variant), tmp_path) == scored(base, tmp_path)
    assert scored(at_reference(finest(found)), tmp_path) == scored(base, tmp_path)


def test_declared_settings_of_the_candidate_hold_and_are_replaced_with_their_module(
    tmp_path: Path,
) -> None:
    folder = save_llama(tmp_path / "base", tied=False)
    port = with_settings(
        model(folder),
        scale=("attr:model.layers.1.self_attn.scaling", 0.9),
        norm=("dtype:model.layers.0.input_layernorm", "bfloat16"),
    )
    found = derive_module_settings(model(folder), port, "layers")
    held = {one.name: one.reference for one in found.variant.settings}
    assert (held["scale"], held["norm"]) == (0.9, "bfloat16")
    scorer = load_scorer(at_reference(found.variant), POLICY, cache_dir=tmp_path)
    told = scorer.describe().effective
    assert (told["scale"], told["norm"]) == (0.9, "bfloat16")  # of its own modules
    assert told["model.layers.1"] == str(folder)
    assert told["model.embed_tokens"] is None  # the same in both
    assert [one.loglikelihood for one in scorer.score(REQUESTS)] == scored(model(folder), tmp_path)


def test_modules_are_taken_in_the_candidates_dtype(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    port = model(changed(base, tmp_path / "cand"), dtype="bfloat16")
    found = derive_module_settings(model(base, dtype="float32"), port, "layers")
    assert any("dtype is outside of the modules" in note for note in found.notes)
    wanted = scored(model(base, dtype="bfloat16"), tmp_path)
    assert scored(at_reference(found.variant), tmp_path) == wanted


def test_masks_stay_what_the_candidates_attention_implementation_needs(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    port = model(changed(base, tmp_path / "cand"), attn_implementation="sdpa")
    found = derive_module_settings(model(base, attn_implementation="eager"), port, "layers")
    wanted = scored(model(base, attn_implementation="sdpa"), tmp_path)
    assert scored(at_reference(found.variant), tmp_path) == wanted


def test_values_are_assigned_anew_to_a_loaded_model_bit_for_bit(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    found = finest(
        derive_module_settings(model(base), model(changed(base, tmp_path / "cand")), "layers")
    )
    names = [one.name for one in found.settings]
    reference = {one.name: one.reference for one in found.settings}
    some: list[Mapping[str, Value]] = [
        {},
        reference,
        {"model.layers.0.self_attn.own": reference["model.layers.0.self_attn.own"]},
        {name: reference[name] for name in names[::2]},
        {"lm_head": reference["lm_head"]},
        {},
    ]
    loaded = load_scorer(found, POLICY, cache_dir=tmp_path, reusable=True)
    for values in some:
        variant = found.assigned({name: values.get(name) for name in names})
        assert loaded.reassign(variant)
        told = [one.loglikelihood for one in loaded.score(REQUESTS)]
        fresh = load_scorer(variant, POLICY, cache_dir=tmp_path)
        assert told == [one.loglikelihood for one in fresh.score(REQUESTS)]
        assert loaded.describe().effective == fresh.describe().effective
        assert loaded.describe().identity == fresh.describe().identity


def test_scores_are_kept_under_the_bases_files_and_settings(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    port = model(changed(base, tmp_path / "cand"))

    def identity(of: Variant) -> Mapping[str, Value]:
        variant = at_reference(take_modules_from(of, port, {"layer": "model.layers.0"}))
        found = load_scorer(variant, POLICY, cache_dir=tmp_path).describe().identity
        assert found is not None
        return found

    seen = [identity(model(base))]
    seen += [identity(with_settings(model(base), eps=("config.rms_norm_eps", 1e-5)))]
    edit_json(base / "config.json", hidden_act="gelu")
    seen += [identity(model(base))]
    assert len({repr(one) for one in seen}) == len(seen)
    assert seen[0]["weights"] != seen[2]["weights"]


def test_a_part_that_only_one_side_has_is_told_and_stays(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    base = save_llama(tmp_path / "base")
    config = AutoConfig.from_pretrained(base)
    config.num_hidden_layers = 3
    longer = tmp_path / "longer"
    AutoModelForCausalLM.from_config(config).save_pretrained(longer)
    for file in base.glob("tokenizer*"):
        (longer / file.name).write_bytes(file.read_bytes())
    found = derive_module_settings(model(longer), model(base), "layers")
    assert "1 parts are only in the base, and stay: model.layers.2" in found.notes
    names = [one.name for one in found.variant.settings]
    assert "model.layers.2" not in names
    assert "model.own" not in names  # its list of layers is another one
    assert scored(at_reference(found.variant), tmp_path)


def test_only_what_is_taken_is_written_into_a_guard_file(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    port = with_settings(model(base), eps=("config.rms_norm_eps", 0.5))
    port = replace(port, settings=(replace(port.settings[0], reference=1e-6),))
    fine = finest(derive_module_settings(model(base), port, "layers"))
    taken = {
        one.name: one.reference
        for one in fine.settings
        if one.name in ("model.norm", "model.layers.1.mlp.own")
    }
    left = drop_idle_modules(fine.assigned(taken), port)
    assert [one.name for one in left.settings] == [
        "eps", "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj",
        "model.layers.1.mlp.down_proj", "model.layers.1.mlp.act_fn", "model.layers.1.mlp.own",
        "model.norm",
    ]  # fmt: skip
    assert left.settings[0].reference == 1e-6
    assert scored(left, tmp_path) == scored(fine.assigned(taken), tmp_path)


@pytest.mark.parametrize(
    ("of_base", "message"),
    [
        ({"model": "openvino"}, "is of model type openvino"),
        ({"trust_remote_code": True}, "only the base may run code of its own"),
    ],
)
def test_a_base_whose_modules_cannot_be_taken_is_refused_before_anything_is_loaded(
    of_base: dict[str, Value], message: str, tmp_path: Path
) -> None:
    base = replace(model(save_llama(tmp_path / "base")), **of_base)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        derive_module_settings(base, model(tmp_path / "base"), "layers")


def test_a_base_with_a_hook_is_refused(tmp_path: Path) -> None:
    base = with_settings(model(tmp_path), clip=("call:hooks.py:clip", 3.0))
    with pytest.raises(UsageError, match="setting 'clip' of the base cannot be taken along"):
        take_modules_from(base, model(tmp_path), {"a": "model.norm"})


def test_a_base_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    port = model(save_llama(tmp_path / "port"))
    variant = take_modules_from(model(tmp_path / "gone"), port, {"layer": "model.layers.0"})
    with pytest.raises(EvaluationError, match="gone"):
        load_scorer(at_reference(variant), POLICY, cache_dir=tmp_path)


def test_a_guard_file_names_the_other_model_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "orig").mkdir()
    (tmp_path / "guard.yaml").write_text(
        """
models:
  port:
    model_args: {pretrained: ./port}
    settings:
      layer: {reference: orig, candidate: null, target: "module:model.layers.0"}
      norm:
        reference: {model_args: {pretrained: orig}, settings: {config.rms_norm_eps: 1.0e-5}}
        candidate: null
        target: "module:model.norm"
"""
    )
    guard = load_guards(Path("guard.yaml"), cwd=tmp_path, allow_code=False).guards[0]
    layer, norm = guard.variants["port"].settings
    assert layer.reference == str(tmp_path / "orig")
    assert norm.reference == {
        "model_args": {"pretrained": str(tmp_path / "orig")},
        "settings": {"config.rms_norm_eps": 1.0e-5},
    }


def test_code_of_another_class_is_taken_where_calls_and_names_are_the_same(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    port = changed(base, tmp_path / "port")
    edit_json(port / "config.json", model_type="mistral", architectures=["MistralForCausalLM"])
    found = derive_module_settings(model(base), model(port), "layers")
    assert found.notes == ()
    scorer = load_scorer(at_reference(found.variant), POLICY, cache_dir=tmp_path)
    told = [one.loglikelihood for one in scorer.score(REQUESTS)]
    assert told == scored(model(base), tmp_path)
    assert told != scored(model(port), tmp_path)
    assert scorer.describe().effective["model.rotary_emb"] == str(base)  # other code, same numbers


def test_a_part_that_does_not_fit_stays_and_is_told(tmp_path: Path) -> None:
    base, port = save_mamba(tmp_path / "base"), save_mamba(tmp_path / "port")
    edit_json(port / "config.json", vocab_size=400)
    found = derive_module_settings(model(base), model(port), "layers")
    names = [one.name for one in found.variant.settings]
    assert names == ["backbone.layers.0", "backbone.layers.1", "backbone.norm_f"]
    assert any(
        note.startswith("backbone.embeddings") and "has other shapes" in note
        for note in found.notes
    )
    llama = model(save_llama(tmp_path / "llama"))
    with pytest.raises(UsageError, match="no layer of 'base' has a place in 'llama'"):
        derive_module_settings(model(base), llama, "layers")


def test_another_base_in_the_same_folder_is_loaded_anew(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    port = model(changed(base, tmp_path / "port"))
    variant = take_modules_from(model(base), port, {"layer": "model.layers.0"})
    loaded = load_scorer(at_reference(variant), POLICY, cache_dir=tmp_path, reusable=True)
    before = loaded.describe().identity, loaded.score(REQUESTS)
    other = changed(base, tmp_path / "other", only="layers.0")
    (base / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    assert loaded.reassign(at_reference(variant))
    fresh = load_scorer(at_reference(variant), POLICY, cache_dir=tmp_path)
    assert loaded.describe().identity == fresh.describe().identity != before[0]
    assert [one.loglikelihood for one in loaded.score(REQUESTS)] == [
        one.loglikelihood for one in fresh.score(REQUESTS)
    ]
    assert [one.loglikelihood for one in fresh.score(REQUESTS)] != [
        one.loglikelihood for one in before[1]
    ]
