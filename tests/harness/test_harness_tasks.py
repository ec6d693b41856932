"""Loading lm-eval tasks by name: what is found, what is refused, and with which words."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager
from local_tasks import write_task, write_tasks

from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import TaskSet, load_tasks, task_names


def load(folder: Path, *names: str, **options: object) -> TaskSet:
    chosen = TaskOptions(include_paths=(folder,), **options)  # type: ignore[arg-type]
    return load_tasks(names, options=chosen)


def test_groups_become_their_leaf_tasks_and_are_remembered(task_folder: Path) -> None:
    tasks = load(task_folder, "eg_rolling", "eg_group")
    assert tasks.names == ("eg_rolling", "eg_lastword", "eg_choice")
    assert tasks.groups == {"eg_group": ("eg_lastword", "eg_choice")}


def test_task_asked_for_twice_is_loaded_once(task_folder: Path) -> None:
    tasks = load(task_folder, "eg_lastword", "eg_group", "eg_lastword")
    assert tasks.names == ("eg_lastword", "eg_choice")


def test_tags_become_their_tasks(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    body = 'output_type: loglikelihood\ndoc_to_text: "{{text}}"\ndoc_to_target: " end"\n'
    write_task(tmp_path, "eg_two", body, tag="eg_other")
    write_task(tmp_path, "eg_one", body, tag="eg_other")
    tasks = load(tmp_path, "eg_other")
    assert tasks.names == ("eg_one", "eg_two")
    assert tasks.groups == {"eg_other": ("eg_one", "eg_two")}


def test_path_of_a_task_file_is_a_task(task_folder: Path) -> None:
    tasks = load_tasks([str(task_folder / "eg_lastword.yaml")], options=TaskOptions())
    assert tasks.names == ("eg_lastword",)


def test_lm_evals_own_task_files_are_read_only_where_a_name_needs_them(
    task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def without_defaults(include_path: Any, include_defaults: bool) -> TaskManager:
        asked.append(include_defaults)
        return TaskManager(include_path=include_path, include_defaults=False)

    monkeypatch.setattr("lm_eval.tasks.TaskManager", without_defaults)
    load(task_folder, "eg_rolling", "eg_group")
    assert not any(asked)
    for slip, meant in (("eg_roling", "eg_rolling"), ("lambada_opnai", "lambada_openai")):
        with pytest.raises(UsageError, match=f"'{slip}'; did you mean '{meant}'?"):
            load(task_folder, "eg_rolling", slip)
    assert not any(asked)
    with pytest.raises(UsageError):
        load(task_folder, "lambada_openai")
    assert asked[-1]


_index = functools.cache(TaskManager)


@pytest.fixture
def index_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's own 14,000 names take many seconds to read: the tests that need them share them."""

    def read(include_path: list[str], include_defaults: bool) -> TaskManager:
        return _index(include_path=tuple(include_path), include_defaults=include_defaults)

    monkeypatch.setattr("lm_eval.tasks.TaskManager", read)


@pytest.mark.slow
@pytest.mark.usefixtures("index_read_once")
def test_own_task_of_lm_eval_without_its_data_names_the_dataset(task_folder: Path) -> None:
    with pytest.raises(EvaluationError, match="lambada_openai") as error:
        load(task_folder, "lambada_openai")
    assert "'EleutherAI/lambada_openai" in str(error.value)
    assert "HF_HUB_OFFLINE" in error.value.hint
    assert error.value.exit_code == 3


@pytest.mark.slow
@pytest.mark.usefixtures("index_read_once")
def test_names_of_all_tasks_include_lm_evals_own(task_folder: Path) -> None:
    assert {"eg_group", "eg_tag", "eg_choice", "lambada_openai"} <= set(task_names([task_folder]))


@pytest.mark.slow
@pytest.mark.usefixtures("index_read_once")
def test_wildcards_match_own_and_lm_evals_tasks(task_folder: Path) -> None:
    assert set(load(task_folder, "eg_l*", "eg_roll*").names) == {"eg_lastword", "eg_rolling"}


def test_missing_data_file_is_named(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(EvaluationError, match=r"'eg_lastword'.*data \('json'\).*test\.jsonl"):
        load(tmp_path, "eg_lastword")


def test_error_in_a_tasks_own_file_is_reported_with_the_task(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    (tmp_path / "code.py").write_text("import no_such_module\n")
    with pytest.raises(EvaluationError, match=r"(?s)'eg_custom' cannot be loaded.*no_such_module"):
        load(tmp_path, "eg_custom")


def test_missing_task_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load(tmp_path / "nowhere", "eg_lastword")


def test_no_task_is_an_error(task_folder: Path) -> None:
    with pytest.raises(UsageError, match="no task"):
        load(task_folder)


def test_unsafe_task_is_refused_unless_confirmed(task_folder: Path) -> None:
    with pytest.raises(UsageError, match="'eg_unsafe' is marked as unsafe") as error:
        load(task_folder, "eg_unsafe")
    assert "--confirm_run_unsafe_code" in error.value.hint
    assert load(task_folder, "eg_unsafe", confirm_unsafe=True).names == ("eg_unsafe",)


def test_multimodal_task_is_refused(task_folder: Path) -> None:
    with pytest.raises(UsageError, match="images or sound"):
        load(task_folder, "eg_picture")


def test_task_not_in_the_set_is_an_error(task_folder: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'eg_lastword'"):
        load(task_folder, "eg_lastword").requests("eg_lastwort")


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"limit": -3},
        {"limit": 2.5},
        {"num_fewshot": -1},
        {"fewshot_as_multiturn": True},
    ],
)
def test_options_that_lm_eval_would_misread_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        TaskOptions(**options)  # type: ignore[arg-type]


def test_fewshot_number_that_a_task_fixes_is_said_not_to_apply(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    body = 'output_type: loglikelihood\ndoc_to_text: "{{text}}"\ndoc_to_target: " end"\n'
    write_task(tmp_path, "eg_zero", body + "num_fewshot: 0\n")
    tasks = load(tmp_path, "eg_zero", "eg_choice", num_fewshot=3)
    assert "num_fewshot 3 was not applied" in tasks.requests("eg_zero").notes[0]
    assert tasks.requests("eg_zero").run["num_fewshot"] == 0
    assert tasks.requests("eg_choice").run["num_fewshot"] == 3
    assert tasks.requests("eg_choice").notes == ()


def test_gen_kwargs_override_the_tasks_own(task_folder: Path) -> None:
    tasks = load(task_folder, "eg_generate", gen_kwargs={"max_gen_toks": 3})
    requests = tasks.requests("eg_generate")
    assert requests.requests[0].arguments[1] == {"until": ["."], "max_gen_toks": 3}
    assert requests.run["generation_kwargs"] == {"until": ["."], "max_gen_toks": 3}
