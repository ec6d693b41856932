"""Scores in another unit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from breakages import FAILS, NOTHING_KNOWN, Kind
from written_runs import (
    WrittenRun,
    answer,
    loglikelihood,
)

OTHER_UNITS = Kind("other units")


@OTHER_UNITS.breaks(FAILS, r"words")
def log_likelihoods_are_in_bits(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, loglikelihood(row) / math.log(2.0))


@OTHER_UNITS.breaks(NOTHING_KNOWN, r"above 0")
def log_likelihoods_have_the_other_sign(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, -loglikelihood(row))


@OTHER_UNITS.breaks(NOTHING_KNOWN, r"above 0")
def log_likelihoods_are_probabilities(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, math.exp(loglikelihood(row)))


@OTHER_UNITS.breaks(FAILS, r"texts")
def whole_texts_are_in_bits(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["texts"].rows:
        answer(row, loglikelihood(row) / math.log(2.0))


@OTHER_UNITS.breaks(FAILS, r"words")
def log_likelihoods_are_doubled(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, 2.0 * loglikelihood(row))


def _content(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    (file,) = folder.glob("results_*.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


@OTHER_UNITS.damages(NOTHING_KNOWN, r"(of one run|samples give)")
def the_results_are_in_percent(folder: Path) -> None:
    def percent(content: dict[str, Any]) -> None:
        values = content["results"]["choices"]
        values["acc,none"] *= 100.0

    _content(folder, percent)
