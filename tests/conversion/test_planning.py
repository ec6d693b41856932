"""A plan sorts settings by where they are applied."""

from __future__ import annotations

import pytest
from variants import variant

from evalguard.conversion.planning import (
    AttributeEdit,
    DtypeEdit,
    HookCall,
    plan_conversion,
    with_build,
)
from evalguard.core.settings import BuildRecipe, Setting, Target, Value, Variant
from evalguard.errors import SettingError


def test_every_kind_of_target_has_its_place() -> None:
    planned = plan_conversion(
        variant(
            {
                "model_args.dtype": "bfloat16",
                "config.rope_parameters.rope_theta": 500,
                "attr:model.layers.*.self_attn.scaling": 0.25,
                "dtype:model.norm": "float32",
                "env.MODE": 3,
                "build.bits": 8,
                "call:hooks.py:quantise": "int8",
            },
            build=BuildRecipe(command=("make", "{bits}", "{output}"), inputs={"bits": 16}),
        )
    )
    assert planned.model_args == {"pretrained": "somewhere", "dtype": "bfloat16"}
    assert planned.config_overrides == {"rope_parameters.rope_theta": 500}
    assert planned.attributes == (
        AttributeEdit(
            setting="s2", glob="model.layers.*.self_attn", attribute="scaling", value=0.25
        ),
    )
    assert planned.dtypes == (DtypeEdit(setting="s3", glob="model.norm", dtype="float32"),)
    assert planned.env == {"MODE": "3"}
    assert planned.build_inputs == {"bits": 8}
    assert planned.calls == (HookCall(setting="s6", function="hooks.py:quantise", value="int8"),)


def test_env_settings_and_hooks_need_a_process_of_their_own() -> None:
    assert plan_conversion(variant({"env.MODE": "fast"})).needs_worker
    assert plan_conversion(variant({"call:hooks.py:patch": 1})).needs_worker
    assert not plan_conversion(variant({"model_args.dtype": "float32"})).needs_worker


@pytest.mark.parametrize(
    ("value", "text"), [(True, "1"), (False, "0"), (2, "2"), ("x", "x"), (None, None)]
)
def test_environment_values_are_text_or_unset(value: Value, text: str | None) -> None:
    assert plan_conversion(variant({"env.MODE": value})).env == {"MODE": text}


def test_an_environment_variable_cannot_hold_a_list() -> None:
    with pytest.raises(SettingError, match="cannot hold"):
        plan_conversion(variant({"env.MODE": ["a"]}))


def test_two_settings_on_one_place_are_refused() -> None:
    from dataclasses import replace

    one = variant({"model_args.dtype": "float32"})
    twice = replace(one, settings=(*one.settings, replace(one.settings[0], name="again")))
    with pytest.raises(SettingError, match=r"'s0' and 'again' both write model_args\.dtype"):
        plan_conversion(twice)


def test_a_build_setting_needs_a_recipe() -> None:
    with pytest.raises(SettingError, match="no build recipe"):
        plan_conversion(variant({"build.bits": 8}))


def test_a_build_setting_that_the_command_never_reads_is_refused() -> None:
    recipe = BuildRecipe(command=("make", "{bits}", "{output}"), inputs={"bits": 16})
    with pytest.raises(SettingError, match="never reads 'bitz'; did you mean 'bits'"):
        plan_conversion(variant({"build.bitz": 8}, build=recipe))


def test_a_dotted_build_setting_sets_an_entry_of_an_input() -> None:
    recipe = BuildRecipe(
        call="a:b",
        inputs={"models": [{"model": "./a", "weight": 1.0}, {"model": "./b"}], "types": {"a.b": 1}},
    )
    wanted: dict[str, Value] = {
        "build.models.0.weight": 0.5,  # an item of a list by its number
        "build.types.a.b": 2,  # a key that is there comes before a way through it
        "build.types.blk.*.weight": 3,  # a key may have dots
        "build.parameters.int8_mask": True,  # a mapping that is not there yet
    }
    assert plan_conversion(variant(wanted, build=recipe)).build_inputs == {
        "models": [{"model": "./a", "weight": 0.5}, {"model": "./b"}],
        "types": {"a.b": 2, "blk.*.weight": 3},
        "parameters": {"int8_mask": True},
    }
    assert recipe.inputs["types"] == {"a.b": 1}


@pytest.mark.parametrize(
    ("path", "found"),
    [("models.1.x", "no item of a list of 1"), ("models.x", "no item"), ("base.x", "no entries")],
)
def test_a_dotted_build_setting_of_no_entry_is_refused(path: str, found: str) -> None:
    recipe = BuildRecipe(call="a:b", inputs={"models": [{}], "base": "./a"})
    with pytest.raises(SettingError, match=rf"build\.{path}: .*{found}"):
        plan_conversion(variant({f"build.{path}": 1}, build=recipe))


@pytest.mark.parametrize(
    ("whole", "part"),
    [("build.a", "build.a.b"), ("config.rope_parameters", "config.rope_parameters.rope_theta")],
)
def test_a_setting_within_the_value_of_another_is_refused(whole: str, part: str) -> None:
    for one, other in ((whole, part), (part, whole)):
        with pytest.raises(SettingError, match=f"'s0' and 's1' both write {other}"):
            plan_conversion(variant({one: {}, other: 1}, build=BuildRecipe(call="a:b")))


def test_a_dtype_is_a_name() -> None:
    with pytest.raises(SettingError, match="16 is not a dtype"):
        plan_conversion(variant({"dtype:model": 16}))


def test_the_built_path_goes_to_its_placeholder_or_to_pretrained() -> None:
    assert with_build({"dtype": "float32"}, "/b") == {"dtype": "float32", "pretrained": "/b"}
    placed = with_build({"pretrained": "base", "peft": "{build}/adapter"}, "/b")
    assert placed == {"pretrained": "base", "peft": "/b/adapter"}


def test_for_an_identity_settings_have_no_names_and_only_hooks_have_an_order() -> None:
    def told(*settings: tuple[str, str, Value]) -> Value:
        made = tuple(
            Setting(name=name, reference=None, candidate=value, target=Target.parse(target))
            for name, target, value in settings
        )
        assigned = {one.name: one.candidate for one in made}
        plan = plan_conversion(
            Variant(name="m", model="hf", model_args={}, settings=made, assignment=assigned)
        )
        return plan.settings_for_identity(assigned)

    eps, gain = ("eps", "config.rms_norm_eps", 1e-5), ("gain", "attr:norm.weight", 2.0)
    first, second = ("a", "call:h.py:first", 1), ("b", "call:h.py:second", 1)
    named = told(eps, gain, first, second)
    assert named == told(("x", *gain[1:]), ("y", *eps[1:]), ("b", *first[1:]), ("a", *second[1:]))
    assert named != told(eps, gain, second, first)
    assert named != told(eps, ("gain", "attr:norm.weight", 3.0), first, second)
