"""Models that cannot be loaded are seen before the first one runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants, errors
from safetensors.numpy import save_file

from evalguard.comparison.refusals import check_hub_model, check_models
from evalguard.config.guard_search import load_guards
from evalguard.core.settings import BuildRecipe, OwnEnvironment, Variant
from evalguard.engine.error_places import with_location
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, EvaluationError, SettingError, UsageError


def source(model: str = "hf", build: BuildRecipe | None = None, **model_args: Any) -> ModelSource:
    variant = Variant(name="m", model=model, model_args=model_args, build=build)
    return ModelSource(name="m", variant=variant)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file({"w": np.zeros(2)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_folder_with_a_config_passes(folder: Path) -> None:
    check_models([source(pretrained=str(folder))])


def test_what_leads_nowhere_is_the_users_mistake(folder: Path) -> None:
    (folder / "empty").mkdir()
    for pretrained, message in (
        (folder / "gone", "there is no model folder"),
        (folder / "empty", "is not a model folder: it has no config.json"),
        (folder / "config.json", "is a file, not a model folder"),
    ):
        with pytest.raises(UsageError, match=message):
            check_models([source(pretrained=str(folder)), source(pretrained=str(pretrained))])
    with pytest.raises(UsageError, match=r"there is no model folder .*/deeper"):
        check_models([source(pretrained=str(folder), subfolder="deeper")])


def test_damaged_and_pickled_weights_are_seen_early(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(EvaluationError, match="is damaged or incomplete"):
        check_models([source(pretrained=str(folder))])
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"no")
    with pytest.raises(EvaluationError, match="pickled weights"):
        check_models([source(pretrained=str(folder))])


def test_what_is_built_or_read_by_others_is_not_looked_at(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    check_models([source(pretrained=gone, build=BuildRecipe(command=("make",)))])
    check_models([source("dummy", pretrained=gone)])


def test_a_model_of_no_name_is_refused() -> None:
    with pytest.raises(UsageError, match="model_args name no 'pretrained' model"):
        check_models([source()])


def test_a_hub_id_that_is_not_in_the_cache_is_refused_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="no folder nobody/nothing, and no such model"):
        check_models([source(pretrained="nobody/nothing")])


def hub_error(name: str) -> Exception:
    """An error of the hub's client; what else it holds depends on the HTTP library."""
    kind: type[Exception] = getattr(errors, name)
    error = kind.__new__(kind)
    Exception.__init__(error, "said the hub")
    return error


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("RepositoryNotFoundError", UsageError),
        ("GatedRepoError", None),
        ("EntryNotFoundError", None),
    ],
)
def test_what_the_hub_answers(
    monkeypatch: pytest.MonkeyPatch, kind: str, expected: type[Exception] | None
) -> None:
    def download(*_: object, **__: object) -> None:
        raise hub_error(kind)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    if expected is None:
        check_models([source(pretrained="a/b")])
        return
    with pytest.raises(expected, match="the Hugging Face hub has no such model"):
        check_models([source(pretrained="a/b")])


GUARD = """models:
  orig: {model_args: {pretrained: ./gone}}
  port:
    extends: orig
    settings:
      first: {reference: 1, candidate: 2, target: config.alpha}
      second: {reference: 1, candidate: 2, target: "attr:model.*.beta"}
"""


@pytest.fixture
def port(tmp_path: Path) -> ModelSource:
    (tmp_path / "evalguard.yaml").write_text(GUARD)
    guard, variant = load_guards(None, cwd=tmp_path, allow_code=False).find("port")
    return ModelSource(name="port", variant=variant, guard=guard)


def test_a_model_of_a_guard_file_is_named_with_its_line(port: ModelSource) -> None:
    with pytest.raises(UsageError, match=r"^evalguard\.yaml:3: there is no model folder"):
        check_models([port])


@pytest.mark.parametrize(
    ("kind", "setting", "target", "line"),
    [
        (SettingError, "first", "", 6),
        (SettingError, "", "config.alpha", 6),
        (UsageError, "", "config.alpha", 6),
        (SettingError, "second", "", 7),
        (SettingError, "", "attr:model.*.beta", 7),
        (SettingError, "", "config.beta", 3),
        (SettingError, "third", "", 3),
        (SettingError, "", "", 3),
    ],
)
def test_the_setting_that_an_error_is_about_gives_the_line(
    port: ModelSource, kind: type[EvalguardError], setting: str, target: str, line: int
) -> None:
    """Of words that quote another one, nothing follows."""
    with pytest.raises(kind) as raised, with_location(port):
        raise kind("'first' and 'second'", hint="look there", setting=setting, target=target)
    assert str(raised.value) == f"evalguard.yaml:{line}: 'first' and 'second'"
    assert raised.value.hint == "look there"


def test_what_no_guard_file_causes_is_left_as_it_is(port: ModelSource) -> None:
    with pytest.raises(EvaluationError) as raised, with_location(port):
        raise EvaluationError("out of memory")
    assert str(raised.value) == "out of memory"
    with pytest.raises(UsageError) as usage, with_location(source()):
        raise UsageError("no such argument")
    assert str(usage.value) == "no such argument"


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        (Variant(name="m", model="llama_cpp", model_args={}), "needs xllamacpp or llama_cpp"),
        (
            Variant(name="m", model="sglang", model_args={},
                    environment=OwnEnvironment(requirements=("sglang",))),
            "runs in evalguard's own environment only",
        ),
        (
            Variant(name="m", model="hf", model_args={},
                    environment=OwnEnvironment(python="no-such-python")),
            "there is no Python interpreter",
        ),
    ],
)  # fmt: skip
def test_a_model_that_cannot_run_where_it_is_to_run_is_refused_before_anything_is_scored(
    variant: Variant, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_models([ModelSource(name="m", variant=variant)])


def test_a_hub_that_does_not_answer_is_asked_once_and_not_by_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask_again(*given: object, **more: object) -> None:
        raise AssertionError("the library's retries take half a minute")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", ask_again)
    with pytest.raises(EvaluationError, match="the hub cannot be reached"):
        check_hub_model("someorg/mistyped-name", {})
