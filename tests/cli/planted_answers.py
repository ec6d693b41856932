"""Answers of another model, from a cache that both share, and answers to other questions."""

from __future__ import annotations

import json

from breakages import FAILS, NOTHING_KNOWN, UNDECIDED, Kind
from written_runs import (
    N,
    WrittenRun,
    answer,
    loglikelihood,
    rehash,
    texts_of,
    write_texts,
)

SHARED_CACHES = Kind("shared caches")
SWAPPED = Kind("swapped answers")


def _as_the_base(base: WrittenRun, cand: WrittenRun, *tasks: str) -> None:
    """Let the candidate's answers be the base's, from the one cache that both name."""
    for name in tasks or tuple(base.tasks):
        cand.tasks[name].rows = json.loads(json.dumps(base.tasks[name].rows))
    base.config["use_cache"] = cand.config["use_cache"] = "answers.db"


@SHARED_CACHES.breaks(NOTHING_KNOWN, r"cache")
def every_answer_comes_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    _as_the_base(base, cand)


@SHARED_CACHES.breaks(NOTHING_KNOWN, r"cache")
def generated_answers_come_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks = {"numbers": run.tasks["numbers"]}
    _as_the_base(base, cand)


@SHARED_CACHES.breaks(NOTHING_KNOWN, r"cache")
def choices_come_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks = {"choices": run.tasks["choices"]}
    _as_the_base(base, cand)


@SHARED_CACHES.breaks(NOTHING_KNOWN, r"cache")
def one_task_of_four_comes_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    _as_the_base(base, cand, "words")


@SHARED_CACHES.breaks(NOTHING_KNOWN, r"cache")
def the_cache_is_shared_by_two_adapters_of_one_model(base: WrittenRun, cand: WrittenRun) -> None:
    _as_the_base(base, cand)
    cand.model = base.model
    cand.config["model_args"] = {"pretrained": base.model, "peft": "org/adapter"}


@SHARED_CACHES.breaks(NOTHING_KNOWN, r"cache")
def whole_texts_come_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks = {"texts": run.tasks["texts"]}
    _as_the_base(base, cand)


@SWAPPED.breaks(FAILS, r"choices")
def options_are_scored_in_another_order(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["choices"].rows:
        for field in ("resps", "filtered_resps"):
            row[field] = row[field][1:] + row[field][:1]


@SWAPPED.breaks(FAILS, r"numbers")
def generated_answers_are_the_next_documents(_: WrittenRun, cand: WrittenRun) -> None:
    texts = texts_of(cand.tasks["numbers"])
    write_texts(cand.tasks["numbers"], texts[1:] + texts[:1])


@SWAPPED.breaks(NOTHING_KNOWN, r"documents \(doc_hash\) differ")
def two_documents_exchange_their_numbers(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["words"].rows
    rows[3]["doc_id"], rows[4]["doc_id"] = 4, 3


@SWAPPED.breaks(NOTHING_KNOWN, r"requests .* differ")
def the_options_themselves_stand_in_another_order(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["choices"].rows:
        asked = list(row["arguments"].values())
        row["arguments"] = {f"gen_args_{k}": a for k, a in enumerate(asked[::-1])}
        row["resps"], row["filtered_resps"] = row["resps"][::-1], row["filtered_resps"][::-1]


@SWAPPED.breaks(NOTHING_KNOWN, r"targets \(target_hash\) differ")
def targets_are_those_of_the_next_document(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["numbers"].rows
    for row in rows:
        row["target"] = str((int(row["target"]) + 1) % N)
        rehash(row)


@SWAPPED.breaks(FAILS, r"choices")
def a_fifth_of_the_documents_has_its_options_exchanged(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["choices"].rows[::3]:
        for field in ("resps", "filtered_resps"):
            row[field] = row[field][::-1]


@SWAPPED.breaks(UNDECIDED, r"words perplexity: .* nothing in common", "--strict")
def log_likelihoods_are_the_next_documents(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["words"].rows
    values = [loglikelihood(row) for row in rows]
    for row, value in zip(rows, values[1:] + values[:1], strict=True):
        answer(row, value)


@SWAPPED.breaks(UNDECIDED, r"texts word_perplexity: .* nothing in common", "--strict")
def whole_texts_are_scored_in_another_order(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["texts"].rows
    rates = [loglikelihood(row) / len(row["doc"]["text"].split()) for row in rows]
    for row, rate in zip(rows, rates[7:] + rates[:7], strict=True):
        answer(row, rate * len(row["doc"]["text"].split()))
