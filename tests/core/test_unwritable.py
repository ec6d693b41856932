"""A folder of Hugging Face's libraries that cannot be written is named, with its variable."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from evalguard.core.redaction import HF_HINT, unwritable
from evalguard.errors import EvaluationError
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks
from evalguard.models.failures import explain_load_failures

HOME = {"HOME": "/home/mara"}
KEPT = "/home/mara/.cache/huggingface/datasets"


def refused(number: int, path: str = KEPT) -> OSError:
    return OSError(number, "as the system says", path)


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.EACCES, "no write permission"),
        (errno.EROFS, "the file system is read-only"),
        (errno.ENOSPC, "the disk is full"),
        (errno.ENOENT, "as the system says"),
        (errno.ENOTDIR, "as the system says"),
    ],
)
def test_the_path_and_the_reason_are_told(number: int, why: str) -> None:
    assert unwritable(refused(number), HOME) == f"{KEPT} cannot be written: {why}"


def test_it_is_found_behind_another_error_and_wherever_the_libraries_keep_things() -> None:
    wrapped = ValueError("no tokenizer")
    wrapped.__cause__ = refused(errno.EACCES)
    assert unwritable(wrapped, HOME) is not None
    assert unwritable(refused(errno.EACCES, "/data/hub/x"), {**HOME, "HF_HOME": "/data"})
    assert unwritable(refused(errno.EACCES, "/c/huggingface/x"), {"XDG_CACHE_HOME": "/c"})


def test_other_files_and_other_errors_are_not_meant() -> None:
    assert unwritable(refused(errno.ENOENT, "/models/orig/config.json"), HOME) is None
    assert unwritable(refused(errno.EACCES, "/models/orig/config.json"), HOME) is None
    assert unwritable(refused(errno.EIO), HOME) is None
    assert unwritable(ValueError(KEPT), HOME) is None


def test_tasks_and_models_say_which_variable_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "t.yaml").write_text("task: t\n")
    error = refused(errno.EACCES, str(tmp_path / "datasets"))

    def load(*_: object) -> None:
        raise error

    monkeypatch.setattr("lm_eval.tasks.TaskManager.load", load)
    with pytest.raises(EvaluationError, match=r"task 't' cannot be loaded: .*/datasets") as of_task:
        load_tasks(["t"], options=TaskOptions(include_paths=(tmp_path,)))
    assert of_task.value.hint == HF_HINT
    with (
        pytest.raises(EvaluationError, match="datasets cannot be written: no write") as of_model,
        explain_load_failures("org/model", {}, {}),
    ):
        raise error
    assert of_model.value.hint == HF_HINT
