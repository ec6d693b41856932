"""Tasks that cannot be run: one clear message each, before a model is loaded where possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_world import SmallWorld


def test_a_task_that_does_not_exist_names_the_nearest_and_where_was_searched(
    refused_pair: Any, world: SmallWorld, few_tasks: None
) -> None:
    ran = refused_pair(2, "orig", "same", "--tasks", "sw_wrod")
    assert "no lm-eval task, group or tag 'sw_wrod'; did you mean 'sw_word'?" in ran.err
    assert str(world.tasks) in ran.err
    assert "lm-eval's own" in ran.err
    assert "loading orig" not in ran.err


def test_no_tasks_at_all_says_where_to_name_them(refused: Any, world: SmallWorld) -> None:
    llama = world.models["llama"]
    ran = refused(2, "compare", "--base", llama, "--cand", llama)
    assert "no tasks to compare on" in ran.err
    assert "--tasks A,B" in ran.err


def test_no_tasks_of_folders_that_are_not_there_says_what_their_names_were_taken_for(
    refused: Any,
) -> None:
    ran = refused(2, "compare", "--base", "results/original", "--cand", "results/my-port")
    assert "no folder results/original or results/my-port here (taken for a hub id)" in ran.err


def test_a_task_folder_that_a_guard_file_names_is_looked_for_beside_it(
    refused: Any, world: SmallWorld, tmp_path: Path
) -> None:
    (tmp_path / "guard.yaml").write_text(
        f"models:\n  orig: {{model_args: {{pretrained: {world.models['llama']}}}}}\n"
        "tasks: [sw_word]\ninclude_path: tsaks\n"
    )
    sides = ("--base", "orig", "--cand", "orig")
    ran = refused(2, "compare", "--config", "guard.yaml", *sides)
    assert f"guard.yaml:4: include_path: there is no folder {tmp_path / 'tsaks'}" in ran.err
    assert "a relative path starts at the guard file" in ran.err


def test_a_task_file_that_is_no_yaml_is_named(
    refused_pair: Any, few_tasks: None, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "t.yaml").write_text("task: mine_t\ndoc_to_text: [unclosed\n")
    ran = refused_pair(2, "orig", "same", "--include-path", "mine", "--tasks", "mine_t")
    assert f"{tmp_path / 'mine' / 't.yaml'} names it" in ran.err


def test_a_task_without_its_data_says_which(refused_pair: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "t.yaml").write_text(
        "task: mine_t\ndataset_path: nobody/nothing\ntest_split: test\n"
        "output_type: loglikelihood\ndoc_to_text: a\ndoc_to_target: b\n"
    )
    ran = refused_pair(3, "orig", "same", "--include-path", "mine", "--tasks", "mine_t")
    assert "'nobody/nothing'" in ran.err
    assert "needs a network once" in ran.err


def test_a_broken_line_of_a_tasks_data_is_named(
    refused_pair: Any, few_tasks: None, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    data = tmp_path / "mine" / "questions.jsonl"
    (tmp_path / "mine" / "t.yaml").write_text(
        "task: mine_t\ndataset_path: json\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        "output_type: loglikelihood\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
    )
    for content, fault in (
        (b'{"q": "x", "a": "y"}\n{"q": "\xe9", "a": "y"}\n', ":2: not UTF-8 (byte 0xe9, column 8)"),
        (b'{"q": "x", "a" "y"}\n', ":1: not JSON: Expecting ':' delimiter, column 16"),
        (b"", ": it holds no documents"),
    ):
        data.write_bytes(content)
        ran = refused_pair(2, "orig", "same", "--include-path", "mine", "--tasks", "mine_t")
        assert f"{data}{fault}" in ran.err


def test_a_chat_template_that_the_model_lacks(refused_pair: Any) -> None:
    ran = refused_pair(3, "orig", "same", "--apply_chat_template")
    assert "chat template" in ran.err


def test_multiturn_examples_without_a_chat_template(refused_pair: Any, world: Any) -> None:
    guard = world.saying("fewshot_as_multiturn: true")
    ran = refused_pair(2, "orig", "same", "--config", guard)
    assert "--apply_chat_template" in ran.err
