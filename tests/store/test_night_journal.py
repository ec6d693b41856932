"""The journal of a night: what was written is read back, whatever happened to the file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_disks import mounted_disk

from evalguard.errors import StoreError
from evalguard.nights.night_folders import NightJournal, read_last_night

HEAD = {"schema": "night", "guard": "a"}


def written(folder: Path, numbers: int) -> bytes:
    journal = NightJournal(folder)
    journal.begin(HEAD)
    for number in range(numbers):
        journal.add({"pair": number})
    return journal.path.read_bytes()


def test_every_line_is_json_that_people_can_read(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in written(tmp_path, 2).splitlines()]
    assert [line.get("pair") for line in lines] == [None, 0, 1]


def test_a_journal_cut_at_any_byte_keeps_every_finished_line(tmp_path: Path) -> None:
    whole = written(tmp_path, 3)
    for length in range(len(whole) + 1):
        (tmp_path / "journal.jsonl").write_bytes(whole[:length])
        found = NightJournal(tmp_path)
        lines = whole[:length].count(b"\n")
        assert (bool(found.head), len(found.records)) == (lines > 0, max(lines - 1, 0))
        assert found.damaged == 0
        found.add({"pair": "next"})
        assert NightJournal(tmp_path).damaged == 0


@settings(max_examples=40)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_changed_bit_costs_a_line_and_never_changes_a_record(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("night")
    data = bytearray(written(folder, 4))
    data[position % len(data)] ^= 1 << bit
    (folder / "journal.jsonl").write_bytes(bytes(data))
    found = NightJournal(folder)
    assert all(record in [{"pair": number} for number in range(4)] for record in found.records)
    if position % len(data) > data.find(b"\n"):
        assert len(found.records) >= 2  # a line, and one it is joined with


_KILLED = """
import sys
from pathlib import Path
from evalguard.nights.night_folders import NightJournal
journal = NightJournal(Path(sys.argv[1]))
journal.begin({"schema": "night"})
for number in range(10**6):
    journal.add({"pair": number, "more": "x" * 500})
    print(number, flush=True)
"""


def test_a_killed_process_leaves_every_record_that_it_added(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    found = [record["pair"] for record in NightJournal(tmp_path).records]
    assert found[: len(said)] == [int(number) for number in said]
    assert len(found) in (len(said), len(said) + 1)


def test_a_full_disk_is_an_error_in_words(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", size="64k") as disk:
        written(disk, 1)
        with pytest.raises(StoreError, match="the disk is full"):
            NightJournal(disk).add({"pair": "x" * 200_000})
        assert NightJournal(disk).records == [{"pair": 0}]


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


def test_a_night_of_a_later_version_is_left_out_with_a_note(tmp_path: Path) -> None:
    for name, schema in (("20260101T020000Z", "1"), ("20260102T020000Z", "2")):
        (tmp_path / name).mkdir()
        night = {"schema": f"evalguard.nightly/{schema}", "guard": "evalguard.yaml"}
        (tmp_path / name / "night.json").write_text(
            json.dumps({**night, "created": name, "pairs": []})
        )
    notes: list[str] = []
    before = tmp_path / "20260103T020000Z"
    found = read_last_night(tmp_path, "evalguard.yaml", before=before, note=notes.append)
    assert found == ("20260101T020000Z", ())
    assert notes == [
        f"{tmp_path / '20260102T020000Z' / 'night.json'} is left out, and this night compared with "
        "one before it: it was written by a later evalguard: update evalguard"
    ]
