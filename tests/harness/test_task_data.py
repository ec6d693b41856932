"""Where a task's documents come from: what its configuration and the downloaded dataset say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evalguard.harness.surroundings import describe_data, read_task_data

COMMIT = "210d026faf9955653af8916fad021475a3f00453"
# As datasets 5.2 writes it down for allenai/ai2_arc.
DOWNLOADED = f"hf://datasets/allenai/ai2_arc@{COMMIT}/ARC-Easy/test-00000-of-00001.parquet"


def loaded(path: str, *, urls: tuple[str, ...] = (), **config: str) -> Any:
    names = ("dataset_name", "test_split", "validation_split")
    told = {name: config.get(name) for name in names}
    info = SimpleNamespace(download_checksums=dict.fromkeys(urls))
    split = told["test_split"] or told["validation_split"]
    data = {split: SimpleNamespace(info=info)}
    return cast("Any", SimpleNamespace(config=SimpleNamespace(dataset_path=path, **told),
                                       dataset=data))  # fmt: skip


def test_a_dataset_of_the_hub_is_told_with_part_split_and_the_commit_that_was_downloaded() -> None:
    task = loaded("ai2_arc", urls=(DOWNLOADED,), dataset_name="ARC-Easy", test_split="test",
                  validation_split="validation")  # fmt: skip
    assert read_task_data(task) == {
        "dataset": "allenai/ai2_arc", "config": "ARC-Easy", "split": "test", "revision": COMMIT,
    }  # fmt: skip


def test_the_split_is_the_one_that_lm_eval_asks() -> None:
    assert describe_data({"dataset_path": "o/d", "validation_split": "dev"})["split"] == "dev"


@pytest.mark.parametrize(
    "urls", [(), ("https://example.org/a.zip",), ("hf://datasets/o/d@main/x",)]
)
def test_without_a_commit_none_is_told(urls: tuple[str, ...]) -> None:
    assert read_task_data(loaded("o/d", urls=urls, test_split="test")) == {
        "dataset": "o/d",
        "split": "test",
    }


@pytest.mark.parametrize("path", ["json", "csv", "parquet", "/data/mine", "../mine", "a b/c", None])
def test_data_of_ones_own_is_no_dataset_of_the_hub(path: str | None) -> None:
    assert describe_data({"dataset_path": path, "test_split": "test"}) == {}


def test_a_folder_is_no_dataset_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert describe_data({"dataset_path": "mine"}) == {}
