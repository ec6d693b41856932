"""Answers in which the filters of a task find nothing."""

from __future__ import annotations

import re

from breakages import FAILS, NOTHING_KNOWN, Kind
from written_runs import (
    N,
    WrittenRun,
    texts_of,
    write_texts,
)

EXTRACTION = Kind("nothing extracted")


_PROSE = "The answer is not a number at all."


@EXTRACTION.breaks(NOTHING_KNOWN, r"strict-match.*(no answer|nothing|found none)")
def the_filters_find_nothing_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    write_texts(base.tasks["numbers"], ["I would rather not say."] * N)
    write_texts(cand.tasks["numbers"], [f"{_PROSE} {'x' * (i % 9)}" for i in range(N)])


@EXTRACTION.breaks(NOTHING_KNOWN, r"strict-match.*(no answer|nothing|found none)")
def the_filters_find_nearly_nothing_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        texts = texts_of(run.tasks["numbers"])
        write_texts(run.tasks["numbers"], [t if i < 3 else _PROSE for i, t in enumerate(texts)])


@EXTRACTION.breaks(NOTHING_KNOWN, r"strict-match.*(no answer|nothing|found none)")
def only_the_strict_filter_finds_nothing(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        texts = texts_of(run.tasks["numbers"])
        write_texts(run.tasks["numbers"], [t.replace("#### ", "= ") for t in texts])


@EXTRACTION.breaks(FAILS, r"strict-match.*form")
def the_port_leaves_the_form_of_its_answers(_: WrittenRun, cand: WrittenRun) -> None:
    texts = texts_of(cand.tasks["numbers"])
    write_texts(cand.tasks["numbers"], [t.replace("#### ", "= ") for t in texts])


@EXTRACTION.breaks(FAILS, r"(no answer|nothing|form)")
def a_quarter_of_the_ports_answers_is_prose(_: WrittenRun, cand: WrittenRun) -> None:
    texts = texts_of(cand.tasks["numbers"])
    write_texts(cand.tasks["numbers"], [_PROSE if i % 4 == 0 else t for i, t in enumerate(texts)])


@EXTRACTION.breaks(NOTHING_KNOWN, r"(no answer|nothing|found none)")
def both_end_before_the_answer(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        texts = texts_of(run.tasks["numbers"])
        write_texts(run.tasks["numbers"], [re.sub(r"[0-9].*", "", t) for t in texts])
