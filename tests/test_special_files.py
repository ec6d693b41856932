"""A pipe, a socket or a device in place of a file is refused at once, by every reader."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evalguard.comparison.stored_base import read_baseline
from evalguard.comparison.stored_run import read_stored_run
from evalguard.config.guard_search import load_guards
from evalguard.config.options import CompareOptions
from evalguard.distributions.reference_file import ReferenceFile
from evalguard.engine.sources import SideSpec, resolve_side
from evalguard.errors import EvalguardError
from evalguard.harness.finished_runs.foreign_json import read_file, read_lines
from evalguard.harness.finished_runs.lmeval_run import find_run
from evalguard.harness.tasks import TaskIndex
from evalguard.models.hyperparameters_read import read_hyperparameter_file
from evalguard.nights.history.database import connect
from evalguard.regular_file import NoRegularFileError, check_regular, is_special, open_regular
from evalguard.tensor_files.name_map_file import read_name_map
from evalguard.tensor_files.opening import open_tensors
from evalguard.tracing.traced_documents import DocumentChoice, read_own_documents


@pytest.fixture(autouse=True)
def _no_reader_waits() -> Iterator[None]:
    """Reading a pipe waits for ever: a test that does is ended."""

    def end(*_: Any) -> None:
        raise TimeoutError("a reader waits for the other end of a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


def _side(path: Path) -> Any:
    side = SideSpec(role="base", spec=str(path), model_args={}, assignment={})
    guards = load_guards(None, cwd=path.parent, allow_code=False)
    return resolve_side(side, guards, CompareOptions(), cwd=path.parent)


def _index_of_pipes(path: Path) -> Any:
    folder = path.parent / "sharded"
    folder.mkdir()
    os.link(path, folder / "model-00001-of-00002.safetensors", follow_symlinks=False)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return open_tensors(folder)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a guard file": ("g.yaml", lambda path: load_guards(path, cwd=path.parent, allow_code=False)),
    "a model or a run": ("m", _side),
    "a stored run": ("result.json", read_stored_run),
    "the folder of a stored run": ("result.json", lambda path: read_stored_run(path.parent)),
    "a stored base": ("b.json", lambda path: read_baseline(path, base="", candidate="")),
    "a run of lm-eval": ("r.json", find_run),
    "a results file": ("results_2025.json", read_file),
    "samples": ("samples_t.jsonl", lambda path: list(read_lines(path))),
    "tasks": ("t.yaml", lambda path: TaskIndex([path.parent])),
    "tensors": ("m.safetensors", open_tensors),
    "tensors of a GGUF file": ("m.gguf", open_tensors),
    "tensors in parts": ("p", _index_of_pipes),
    "a name map": ("n.yaml", read_name_map),
    "a reference": ("r.parquet", ReferenceFile),
    "a history": ("h.sqlite", lambda path: connect(path, create=False)),
    "hyper-parameters": ("c.json", read_hyperparameter_file),
    "a text to trace": ("t.txt", lambda path: read_own_documents(DocumentChoice(texts=(path,)))),
    "inputs to trace": ("i.npz", lambda path: read_own_documents(DocumentChoice(inputs=(path,)))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_opens_what_is_no_regular_file(reader: str, kind: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    KINDS[kind](path)
    with pytest.raises(EvalguardError, match=r"regular file|no tensor files"):
        read(path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_there_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    KINDS[kind](path)
    assert is_special(path)
    with pytest.raises(NoRegularFileError) as raised:
        open_regular(path)
    assert raised.value.strerror == f"it is {kind}, not a regular file"


def test_files_and_folders_and_links_to_them_are_none_of_these(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("text")
    (tmp_path / "l").symlink_to(tmp_path / "f")
    for path in (tmp_path, tmp_path / "f", tmp_path / "l"):
        check_regular(path)
    with open_regular(tmp_path / "l") as file:
        assert file.read() == b"text"
    assert not is_special(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
