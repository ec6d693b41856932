"""Models that cannot be compared: one clear message, the right exit code, no traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_world import SmallWorld


@pytest.mark.parametrize("place", ["/no/such/folder", "./nowhere", "../nowhere/deep"])
def test_a_missing_folder_on_the_command_line(refused_pair: Any, place: str) -> None:
    for pair in ((place, "orig"), ("orig", place)):
        ran = refused_pair(2, *pair)
        assert f"no model or lm-eval run at '{place}'" in ran.err
        assert "loading" not in ran.err


def test_a_missing_folder_in_a_guard_file_is_found_before_anything_runs(
    refused: Any, world: SmallWorld, tmp_path: Path
) -> None:
    (tmp_path / "evalguard.yaml").write_text(
        "models:\n"
        f"  orig: {{model_args: {{pretrained: {world.models['llama']}}}}}\n"
        "  lost: {model_args: {pretrained: ./lost}}\n"
        "tasks: [sw_word]\n"
    )
    sides = ("--base", "orig", "--cand", "lost", "--include-path", world.tasks)
    ran = refused(2, "compare", *sides)
    assert f"evalguard.yaml:3: there is no model folder {tmp_path / 'lost'}" in ran.err
    assert "loading" not in ran.err


def test_a_word_that_is_neither_name_nor_model_lists_the_names(refused_pair: Any) -> None:
    ran = refused_pair(2, "orig", "unheard-of")
    assert "no folder unheard-of, and no such model in the local Hugging Face cache" in ran.err
    assert "guard.yaml: orig, same, sharp" in ran.err
    assert "loading" not in ran.err


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused(refused_pair: Any, name: str) -> None:
    assert "--cand is empty" in refused_pair(2, "orig", name).err


def test_vocabularies_that_differ(refused_pair: Any) -> None:
    ran = refused_pair(3, "orig", "other-vocabulary")
    assert "the vocabularies of base and candidate differ (384 entries each, and not" in ran.err
    assert "--allow-differing tokens" in ran.err


def test_tokenizers_that_encode_differently_with_one_vocabulary(refused_pair: Any) -> None:
    ran = refused_pair(3, "orig", "other-encoding")
    assert "base and candidate encode 8 of 8 requests differently (first: sw_word, doc_id 0" in (
        ran.err
    )
    assert '(token ids of the base: "' in ran.err
    assert "--allow-differing tokens" in ran.err


@pytest.mark.parametrize("candidate", ["other-vocabulary", "other-encoding"])
def test_a_declared_difference_of_tokens_is_compared_with_a_caveat(
    compare: Any, candidate: str
) -> None:
    ran = compare("orig", candidate, "--allow-differing", "tokens", "--json")
    assert ran.code in (0, 1)
    caveats = [c for comparison in ran.document["comparisons"] for c in comparison["caveats"]]
    assert any("token ids differ in 24 of 24 documents" in c for c in caveats) == (
        candidate == "other-encoding"
    )


def test_debug_adds_the_traceback_and_nothing_else_does(run: Any, world: SmallWorld) -> None:
    words = ("compare", "--config", world.guard, "--base", "orig", "--cand", "shrap")
    assert "Traceback" not in run(*words).err
    ran = run(*words, "--debug")
    assert "Traceback" in ran.err
    assert "error: --cand: no model 'shrap'" in ran.err
    assert ran.code == 2


def edited(world: SmallWorld, folder: Path, edit: Any) -> Path:
    """A copy of the small world's model that a function has changed."""
    made = shutil.copytree(world.models["llama"], folder / "edited")
    edit(made)
    return made


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_shard(folder: Path) -> None:
    without_weights(folder)
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def of_unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "unheard"}))


def with_own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (folder / "config.json").write_text(json.dumps({**config, **own}))


def with_cut_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def with_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


@pytest.mark.parametrize(
    ("edit", "code", "said"),
    [
        (without_tokenizer, 3, "has no tokenizer that can be read"),
        (with_damaged_tokenizer, 3, "JSONDecodeError"),
        (without_weights, 3, "holds no weights"),
        (without_shard, 3, "names model-00002-of-00002.safetensors, which is not there"),
        (of_unknown_architecture, 3, "this transformers does not know the architecture"),
        (with_own_code, 3, "brings its own Python code, which is not allowed to run"),
        (with_cut_config, 3, "is not a valid JSON file"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused_before_the_other_model_is(
    refused_pair: Any, world: SmallWorld, tmp_path: Path, unloaded: None, edit: Any, code: int,
    said: str,
) -> None:  # fmt: skip
    model = edited(world, tmp_path, edit)
    for pair in (("orig", model), (model, "orig")):
        ran = refused_pair(code, *pair, "--no-cache")
        assert said in ran.err
        assert "loading orig" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("dtype=flot32", 2, "'flot32' is not a dtype; did you mean 'float32'?"),
        ("device=cudda", 2, "'cudda' is not a device"),
        ("device=cuda:77", 2, "device 'cuda:77' is not to be had"),
        ("dtpe=float32", 2, "takes no argument 'dtpe'; did you mean 'dtype'?"),
        ("low_cpu_mem_usage=banana", 2, "'banana' is not true or false"),
        ("attn_implementation=flsh", 2, "attn_implementation: 'flsh' is not known"),
        ("num_hidden_layers=many", 2, "config.num_hidden_layers cannot be 'many'"),
        ("tokenizer=/no/where", 3, "there is no model folder /no/where"),
        ("tokenizer=no-body/where", 3, "no such tokenizer in the local Hugging Face cache"),
        ("gguf_file=none.gguf", 3, "has no file none.gguf"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_before_the_other_model_is_loaded(
    refused: Any, world: SmallWorld, unloaded: None, arguments: str, code: int, said: str
) -> None:
    llama, words = world.models["llama"], ("--tasks", "sw_word", "--include-path", world.tasks)
    for side, role in (("cand", "candidate"), ("base", "base")):
        sides = ("--base", llama, "--cand", llama, f"--{side}-model-args", arguments)
        ran = refused(code, "compare", *sides, *words, "--no-cache")
        assert said in ran.err, role
        assert "loading llama" not in ran.err


def test_a_gguf_file_that_is_none_is_refused_before_the_base_is_loaded(
    refused: Any, world: SmallWorld, tmp_path: Path, unloaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalguard.models.runtimes.types.RuntimeType.missing", ())
    (tmp_path / "no.gguf").write_bytes(b"<html>not found</html>")
    sides = ("--base", world.models["llama"], "--cand", tmp_path / "no.gguf")
    ran = refused(3, "compare", *sides, "--tasks", "sw_word", "--include-path", world.tasks)
    assert f"{tmp_path / 'no.gguf'} is no GGUF file" in ran.err
    assert "loading" not in ran.err
