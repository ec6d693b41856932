"""Files that were damaged or mixed up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from breakages import NOTHING_KNOWN, Kind
from written_runs import (
    WrittenRun,
    answer,
    healthy_run,
    loglikelihood,
)

DOUBLED = Kind("doubled documents")
TRUNCATED = Kind("truncated files")


def _lines(folder: Path, change: Callable[[list[str]], list[str]], task: str = "words") -> None:
    (file,) = folder.glob(f"samples_{task}_*")
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(change(lines)), encoding="utf-8")


@DOUBLED.damages(NOTHING_KNOWN, r"stands here twice")
def one_line_stands_twice(folder: Path) -> None:
    _lines(folder, lambda lines: [*lines, lines[5]])


@DOUBLED.damages(NOTHING_KNOWN, r"stands here twice")
def the_samples_were_appended_to(folder: Path) -> None:
    _lines(folder, lambda lines: lines * 2)


@DOUBLED.breaks(NOTHING_KNOWN, r"(stands here twice|documents only in)")
def one_document_took_the_number_of_another(_: WrittenRun, cand: WrittenRun) -> None:
    cand.tasks["words"].rows[5]["doc_id"] = 6


@DOUBLED.breaks(NOTHING_KNOWN, r"documents \(doc_hash\) differ")
def one_document_was_asked_twice_and_another_not(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["words"].rows
    rows[6] = {**json.loads(json.dumps(rows[5])), "doc_id": 6}


@DOUBLED.damages(NOTHING_KNOWN, r"(stands here|twice)")
def a_document_has_two_lines_under_one_filter(folder: Path) -> None:
    _lines(folder, lambda lines: [lines[0], *lines], "numbers")


@TRUNCATED.damages(NOTHING_KNOWN, r"samples_words_.*:\d+")
def a_samples_file_ends_in_a_line(folder: Path) -> None:
    _lines(folder, lambda lines: [*lines[:100], lines[100][:50]])


@TRUNCATED.damages(NOTHING_KNOWN, r"(samples give|documents only in|of one run)")
def a_samples_file_ends_after_a_line(folder: Path) -> None:
    _lines(folder, lambda lines: lines[:100])


@TRUNCATED.damages(NOTHING_KNOWN, r"empty")
def a_samples_file_is_empty(folder: Path) -> None:
    _lines(folder, lambda _: [])


@TRUNCATED.damages(NOTHING_KNOWN, r"results_")
def a_results_file_ends_early(folder: Path) -> None:
    (file,) = folder.glob("results_*.json")
    file.write_bytes(file.read_bytes()[:500])


@TRUNCATED.damages(NOTHING_KNOWN, r"(of one run|samples give)")
def results_are_those_of_another_run(folder: Path) -> None:
    other = healthy_run()
    for row in other.tasks["words"].rows:
        answer(row, loglikelihood(row) - 0.3)
    made = other.write(folder.parent / "other")
    (file,) = made.glob("results_*.json")
    shutil.copy(file, next(folder.glob("results_*.json")))


@TRUNCATED.damages(NOTHING_KNOWN, r"samples_choices")
def a_samples_file_lost_its_middle(folder: Path) -> None:
    _lines(
        folder, lambda lines: [*lines[:50], lines[50][:30] + lines[90][40:], *lines[91:]], "choices"
    )
