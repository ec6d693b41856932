"""The journal of a bisection: what was written is read back, whatever happened to the file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_disks import mounted_disk

from evalguard.errors import StoreError
from evalguard.store.journal import Journal, JournalEntry, decode_line, encode_line

HEADER = {"evalguard": "1", "metric": ["task", "none", "acc"], "seed": 1234}


def entry(number: int, **changes: object) -> JournalEntry:
    fields: dict[str, object] = {
        "assignment": f"a{number // 3}",
        "block": f"b{number % 3}",
        "outcome": "scored",
        "values": np.array([0.1 * number, -1e-300, 1.0 / 3.0]),
        "settings": ("norm", "scale"),
        "seconds": 0.25,
    }
    return JournalEntry(**{**fields, **changes})  # type: ignore[arg-type]


def told(journal: Journal, number: int) -> dict[str, object] | None:
    found = journal.get(f"a{number // 3}", f"b{number % 3}")
    return None if found is None else dict(found.as_record())


def written(path: Path, numbers: int) -> bytes:
    journal = Journal.opened(path, HEADER)
    for number in range(numbers):
        journal.add(entry(number))
    journal.close()
    return path.read_bytes()


def test_what_was_added_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    written(tmp_path / "runs" / "journal.jsonl", 7)
    journal = Journal.opened(tmp_path / "runs" / "journal.jsonl", HEADER)
    assert [told(journal, number) for number in range(7)] == [
        dict(entry(number).as_record()) for number in range(7)
    ]
    assert len(journal) == 7
    assert told(journal, 7) is None
    assert journal.problems == []
    journal.close()


@given(st.lists(st.floats(width=64), max_size=6))
def test_every_number_comes_back_as_it_was(values: list[float]) -> None:
    record = decode_line(
        encode_line(entry(0, values=np.array(values, dtype=np.float64)).as_record())
    )
    assert record is not None
    assert np.array_equal(JournalEntry.of(record).values, np.array(values), equal_nan=True)  # type: ignore[arg-type]


def test_every_line_is_json_that_people_can_read(tmp_path: Path) -> None:
    lines = written(tmp_path / "journal.jsonl", 1).splitlines()
    header, first = (json.loads(line) for line in lines)
    assert header["schema"] == "evalguard.journal/1"
    assert header["of"] == HEADER
    assert first["settings"] == ["norm", "scale"]
    assert first["outcome"] == "scored"


def test_refusals_are_kept_with_their_reason(tmp_path: Path) -> None:
    journal = Journal.opened(tmp_path / "j", HEADER)
    journal.add(entry(0, outcome="crashed", values=None, block="", reason="SIGSEGV\nin a kernel"))
    journal.close()
    again = Journal.opened(tmp_path / "j", HEADER)
    found = again.get("a0", "")
    assert found is not None
    assert (found.outcome, found.values, found.reason) == ("crashed", None, "SIGSEGV\nin a kernel")
    again.close()


def test_a_journal_cut_at_any_byte_keeps_every_finished_line(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", 3)
    for length in range(len(whole) + 1):  # every byte of the last line, and some before
        if length % 7 and length < whole.rfind(b"\n", 0, -1) - 2:
            continue
        path = tmp_path / f"cut-{length}"
        path.write_bytes(whole[:length])
        journal = Journal.opened(path, HEADER)
        finished = max(whole[:length].count(b"\n") - 1, 0)
        assert len(journal) == finished
        torn = length not in (0, *(i + 1 for i, c in enumerate(whole) if c == ord("\n")))
        assert [("never finished" in problem) for problem in journal.problems] == [True] * torn
        journal.add(entry(5))
        journal.close()
        again = Journal.opened(path, HEADER)
        assert len(again) == finished + 1
        assert again.problems == []
        again.close()


@settings(max_examples=40)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_changed_bit_costs_a_line_and_never_changes_a_number(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    data = bytearray(written(path, 4))
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(bytes(data))
    journal = Journal.opened(path, HEADER)
    kept = [told(journal, number) for number in range(4)]
    journal.close()
    assert all(found in (None, dict(entry(n).as_record())) for n, found in enumerate(kept))
    in_header = position % len(data) <= data.find(b"\n")
    if not in_header:
        assert sum(found is None for found in kept) <= 2  # a line, and one it is joined with
        assert None not in kept or journal.problems


def test_the_last_of_two_entries_counts(tmp_path: Path) -> None:
    journal = Journal.opened(tmp_path / "j", HEADER)
    journal.add(entry(0, outcome="timed_out", values=None))
    journal.add(entry(0))
    journal.close()
    again = Journal.opened(tmp_path / "j", HEADER)
    assert told(again, 0) == dict(entry(0).as_record())
    again.close()


def test_another_bisections_entries_are_not_used_and_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, 3)
    other = Journal.opened(path, {**HEADER, "seed": 5})
    assert len(other) == 0
    assert "3 finished blocks of another bisection" in other.problems[0]
    other.add(entry(0))
    other.close()
    first = Journal.opened(path, HEADER)
    assert len(first) == 3
    assert "1 finished blocks of another bisection" in first.problems[0]
    first.add(entry(3))
    first.close()
    again = Journal.opened(path, HEADER)
    assert len(again) == 4
    again.close()


def test_a_damaged_header_lends_its_entries_to_no_other(tmp_path: Path) -> None:
    path = tmp_path / "j"
    end = len(written(path, 1))
    other = {**HEADER, "metric": ["task", "none", "perplexity"]}
    journal = Journal.opened(path, other)
    journal.add(entry(0, values=np.array([7.0])))
    journal.close()
    data = bytearray(path.read_bytes())
    data[end + 5] ^= 1
    path.write_bytes(bytes(data))
    first = Journal.opened(path, HEADER)
    assert told(first, 0) == dict(entry(0).as_record())
    first.close()


def test_searches_of_one_bisection_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for metric in ("acc", "perplexity", "acc"):
        journal = Journal.opened(path, HEADER, search={"metric": metric})
        assert journal.problems == []
        assert len(journal) == 0 or metric == "acc"
        journal.add(entry(1, values=np.array([float(len(metric))])))
        journal.close()
    again = Journal.opened(path, HEADER, search={"metric": "perplexity"})
    found = again.get("a0", "b1")
    assert found is not None
    assert found.values is not None
    assert found.values.tolist() == [10.0]
    again.close()


def test_two_processes_do_not_write_one_journal(tmp_path: Path) -> None:
    journal = Journal.opened(tmp_path / "j", HEADER)
    with pytest.raises(StoreError, match="another process is writing the journal") as refused:
        Journal.opened(tmp_path / "j", HEADER)
    assert refused.value.hint
    journal.close()
    journal.close()
    Journal.opened(tmp_path / "j", HEADER).close()
    assert os.listdir(tmp_path) == ["j"]


_KILLED = """
import sys
from pathlib import Path
import numpy as np
from evalguard.store.journal import Journal, JournalEntry
journal = Journal.opened(Path(sys.argv[1]), {"evalguard": "1"})
for number in range(10**6):
    values = np.ones(500)
    entry = JournalEntry(assignment=f"a{number}", block="b", outcome="scored", values=values)
    journal.add(entry)
    print(number, flush=True)
"""


def test_a_killed_process_leaves_every_entry_that_it_added(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path / "j")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    journal = Journal.opened(tmp_path / "j", {"evalguard": "1"})
    assert all(journal.get(f"a{int(number)}", "b") for number in said)
    assert len(journal) in (len(said), len(said) + 1)
    journal.close()


@pytest.mark.parametrize("whole", [True, False])
def test_ctrl_c_while_writing_costs_no_line_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    journal = Journal.opened(tmp_path / "j", HEADER)
    journal.add(entry(0))
    write = os.write

    def interrupted(descriptor: int, data: memoryview) -> int:
        write(descriptor, data if whole else data[:7])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.add(entry(1))
    monkeypatch.undo()
    journal.add(entry(2))
    journal.close()
    again = Journal.opened(tmp_path / "j", HEADER)
    assert (len(again), again.problems) == (3 if whole else 2, [])
    again.close()


def test_a_full_disk_is_an_error_and_spoils_nothing(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", size="64k") as disk:
        journal = Journal.opened(disk / "j", HEADER)
        journal.add(entry(0))
        large = entry(1, values=np.full(10_000, 1.0 / 3.0))
        with pytest.raises(StoreError, match="the disk is full"):
            journal.add(large)
        journal.add(entry(2))
        journal.close()
        again = Journal.opened(disk / "j", HEADER)
        assert again.problems == []
        assert told(again, 0)
        assert told(again, 2)
        again.close()


def test_a_folder_that_takes_no_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file, not a folder"):
        Journal.opened(tmp_path / "file" / "j", HEADER)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "j").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot write to"):
        Journal.opened(tmp_path / "j", HEADER)
    assert not (tmp_path / "elsewhere").exists()


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal.opened(tmp_path / "j", HEADER)
    journal.close()
    with pytest.raises(StoreError, match="is closed"):
        journal.add(entry(0))
