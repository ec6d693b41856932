"""The template of ``evalguard init``, and models given on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalguard.config.guard_search import load_guards
from evalguard.config.guard_writing import TEMPLATE, write_template
from evalguard.config.inline_models import inline_variant, parse_model_args, split_model_type
from evalguard.core.settings import TARGET_KINDS
from evalguard.errors import StoreError, UsageError


def test_the_template_is_a_valid_guard_file_that_needs_no_trust(tmp_path: Path) -> None:
    write_template(tmp_path / "evalguard.yaml")
    guard = load_guards(None, cwd=tmp_path, allow_code=False).guards[0]
    assert list(guard.variants) == ["orig", "port"]
    assert guard.pair("orig", "port") is not None
    kinds = {setting.target.kind for setting in guard.variants["port"].settings}
    assert len(kinds) >= 4
    assert not any(constraint.violated_by(guard.variants["port"].assignment)
                   for constraint in guard.variants["port"].constraints)  # fmt: skip


def test_the_template_shows_every_kind_of_target_and_stays_valid_uncommented(
    tmp_path: Path,
) -> None:
    assert all(f"{kind}." in TEMPLATE or f"{kind}:" in TEMPLATE for kind in TARGET_KINDS)
    keep = ("# NAME", "# The other", "#  ", "# A guard", "# Try", "# Every", "# Read")
    lines = []
    for line in TEMPLATE.splitlines():
        bare = line.strip()
        if bare.startswith("# ") and not bare.startswith(keep) and "differs" not in bare:
            line = line.replace("# ", "", 1)
        lines.append(line)
    text = "\n".join(lines).replace("#   command", "  command").replace("#   output", "  output")
    text = text.replace("#   inputs", "  inputs").replace("#   {num", "  {num")
    text = text.replace("#   url", "  url")
    (tmp_path / "guard.yaml").write_text(text)
    guard = load_guards(Path("guard.yaml"), cwd=tmp_path, allow_code=False).guards[0]
    port = guard.variants["port"]
    assert {setting.target.kind for setting in port.settings} == set(TARGET_KINDS)
    assert port.build is not None
    assert port.serve is not None
    assert guard.run.batch_size == 16
    assert guard.gate.undecided == "warn"
    assert guard.include_paths


def test_the_template_never_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        write_template(tmp_path, force=True)


def test_a_template_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        write_template(tmp_path / "evalguard.yaml")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="cannot be written"):
        write_template(tmp_path / "no" / "evalguard.yaml")


def test_a_folder_on_the_command_line_is_a_variant_named_after_it(tmp_path: Path) -> None:
    (tmp_path / "made" / "port").mkdir(parents=True)
    (tmp_path / "tok").mkdir()
    args = {"dtype": "float32", "tokenizer": "tok"}
    variant = inline_variant("made/port", model="hf", model_args=args, cwd=tmp_path)
    assert variant.name == "port"
    assert dict(variant.model_args) == {
        "pretrained": str(tmp_path / "made" / "port"),
        "dtype": "float32",
        "tokenizer": str(tmp_path / "tok"),
    }
    assert not variant.trust_remote_code
    assert not variant.allow_pickle


def test_a_hub_id_on_the_command_line_keeps_its_name(tmp_path: Path) -> None:
    variant = inline_variant(
        "org/model-1.5B",
        model="vllm",
        model_args={"trust_remote_code": True},
        cwd=tmp_path,
        allow_pickle=True,
    )
    assert (variant.name, variant.model) == ("org/model-1.5B", "vllm")
    assert dict(variant.model_args) == {"pretrained": "org/model-1.5B"}
    assert variant.trust_remote_code
    assert variant.allow_pickle


@pytest.mark.parametrize("switch", ["trust_remote_code", "allow_pickle"])
def test_a_switch_among_model_arguments_is_taken_out_of_them(tmp_path: Path, switch: str) -> None:
    variant = inline_variant("org/model", model="hf", model_args={switch: True}, cwd=tmp_path)
    assert dict(variant.model_args) == {"pretrained": "org/model"}
    assert [variant.trust_remote_code, variant.allow_pickle].count(True) == 1
    assert getattr(variant, switch)
    with pytest.raises(UsageError, match=f"{switch} is true or false, not 'yes'"):
        inline_variant("org/model", model="hf", model_args={switch: "yes"}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("./gone", "no model folder at"),
        ("/gone/away", "no model folder at /gone/away"),
        ("a/b/c", "nor a hub id"),
        ("what is this", "nor a hub id"),
        ("", "is empty"),
    ],
)
def test_a_spec_that_is_neither_folder_nor_hub_id_is_refused(
    tmp_path: Path, spec: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        inline_variant(spec, model="hf", model_args={}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("spec", "model_type", "model"),
    [
        ("vllm:./llama", "vllm", "./llama"),
        ("local-completions:http://h:1/v1", "local-completions", "http://h:1/v1"),
        ("transformer_lens:org/model", "transformer_lens", "org/model"),
        ("http://h:1/v1", "", "http://h:1/v1"),
        ("localhost:8000/v1", "", "localhost:8000/v1"),
        ("org/model", "", "org/model"),
        ("there:already", "", "there:already"),
        ("vllm:", "", "vllm:"),
    ],
)
def test_a_model_type_stands_before_the_model(
    tmp_path: Path, spec: str, model_type: str, model: str
) -> None:
    (tmp_path / "there:already").mkdir()
    assert split_model_type(spec, tmp_path) == (model_type, model)


def test_contradicting_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name the model twice"):
        inline_variant("a/b", model="hf", model_args={"pretrained": "c"}, cwd=tmp_path)
    with pytest.raises(UsageError, match="true or false"):
        inline_variant("a/b", model="hf", model_args={"trust_remote_code": 1}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("dtype=float32", {"dtype": "float32"}),
        ("a=1, b=-2,c=true,d=False,e=None,", {"a": 1, "b": -2, "c": True, "d": False, "e": None}),
        ("eps=1e-5,x=.5,y=3.", {"eps": 1e-5, "x": 0.5, "y": 3.0}),
        ("url=http://host/?q=1", {"url": "http://host/?q=1"}),
        ("v='1',w=\"true\",u=1_000", {"v": "1", "w": "true", "u": "1_000"}),
        ("n=nan,i=inf", {"n": "nan", "i": "inf"}),
        ('{"a": [1, 2], "b": {"c": null}, "d": 1.0}', {"a": [1, 2], "b": {"c": None}, "d": 1.0}),
    ],
)
def test_model_args_get_types(text: str, expected: dict[str, object]) -> None:
    found = parse_model_args(text)
    assert found == expected
    assert [type(v) for v in found.values()] == [type(v) for v in expected.values()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dtype", "'dtype' is not NAME=VALUE"),
        ("dtype=", "'dtype=' is not NAME=VALUE"),
        ("=float32", "is not NAME=VALUE"),
        ("a=1,a=2", "'a' is given twice"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ('{"a": [{"b": 1, "b": 2}]}', "'b' is given twice"),
        ('{"a": 1', "not JSON"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ('{"a": 1e999}', "1e999 is not a finite number"),
        ("a=1e999", "1e999 is not a finite number"),
    ],
)
def test_bad_model_args_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^--base_model_args: .*{message}"):
        parse_model_args(text, where="--base_model_args")
