"""Generated texts that are empty, or always the same."""

from __future__ import annotations

from breakages import FAILS, NOTHING_KNOWN, Kind
from written_runs import (
    N,
    WrittenRun,
    answer,
    loglikelihood,
    texts_of,
    write_texts,
)

EMPTY = Kind("empty texts")
REPEATED = Kind("repeated texts")


@EMPTY.breaks(NOTHING_KNOWN, r"empty")
def every_text_is_empty_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        write_texts(run.tasks["numbers"], [""] * N)


@EMPTY.breaks(FAILS, r"empty")
def every_text_of_the_port_is_empty(_: WrittenRun, cand: WrittenRun) -> None:
    write_texts(cand.tasks["numbers"], [""] * N)


@EMPTY.breaks(NOTHING_KNOWN, r"empty")
def texts_are_white_space_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    write_texts(base.tasks["numbers"], ["\n\n"] * N)
    write_texts(cand.tasks["numbers"], [" "] * N)


@EMPTY.breaks(FAILS, r"numbers")
def every_third_text_of_the_port_is_empty(_: WrittenRun, cand: WrittenRun) -> None:
    texts = texts_of(cand.tasks["numbers"])
    write_texts(cand.tasks["numbers"], ["" if i % 3 == 0 else t for i, t in enumerate(texts)])


@EMPTY.breaks(NOTHING_KNOWN, r"(empty|no answer|nothing)")
def all_but_three_texts_are_empty_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        texts = texts_of(run.tasks["numbers"])
        write_texts(run.tasks["numbers"], [t if i < 3 else "" for i, t in enumerate(texts)])


@REPEATED.breaks(FAILS, r"of the candidate, all \d+ documents are given the same answer")
def the_port_says_the_same_to_every_document(_: WrittenRun, cand: WrittenRun) -> None:
    write_texts(cand.tasks["numbers"], ["#### 7"] * N)


@REPEATED.breaks(NOTHING_KNOWN, r"documents are given the same answer")
def both_say_the_same_to_every_document(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        write_texts(run.tasks["numbers"], ["#### 7"] * N)


@REPEATED.breaks(NOTHING_KNOWN, r"documents are given the same answer")
def each_says_its_own_to_every_document(base: WrittenRun, cand: WrittenRun) -> None:
    write_texts(base.tasks["numbers"], ["#### 7"] * N)
    write_texts(cand.tasks["numbers"], ["#### 9"] * N)


@REPEATED.breaks(NOTHING_KNOWN, r"nothing about the model")
def every_log_likelihood_is_the_same(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, -2.5)


@REPEATED.breaks(NOTHING_KNOWN, r"nothing about the model")
def every_option_is_as_likely_as_the_others(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["choices"].rows:
        for option in range(1, 4):
            answer(row, loglikelihood(row), option)


@REPEATED.breaks(FAILS, r"numbers")
def the_port_repeats_one_word_for_ever(_: WrittenRun, cand: WrittenRun) -> None:
    write_texts(cand.tasks["numbers"], [f"{i % 2} is " * 20 for i in range(N)])
