"""Log-likelihoods that are none: of broken documents, sentinels of servers, not a number."""

from __future__ import annotations

import math

from breakages import FAILS, NOTHING_KNOWN, Kind
from written_runs import (
    WrittenRun,
    answer,
    loglikelihood,
)

BROKEN = Kind("broken documents")
SENTINELS = Kind("sentinels")
NAN = Kind("NaN")


@BROKEN.breaks(FAILS, r"broken document")
def four_documents_lose_eighty_nats(_: WrittenRun, cand: WrittenRun) -> None:
    for i in (5, 60, 111, 200):
        row = cand.tasks["words"].rows[i]
        answer(row, loglikelihood(row) - 80.0)


@BROKEN.breaks(FAILS, r"broken document")
def one_document_at_minus_a_hundred_thousand(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[7], -1e5)


@BROKEN.breaks(FAILS, r"broken document")
def one_document_is_minus_infinity(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[7], -math.inf)


@BROKEN.breaks(FAILS, r"broken document")
def one_whole_text_loses_two_thousand_nats(_: WrittenRun, cand: WrittenRun) -> None:
    row = cand.tasks["texts"].rows[33]
    answer(row, loglikelihood(row) - 2_000.0)


@BROKEN.breaks(FAILS, r"broken document")
def every_fortieth_document_is_garbage(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows[::40]:
        answer(row, -45.0)


@BROKEN.breaks(FAILS, r"broken document")
def a_broken_document_hides_behind_a_better_mean(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, min(loglikelihood(row) + 0.4, -0.001))
    answer(cand.tasks["words"].rows[3], -60.0)


@BROKEN.breaks(NOTHING_KNOWN, r"words 9: nothing is known .* either")
def one_document_is_broken_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        answer(run.tasks["words"].rows[9], -math.inf)


@SENTINELS.breaks(FAILS, r"broken document")
def one_document_at_minus_9999(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[20], -9999.0)


@SENTINELS.breaks(FAILS, r"words 20: nothing is known .* either")
def minus_9999_on_both_sides_hides_a_drift(base: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, loglikelihood(row) - 0.5)
    for run in (base, cand):
        answer(run.tasks["words"].rows[20], -9999.0)


@SENTINELS.breaks(NOTHING_KNOWN, r"the base minus infinity")
def minus_9999_in_the_base_alone(base: WrittenRun, _: WrittenRun) -> None:
    answer(base.tasks["words"].rows[20], -9999.0)


@SENTINELS.breaks(FAILS, r"broken document")
def a_whole_text_with_one_clamped_token(_: WrittenRun, cand: WrittenRun) -> None:
    row = cand.tasks["texts"].rows[20]
    answer(row, loglikelihood(row) - 9999.0)


@SENTINELS.breaks(FAILS, r"broken document")
def ten_documents_at_minus_9999(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows[:10]:
        answer(row, -9999.0)


@SENTINELS.breaks(FAILS, r"broken document")
def the_largest_negative_float(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[20], -3.4028234663852886e38)


@SENTINELS.breaks(NOTHING_KNOWN, r"log-likelihoods are 0")
def every_log_likelihood_is_nought(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, 0.0)


@NAN.breaks(FAILS, r"broken document.*not a number")
def one_document_is_nan(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[50], math.nan)


@NAN.breaks(FAILS, r"choices 50: .* not a number")
def an_accuracy_hides_one_option_that_is_nan(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["choices"].rows[50], math.nan, 2)


@NAN.breaks(FAILS, r"240 broken documents.*not a number")
def every_answer_is_nan(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, math.nan)


@NAN.breaks(NOTHING_KNOWN, r"words 50: nothing is known")
def one_document_is_nan_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        answer(run.tasks["words"].rows[50], math.nan)


@NAN.breaks(FAILS, r"broken document.*not a number")
def a_whole_text_is_nan(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["texts"].rows[50], math.nan)


@NAN.breaks(NOTHING_KNOWN, r"the base not a number")
def the_base_answered_nan(base: WrittenRun, _: WrittenRun) -> None:
    answer(base.tasks["words"].rows[50], math.nan)
