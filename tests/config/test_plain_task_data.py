"""Tasks of a guard file that was only found read plain data of the working folder, or the hub's."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalguard.config.task_file_code import find_task_code

INSIDE = [
    "dataset_path: EleutherAI/lambada_openai\ndataset_name: default",
    "dataset_path: xnli",
    "dataset_path: json\ndataset_kwargs: {data_files: {test: data/a.jsonl, dev: [data/b.jsonl]}}",
    "dataset_path: text\ndataset_kwargs: {data_files: 'data/*.txt', sample_by: line}",
    "dataset_path: ./data",
    "dataset_path: json\ndataset_kwargs: {data_dir: data}",
    "dataset_path: json\ndataset_kwargs: {data_files: not/there/yet.jsonl}",
    "task: a group\ntask_list: [{dataset_kwargs: {data_files: data/a.jsonl}}]",
]
OUTSIDE = {
    "absolute": "data_files: /etc/passwd",
    "above": "data_files: ../x.jsonl",
    "home": "data_files: ~/.ssh/id_rsa",
    "of another user": "data_files: ~root/x",
    "address": "data_files: 'http://169.254.169.254/latest'",
    "chained": "data_files: 'zip://x::data/a.zip'",
    "nested": "data_files: {test: [data/a.jsonl, {x: /etc/passwd}]}",
    "link": "data_files: data/link.txt",
    "link by pattern": "data_files: 'data/*.txt'",
    "link in a folder": "data_dir: data",
    "folder": "data_dir: /",
}
DENIED = {
    "query": ("dataset_path: sql", "dataset_path sql can run code"),
    "pickles": ("dataset_path: webdataset", "can run code"),
    "script": ("dataset_path: data/load.py", "can run code"),
    "local folder": ("dataset_path: /home", "lies outside"),
    "address": ("dataset_path: 'https://host/x'", "lies outside"),
    "writes": ("dataset_kwargs: {cache_dir: /home}", "cache_dir is not known"),
    "credentials": ("dataset_kwargs: {storage_options: {key: x}}", "storage_options is not known"),
}


def found_in(folder: Path, text: str) -> str:
    (folder / "tasks").mkdir()
    (folder / "tasks" / "t.yaml").write_text(text)
    return find_task_code(folder / "tasks", root=folder)


@pytest.mark.parametrize("text", INSIDE)
def test_plain_data_of_the_folder_and_of_the_hub_needs_no_trust(tmp_path: Path, text: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").touch()
    assert found_in(tmp_path, text) == ""


@pytest.mark.parametrize("case", OUTSIDE)
def test_data_from_outside_the_folder_needs_trust(tmp_path: Path, case: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link.txt").symlink_to("/etc/passwd")
    text = f"dataset_path: text\ndataset_kwargs: {{{OUTSIDE[case]}}}"
    assert f"t.yaml:2: {OUTSIDE[case].partition(':')[0]} " in found_in(tmp_path, text)


@pytest.mark.parametrize("case", DENIED)
def test_builders_and_arguments_that_do_more_than_read_need_trust(
    tmp_path: Path, case: str
) -> None:
    text, what = DENIED[case]
    assert what in found_in(tmp_path, text)
