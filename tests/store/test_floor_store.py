"""The floor store gives back what was put for a model, a task and an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalguard.errors import StoreError
from evalguard.floors.known_floors import FloorStore

MODEL, TASK, HERE, THERE = "00aa", "11bb", "22cc", "33dd"


def test_a_floor_comes_back_and_the_newest_one_stays(tmp_path: Path) -> None:
    store = FloorStore(tmp_path)
    assert store.get(MODEL, TASK, HERE) is None
    path = store.put(MODEL, TASK, HERE, {"n": 1})
    assert path.parent == tmp_path / MODEL / TASK
    assert store.put(MODEL, TASK, HERE, {"n": 2}) == path
    assert store.get(MODEL, TASK, HERE) == {"n": 2}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_floors_of_other_environments_are_listed_apart(tmp_path: Path) -> None:
    store = FloorStore(tmp_path)
    store.put(MODEL, TASK, THERE, {"at": "there"})
    assert store.get(MODEL, TASK, HERE) is None
    assert list(store.others(MODEL, TASK, HERE)) == [{"at": "there"}]
    assert list(store.others(MODEL, TASK, THERE)) == []
    assert list(store.others(MODEL, "no-task", HERE)) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "it is not JSON"), (b"[]", "not a JSON object"), (b"\xff", "not JSON")],
)
def test_a_damaged_floor_counts_as_absent_and_is_said(
    tmp_path: Path, content: bytes, said: str
) -> None:
    store = FloorStore(tmp_path)
    store.put(MODEL, TASK, HERE, {}).write_bytes(content)
    assert store.get(MODEL, TASK, HERE) is None
    assert said in store.problems[0]


def test_a_floor_that_cannot_be_kept_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / MODEL).write_text("a file where a folder is needed")
    with pytest.raises(StoreError, match="is a file, not a folder") as raised:
        FloorStore(tmp_path).put(MODEL, TASK, HERE, {})
    assert "--cache-dir" in raised.value.hint
    with pytest.raises(StoreError, match="not a digest"):
        FloorStore(tmp_path).put("..", TASK, HERE, {})
