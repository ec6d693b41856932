"""The journal of a night writes to its own file, and to nothing that a link leads to."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalguard.errors import StoreError
from evalguard.store.journal import NightJournal


def test_a_night_comes_back_without_the_line_that_a_crash_cut(tmp_path: Path) -> None:
    journal = NightJournal(tmp_path)
    journal.begin({"schema": "night", "guard": "a"})
    journal.add({"pair": "one"})
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + b'{"pair": "tw')
    found = NightJournal(tmp_path)
    assert (found.head["guard"], found.records[0]["pair"], found.damaged) == ("a", "one", 0)
    assert found.path.read_bytes() == whole


def test_what_a_link_leads_to_is_neither_cut_nor_written(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("mine, and no line end")
    night = tmp_path / "night"
    night.mkdir()
    (night / "journal.jsonl").symlink_to(token)
    with pytest.raises(StoreError, match="cannot be read"):
        NightJournal(night)
    assert token.read_text() == "mine, and no line end"


def test_a_link_that_leads_nowhere_makes_no_file(tmp_path: Path) -> None:
    night = tmp_path / "night"
    night.mkdir()
    journal = NightJournal(night)
    (night / "journal.jsonl").symlink_to(tmp_path / "made")
    with pytest.raises(StoreError):
        journal.begin({"schema": "night"})
    assert not (tmp_path / "made").exists()
