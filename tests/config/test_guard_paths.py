"""Relative local paths start at the guard file's folder; hub ids are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from guard_texts import load

from evalguard.config.guard_search import load_guards


def argument(folder: Path, name: str, text: str) -> object:
    guard = load(folder, f"models: {{m: {{model_args: {{{name}: '{text}'}}}}}}")
    return guard.variants["m"].model_args[name]


@pytest.mark.parametrize("name", ["pretrained", "tokenizer", "peft", "delta", "gguf_file"])
def test_a_path_that_exists_beside_the_guard_file_becomes_absolute(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "made" / "model").mkdir(parents=True)
    assert argument(tmp_path, name, "made/model") == str(tmp_path / "made" / "model")


def test_what_does_not_exist_stays_a_hub_id(tmp_path: Path) -> None:
    assert argument(tmp_path, "pretrained", "org/model") == "org/model"
    assert argument(tmp_path, "pretrained", "gpt2") == "gpt2"


@pytest.mark.parametrize(
    ("text", "path"),
    [("./model", "guards/model"), ("../model", "model"), ("..", "."), (".", "guards")],
)
def test_what_is_written_as_a_path_becomes_absolute_even_if_nothing_is_there(
    tmp_path: Path, text: str, path: str
) -> None:
    folder = tmp_path / "guards"
    folder.mkdir()
    assert argument(folder, "pretrained", text) == str(tmp_path / path)


def test_home_is_expanded_and_environment_variables_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("MODEL", "elsewhere")
    assert argument(tmp_path, "pretrained", "~/model") == "/home/somebody/model"
    assert argument(tmp_path, "pretrained", "$MODEL") == "$MODEL"


def test_an_argument_that_names_no_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    assert argument(tmp_path, "revision", "main") == "main"


def test_paths_start_at_the_guard_file_and_not_at_the_working_folder(tmp_path: Path) -> None:
    folder = tmp_path / "guards"
    (folder / "model").mkdir(parents=True)
    text = "models: {m: {model_args: {pretrained: model}, build: {command: [make]}}}\n"
    (folder / "g.yaml").write_text(text + "include_path: [tasks, ../more]")
    guard = load_guards(Path("guards/g.yaml"), cwd=tmp_path, allow_code=False).guards[0]
    variant = guard.variants["m"]
    assert variant.model_args["pretrained"] == str(folder / "model")
    assert variant.code_folder == str(folder)
    assert variant.build is not None
    assert variant.build.folder == str(folder)
    assert guard.include_paths == (folder / "tasks", tmp_path / "more")
    assert guard.label == "guards/g.yaml"


def test_values_of_a_setting_on_a_path_are_resolved_in_its_constraints_too(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    variant = load(
        tmp_path,
        "models:\n  m:\n    settings:\n"
        "      tok: {reference: org/theirs, candidate: ours, target: model_args.tokenizer}\n"
        "      eps: {reference: ours, candidate: theirs, target: config.eps}\n"
        "    constraints: [{if: {tok: ours}, then: {eps: ours}}]\n",
    ).variants["m"]
    ours = str(tmp_path / "ours")
    assert (variant.settings[0].reference, variant.settings[0].candidate) == ("org/theirs", ours)
    assert variant.settings[1].reference == "ours"
    assert variant.constraints[0].when == {"tok": ours}
    assert variant.constraints[0].then == {"eps": "ours"}


@pytest.mark.parametrize("text", ["x" * 5000, "./" + "x" * 5000, "~nobody-here/x", "a\\0b"])
def test_what_can_be_no_path_is_left_for_loading_to_refuse(tmp_path: Path, text: str) -> None:
    (tmp_path / "g.yaml").write_text(
        f'models: {{m: {{model_args: {{pretrained: "{text}"}}}}}}\ninclude_path: "{text}"'
    )
    guard = load_guards(Path("g.yaml"), cwd=tmp_path, allow_code=False).guards[0]
    assert guard.include_paths[0].is_absolute()


def test_inputs_are_paths_from_the_guard_file_on_under_the_words_that_are_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "tables").mkdir()
    guard = load(
        tmp_path,
        "models: {m: {inputs: [tables, /far/a.json]}, none: {inputs: []}, child: {extends: m}}",
    )
    found = {name: variant.inputs for name, variant in guard.variants.items()}
    assert found == {
        "m": {"tables": str(tmp_path / "tables"), "/far/a.json": "/far/a.json"},
        "none": {},
        "child": None,  # nor is trust in code inherited
    }
