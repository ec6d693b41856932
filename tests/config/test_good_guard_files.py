"""Good guard files become the domain objects that they describe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from guard_texts import FULL, load

from evalguard.config.guard import Pair
from evalguard.config.guard_search import embedded_folder, load_guards
from evalguard.config.options import RunOptions
from evalguard.core.gate import GateOptions
from evalguard.core.limits import Limit
from evalguard.core.settings import BuildRecipe, Constraint, Target
from evalguard.errors import UsageError


def test_the_design_pages_guard_file_loads_in_full(tmp_path: Path) -> None:
    guard = load(tmp_path, FULL)
    assert list(guard.variants) == ["orig", "fla-port"]
    assert guard.pairs == (
        Pair(
            base="orig",
            candidate="fla-port",
            differs=frozenset({"tokens"}),
            tasks=("special",),
        ),
    )
    assert guard.tasks == ("lambada_openai",)
    assert guard.tasks_of("orig", "fla-port") == ("special",)
    assert guard.tasks_of("fla-port", "orig") == ("lambada_openai",)
    assert guard.gate == GateOptions(
        margin=2.0,
        fail_on="significant",
        confidence=0.9,
        undecided="fail",
        subtasks=True,
        limits=(
            Limit(metric="kl_mean", value=0.01),
            Limit(metric="kl_p99.9", value=1.0),
            Limit(metric="same_top1", value=0.98),
        ),
    )
    assert guard.run == RunOptions(
        num_fewshot=2,
        limit=0.5,
        batch_size="auto",
        seed=7,
        device="cpu",
        apply_chat_template=True,
        distributions="off",
        reference_top_k=16,
        cache_max_size="20GB",
        history=Path("nightly.sqlite"),
        track=("wandb", "mlflow"),
        memory="sequential",
    )
    assert guard.include_paths == (tmp_path / "tasks",)
    assert guard.origin == "named"


def test_a_variant_has_every_setting_at_its_candidate_value(tmp_path: Path) -> None:
    variant = load(tmp_path, FULL).variants["fla-port"]
    assert variant.model == "hf"
    assert dict(variant.model_args) == {"pretrained": "org/port", "dtype": "float32"}
    assert dict(variant.assignment) == {s.name: s.candidate for s in variant.settings}
    assert [str(s.target) for s in variant.settings] == [
        "dtype:model.layers.*.input_layernorm",
        "attr:model.layers.*.self_attn.scaling",
        "config.attn_mode",
        "model_args.add_bos_token",
        "config.text_config.rms_norm_eps",
        "env.NVIDIA_TF32_OVERRIDE",
        "build.group_size",
        "call:hooks.py:clip",
    ]
    assert variant.settings[3].candidate is False
    assert variant.settings[4].candidate == 1e-5
    assert variant.settings[4].target == Target(kind="config", path="text_config.rms_norm_eps")
    assert variant.settings[5].candidate == "1"
    assert variant.settings[7].reference is None
    assert variant.constraints == (
        Constraint(when={"prefill": "chunk"}, then={"norm_dtype": "float32"}),
    )
    assert variant.build == BuildRecipe(
        command=("python", "convert.py", "{group_size}", "{output}"),
        output="made/model",
        inputs={"seed": 1},
        folder=str(tmp_path),
    )
    assert variant.code_folder == str(tmp_path)
    assert variant.allow_code
    assert not variant.trust_remote_code


CHAIN = """\
models:
  a:
    model_args: {pretrained: org/a, dtype: float32}
    trust_remote_code: true
    allow_pickle: true
    settings:
      one: {reference: 1, candidate: 2, target: config.one}
      two: {reference: 1, candidate: 2, target: config.two}
    constraints: [{if: {one: 2}, then: {two: 2}}]
    build: {call: "make.py:build"}
  b:
    extends: a
    model: hf-multimodal
    settings:
      two: {reference: 1, candidate: 3, target: config.two}
      three: {reference: a, candidate: b, target: config.three}
    constraints: []
  c:
    extends: b
    model_args: {dtype: bfloat16, revision: null}
    trust_remote_code: true
"""


def test_extends_merges_maps_by_key_and_replaces_the_rest_along_a_chain(tmp_path: Path) -> None:
    c = load(tmp_path, CHAIN).variants["c"]
    assert c.model == "hf-multimodal"
    assert dict(c.model_args) == {"pretrained": "org/a", "dtype": "bfloat16", "revision": None}
    assert dict(c.assignment) == {"one": 2, "two": 3, "three": "b"}
    assert c.constraints == ()
    assert c.build is not None
    assert c.build.call == "make.py:build"


def test_trust_is_said_for_each_model_and_never_inherited(tmp_path: Path) -> None:
    variants = load(tmp_path, CHAIN).variants
    trusted = {name: (v.trust_remote_code, v.allow_pickle) for name, v in variants.items()}
    assert trusted == {"a": (True, True), "b": (False, False), "c": (True, False)}


def test_alternatives_are_values_in_order_and_constraints_may_name_them(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    variant = load(
        tmp_path,
        "models: {m: {settings: {"
        "dtype: {reference: float32, candidate: float16, target: model_args.dtype,"
        " alternatives: [bfloat16, auto]},"
        "weights: {reference: org/a, candidate: org/b, target: model_args.pretrained,"
        " alternatives: [theirs]}},"
        "constraints: [{if: {dtype: auto}, then: {weights: theirs}}]}}",
    ).variants["m"]
    assert variant.settings[0].alternatives == ("bfloat16", "auto")
    assert variant.settings[1].alternatives == (str(tmp_path / "theirs"),)
    assert variant.constraints[0].then == {"weights": str(tmp_path / "theirs")}
    bare = replace(variant, settings=tuple(replace(s, alternatives=()) for s in variant.settings))
    assert bare.digest == variant.digest  # no evaluation depends on them


ANCHORS = """\
models:
  a: &a
    model_args: &args {pretrained: org/a, dtype: float32}
    settings: &settings
      one: &one {reference: 1, candidate: 2, target: config.one}
  b:
    <<: *a
    model_args: {<<: *args, dtype: bfloat16}
  c:
    model_args: *args
    settings: {uno: *one}
"""


def test_anchors_and_merge_keys_say_the_same_as_the_text_written_out(tmp_path: Path) -> None:
    written_out = """\
models:
  a:
    model_args: {pretrained: org/a, dtype: float32}
    settings: {one: {reference: 1, candidate: 2, target: config.one}}
  b:
    model_args: {pretrained: org/a, dtype: bfloat16}
    settings: {one: {reference: 1, candidate: 2, target: config.one}}
  c:
    model_args: {pretrained: org/a, dtype: float32}
    settings: {uno: {reference: 1, candidate: 2, target: config.one}}
"""
    assert load(tmp_path, ANCHORS).variants == load(tmp_path, written_out).variants


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("yes", "yes"), ("off", "off"), ("null", None),
        ("~", None), ("''", ""), ("12", 12), ("-3", -3), ("010", 10), ("0x1f", 31), ("0o17", 15),
        ("1e-5", 1e-5), ("1.", 1.0), (".5", 0.5), ("1_000", "1_000"), ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"), ("'1'", "1"), ("!!str 1", "1"), ("!!float 1", 1.0),
        ("[1, [a]]", [1, ["a"]]), ("{a: {b: 1}}", {"a": {"b": 1}}), ("bfloat16", "bfloat16"),
    ],
)  # fmt: skip
def test_values_are_read_as_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    guard = load(tmp_path, f"models: {{m: {{model_args: {{x: {text}}}}}}}")
    found = guard.variants["m"].model_args["x"]
    assert found == value
    assert type(found) is type(value)


def test_an_unknown_name_is_a_usage_error_with_the_nearest_and_the_list(tmp_path: Path) -> None:
    load(tmp_path, FULL)
    guards = load_guards(Path("guard.yaml"), cwd=tmp_path, allow_code=False)
    with pytest.raises(
        UsageError, match=r"no model 'fla_port' in guard\.yaml; did you mean"
    ) as raised:
        guards.find("fla_port")
    assert "orig, fla-port" in raised.value.hint


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    plain = load(tmp_path, FULL)
    (tmp_path / "guard.yaml").write_bytes(b"\xef\xbb\xbf" + FULL.replace("\n", "\r\n").encode())
    again = load_guards(Path("guard.yaml"), cwd=tmp_path, allow_code=False).guards[0]
    assert again.variants == plain.variants


def test_the_embedded_demo_loads_and_its_relative_paths_exist() -> None:
    demo = embedded_folder() / "configs" / "demo.yaml"
    guard = load_guards(demo, cwd=Path.cwd(), allow_code=False).guards[0]
    assert "orig" in guard.variants
    pretrained = str(guard.variants["orig"].model_args["pretrained"])
    assert pretrained == str((embedded_folder() / "demo" / "model").resolve())
    assert all(path.is_dir() for path in guard.include_paths)
