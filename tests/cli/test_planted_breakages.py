"""No pass among planted breakages: each of these candidates is broken, and the screen says how.

A breakage is one builder: it is given a base and its healthy port before they are written (or, for
damaged files, afterwards), and breaks the port as models, harnesses and people do. What no
statistic can see, because it leaves every score as it was, is not here.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from written_runs import (
    N,
    WrittenRun,
    answer,
    healthy_run,
    loglikelihood,
    rehash,
    texts_of,
    write_finished_runs,
    write_texts,
)

Change = Callable[[WrittenRun, WrittenRun], None]
Damage = Callable[[Path], None]
FAILS, NOTHING_KNOWN, UNDECIDED, REFUSED = 1, 3, 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """A way to be broken, the exit code it must give, and a pattern of the first screen."""

    kind: str
    name: str
    code: int
    says: str
    change: Change | None = None
    damage: Damage | None = None
    words: tuple[str, ...] = ()


BREAKAGES: list[Breakage] = []


def breaks(kind: str, code: int, says: str, *words: str) -> Callable[[Change], Change]:
    """Enter a change of two runs, before they are written, into the table."""

    def enter(change: Change) -> Change:
        name = change.__name__.replace("_", " ")
        BREAKAGES.append(
            Breakage(kind=kind, name=name, code=code, says=says, change=change, words=words)
        )
        return change

    return enter


def damages(kind: str, code: int, says: str, *words: str) -> Callable[[Damage], Damage]:
    """Enter a damage to the candidate's files into the table."""

    def enter(damage: Damage) -> Damage:
        name = damage.__name__.replace("_", " ")
        BREAKAGES.append(
            Breakage(kind=kind, name=name, code=code, says=says, damage=damage, words=words)
        )
        return damage

    return enter


# Broken documents.


@breaks("broken documents", FAILS, r"broken document")
def four_documents_lose_eighty_nats(_: WrittenRun, cand: WrittenRun) -> None:
    for i in (5, 60, 111, 200):
        row = cand.tasks["words"].rows[i]
        answer(row, loglikelihood(row) - 80.0)


@breaks("broken documents", FAILS, r"broken document")
def one_document_at_minus_a_hundred_thousand(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[7], -1e5)


@breaks("broken documents", FAILS, r"broken document")
def one_document_is_minus_infinity(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[7], -math.inf)


@breaks("broken documents", FAILS, r"broken document")
def one_whole_text_loses_two_thousand_nats(_: WrittenRun, cand: WrittenRun) -> None:
    row = cand.tasks["texts"].rows[33]
    answer(row, loglikelihood(row) - 2_000.0)


@breaks("broken documents", FAILS, r"broken document")
def every_fortieth_document_is_garbage(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows[::40]:
        answer(row, -45.0)


@breaks("broken documents", FAILS, r"broken document")
def a_broken_document_hides_behind_a_better_mean(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, min(loglikelihood(row) + 0.4, -0.001))
    answer(cand.tasks["words"].rows[3], -60.0)


@breaks("broken documents", NOTHING_KNOWN, r"words 9: nothing is known .* either")
def one_document_is_broken_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        answer(run.tasks["words"].rows[9], -math.inf)


# Nothing extracted.

_PROSE = "The answer is not a number at all."


@breaks("nothing extracted", NOTHING_KNOWN, r"strict-match.*(no answer|nothing|found none)")
def the_filters_find_nothing_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    write_texts(base.tasks["numbers"], ["I would rather not say."] * N)
    write_texts(cand.tasks["numbers"], [f"{_PROSE} {'x' * (i % 9)}" for i in range(N)])


@breaks("nothing extracted", NOTHING_KNOWN, r"strict-match.*(no answer|nothing|found none)")
def the_filters_find_nearly_nothing_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        texts = texts_of(run.tasks["numbers"])
        write_texts(run.tasks["numbers"], [t if i < 3 else _PROSE for i, t in enumerate(texts)])


@breaks("nothing extracted", NOTHING_KNOWN, r"strict-match.*(no answer|nothing|found none)")
def only_the_strict_filter_finds_nothing(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        texts = texts_of(run.tasks["numbers"])
        write_texts(run.tasks["numbers"], [t.replace("#### ", "= ") for t in texts])


@breaks("nothing extracted", FAILS, r"strict-match.*form")
def the_port_leaves_the_form_of_its_answers(_: WrittenRun, cand: WrittenRun) -> None:
    texts = texts_of(cand.tasks["numbers"])
    write_texts(cand.tasks["numbers"], [t.replace("#### ", "= ") for t in texts])


@breaks("nothing extracted", FAILS, r"(no answer|nothing|form)")
def a_quarter_of_the_ports_answers_is_prose(_: WrittenRun, cand: WrittenRun) -> None:
    texts = texts_of(cand.tasks["numbers"])
    write_texts(cand.tasks["numbers"], [_PROSE if i % 4 == 0 else t for i, t in enumerate(texts)])


@breaks("nothing extracted", NOTHING_KNOWN, r"(no answer|nothing|found none)")
def both_end_before_the_answer(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        texts = texts_of(run.tasks["numbers"])
        write_texts(run.tasks["numbers"], [re.sub(r"[0-9].*", "", t) for t in texts])


# Prompts that lm-eval's clients of servers cut to nothing (others: test_planted_servers.py).


def _served(run: WrittenRun, most: int, **arguments: object) -> None:
    """Let a run be one of lm-eval's client, which generates so many tokens."""
    run.tasks = {"numbers": run.tasks["numbers"]}
    run.config["model"] = "local-completions"
    run.config["model_args"] = {"base_url": "http://host/v1/completions", **arguments}
    for row in run.tasks["numbers"].rows:
        row["arguments"]["gen_args_0"]["arg_1"]["max_gen_toks"] = most


@breaks("cut prompts", NOTHING_KNOWN, r"4,096 tokens .* left no room for a prompt in 2,047")
def both_generate_more_than_the_client_reads(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        _served(run, 4096)


@breaks("cut prompts", NOTHING_KNOWN, r"left no room for a prompt in 511 ")
def both_were_given_a_short_context(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        _served(run, 512, max_length=512)


@breaks("cut prompts", NOTHING_KNOWN, r"cand/.*left no room for a prompt")
def only_the_ports_context_is_short(base: WrittenRun, cand: WrittenRun) -> None:
    _served(base, 1024, max_length=8192)
    _served(cand, 1024, max_length=1024)


@breaks("cut prompts", NOTHING_KNOWN, r"base/.*left no room for a prompt")
def only_the_bases_context_is_short(base: WrittenRun, cand: WrittenRun) -> None:
    _served(base, 1024, max_length="1024")
    _served(cand, 1024, max_length="8192")


@breaks("cut prompts", NOTHING_KNOWN, r"left no room for a prompt")
def the_clients_own_default_is_too_long(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        _served(run, 0, max_length=300, max_gen_toks=300)
        for row in run.tasks["numbers"].rows:
            row["arguments"]["gen_args_0"]["arg_1"].pop("max_gen_toks", None)


# Sentinels: how servers and clients write what they do not know.


@breaks("sentinels", FAILS, r"broken document")
def one_document_at_minus_9999(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[20], -9999.0)


@breaks("sentinels", FAILS, r"words 20: nothing is known .* either")
def minus_9999_on_both_sides_hides_a_drift(base: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, loglikelihood(row) - 0.5)
    for run in (base, cand):
        answer(run.tasks["words"].rows[20], -9999.0)


@breaks("sentinels", NOTHING_KNOWN, r"the base minus infinity")
def minus_9999_in_the_base_alone(base: WrittenRun, _: WrittenRun) -> None:
    answer(base.tasks["words"].rows[20], -9999.0)


@breaks("sentinels", FAILS, r"broken document")
def a_whole_text_with_one_clamped_token(_: WrittenRun, cand: WrittenRun) -> None:
    row = cand.tasks["texts"].rows[20]
    answer(row, loglikelihood(row) - 9999.0)


@breaks("sentinels", FAILS, r"broken document")
def ten_documents_at_minus_9999(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows[:10]:
        answer(row, -9999.0)


@breaks("sentinels", FAILS, r"broken document")
def the_largest_negative_float(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[20], -3.4028234663852886e38)


@breaks("sentinels", NOTHING_KNOWN, r"log-likelihoods are 0")
def every_log_likelihood_is_nought(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, 0.0)


# Caches that two models share.


def _as_the_base(base: WrittenRun, cand: WrittenRun, *tasks: str) -> None:
    """Let the candidate's answers be the base's, from the one cache that both name."""
    for name in tasks or tuple(base.tasks):
        cand.tasks[name].rows = json.loads(json.dumps(base.tasks[name].rows))
    base.config["use_cache"] = cand.config["use_cache"] = "answers.db"


@breaks("shared caches", NOTHING_KNOWN, r"cache")
def every_answer_comes_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    _as_the_base(base, cand)


@breaks("shared caches", NOTHING_KNOWN, r"cache")
def generated_answers_come_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks = {"numbers": run.tasks["numbers"]}
    _as_the_base(base, cand)


@breaks("shared caches", NOTHING_KNOWN, r"cache")
def choices_come_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks = {"choices": run.tasks["choices"]}
    _as_the_base(base, cand)


@breaks("shared caches", NOTHING_KNOWN, r"cache")
def one_task_of_four_comes_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    _as_the_base(base, cand, "words")


@breaks("shared caches", NOTHING_KNOWN, r"cache")
def the_cache_is_shared_by_two_adapters_of_one_model(base: WrittenRun, cand: WrittenRun) -> None:
    _as_the_base(base, cand)
    cand.model = base.model
    cand.config["model_args"] = {"pretrained": base.model, "peft": "org/adapter"}


@breaks("shared caches", NOTHING_KNOWN, r"cache")
def whole_texts_come_from_the_bases_cache(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks = {"texts": run.tasks["texts"]}
    _as_the_base(base, cand)


# Answers that were given to other questions.


@breaks("swapped answers", FAILS, r"choices")
def options_are_scored_in_another_order(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["choices"].rows:
        for field in ("resps", "filtered_resps"):
            row[field] = row[field][1:] + row[field][:1]


@breaks("swapped answers", FAILS, r"numbers")
def generated_answers_are_the_next_documents(_: WrittenRun, cand: WrittenRun) -> None:
    texts = texts_of(cand.tasks["numbers"])
    write_texts(cand.tasks["numbers"], texts[1:] + texts[:1])


@breaks("swapped answers", NOTHING_KNOWN, r"documents \(doc_hash\) differ")
def two_documents_exchange_their_numbers(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["words"].rows
    rows[3]["doc_id"], rows[4]["doc_id"] = 4, 3


@breaks("swapped answers", NOTHING_KNOWN, r"requests .* differ")
def the_options_themselves_stand_in_another_order(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["choices"].rows:
        asked = list(row["arguments"].values())
        row["arguments"] = {f"gen_args_{k}": a for k, a in enumerate(asked[::-1])}
        row["resps"], row["filtered_resps"] = row["resps"][::-1], row["filtered_resps"][::-1]


@breaks("swapped answers", NOTHING_KNOWN, r"targets \(target_hash\) differ")
def targets_are_those_of_the_next_document(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["numbers"].rows
    for row in rows:
        row["target"] = str((int(row["target"]) + 1) % N)
        rehash(row)


@breaks("swapped answers", FAILS, r"choices")
def a_fifth_of_the_documents_has_its_options_exchanged(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["choices"].rows[::3]:
        for field in ("resps", "filtered_resps"):
            row[field] = row[field][::-1]


@breaks("swapped answers", UNDECIDED, r"words perplexity: .* nothing in common", "--strict")
def log_likelihoods_are_the_next_documents(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["words"].rows
    values = [loglikelihood(row) for row in rows]
    for row, value in zip(rows, values[1:] + values[:1], strict=True):
        answer(row, value)


# Empty texts.


@breaks("empty texts", NOTHING_KNOWN, r"empty")
def every_text_is_empty_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        write_texts(run.tasks["numbers"], [""] * N)


@breaks("empty texts", FAILS, r"empty")
def every_text_of_the_port_is_empty(_: WrittenRun, cand: WrittenRun) -> None:
    write_texts(cand.tasks["numbers"], [""] * N)


@breaks("empty texts", NOTHING_KNOWN, r"empty")
def texts_are_white_space_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    write_texts(base.tasks["numbers"], ["\n\n"] * N)
    write_texts(cand.tasks["numbers"], [" "] * N)


@breaks("empty texts", FAILS, r"numbers")
def every_third_text_of_the_port_is_empty(_: WrittenRun, cand: WrittenRun) -> None:
    texts = texts_of(cand.tasks["numbers"])
    write_texts(cand.tasks["numbers"], ["" if i % 3 == 0 else t for i, t in enumerate(texts)])


@breaks("empty texts", NOTHING_KNOWN, r"(empty|no answer|nothing)")
def all_but_three_texts_are_empty_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        texts = texts_of(run.tasks["numbers"])
        write_texts(run.tasks["numbers"], [t if i < 3 else "" for i, t in enumerate(texts)])


# Texts that are always the same.


@breaks("repeated texts", FAILS, r"(the same|alike)")
def the_port_says_the_same_to_every_document(_: WrittenRun, cand: WrittenRun) -> None:
    write_texts(cand.tasks["numbers"], ["#### 7"] * N)


@breaks("repeated texts", NOTHING_KNOWN, r"(the same|alike)")
def both_say_the_same_to_every_document(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        write_texts(run.tasks["numbers"], ["#### 7"] * N)


@breaks("repeated texts", NOTHING_KNOWN, r"(the same|alike)")
def each_says_its_own_to_every_document(base: WrittenRun, cand: WrittenRun) -> None:
    write_texts(base.tasks["numbers"], ["#### 7"] * N)
    write_texts(cand.tasks["numbers"], ["#### 9"] * N)


@breaks("repeated texts", NOTHING_KNOWN, r"nothing about the model")
def every_log_likelihood_is_the_same(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, -2.5)


@breaks("repeated texts", NOTHING_KNOWN, r"nothing about the model")
def every_option_is_as_likely_as_the_others(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["choices"].rows:
        for option in range(1, 4):
            answer(row, loglikelihood(row), option)


@breaks("repeated texts", FAILS, r"numbers")
def the_port_repeats_one_word_for_ever(_: WrittenRun, cand: WrittenRun) -> None:
    write_texts(cand.tasks["numbers"], [f"{i % 2} is " * 20 for i in range(N)])


# One task of many is missing.


@breaks("a task is missing", NOTHING_KNOWN, r"only the base")
def the_port_was_not_asked_one_task(_: WrittenRun, cand: WrittenRun) -> None:
    del cand.tasks["choices"]


@breaks("a task is missing", NOTHING_KNOWN, r"only the candidate")
def the_base_was_not_asked_one_task(base: WrittenRun, _: WrittenRun) -> None:
    del base.tasks["choices"]


@breaks("a task is missing", NOTHING_KNOWN, r"only the base")
def the_port_lacks_one_filter(_: WrittenRun, cand: WrittenRun) -> None:
    task = cand.tasks["numbers"]
    task.rows = task.of("strict-match")


@breaks("a task is missing", NOTHING_KNOWN, r"only the base")
def the_port_lacks_one_metric(_: WrittenRun, cand: WrittenRun) -> None:
    task = cand.tasks["words"]
    task.config["metric_list"] = task.config["metric_list"][:1]


@damages("a task is missing", NOTHING_KNOWN, r"(samples|choices)")
def one_samples_file_is_gone(folder: Path) -> None:
    next(folder.glob("samples_choices_*")).unlink()


@damages("a task is missing", REFUSED, r"has no samples files beside it")
def all_samples_files_are_gone(folder: Path) -> None:
    for file in folder.glob("samples_*"):
        file.unlink()


@breaks("a task is missing", NOTHING_KNOWN, r"(documents only in|limit)")
def half_of_a_tasks_documents_are_missing(_: WrittenRun, cand: WrittenRun) -> None:
    task = cand.tasks["choices"]
    task.rows = task.rows[: N // 2]


# NaN.


@breaks("NaN", FAILS, r"broken document.*not a number")
def one_document_is_nan(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["words"].rows[50], math.nan)


@breaks("NaN", FAILS, r"choices 50: .* not a number")
def an_accuracy_hides_one_option_that_is_nan(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["choices"].rows[50], math.nan, 2)


@breaks("NaN", FAILS, r"240 broken documents.*not a number")
def every_answer_is_nan(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, math.nan)


@breaks("NaN", NOTHING_KNOWN, r"words 50: nothing is known")
def one_document_is_nan_on_both_sides(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        answer(run.tasks["words"].rows[50], math.nan)


@breaks("NaN", FAILS, r"broken document.*not a number")
def a_whole_text_is_nan(_: WrittenRun, cand: WrittenRun) -> None:
    answer(cand.tasks["texts"].rows[50], math.nan)


@breaks("NaN", NOTHING_KNOWN, r"the base not a number")
def the_base_answered_nan(base: WrittenRun, _: WrittenRun) -> None:
    answer(base.tasks["words"].rows[50], math.nan)


# Files that were damaged or mixed up.


def _lines(folder: Path, change: Callable[[list[str]], list[str]], task: str = "words") -> None:
    (file,) = folder.glob(f"samples_{task}_*")
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(change(lines)), encoding="utf-8")


def _content(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    (file,) = folder.glob("results_*.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


@damages("doubled documents", NOTHING_KNOWN, r"stands here twice")
def one_line_stands_twice(folder: Path) -> None:
    _lines(folder, lambda lines: [*lines, lines[5]])


@damages("doubled documents", NOTHING_KNOWN, r"stands here twice")
def the_samples_were_appended_to(folder: Path) -> None:
    _lines(folder, lambda lines: lines * 2)


@breaks("doubled documents", NOTHING_KNOWN, r"(stands here twice|documents only in)")
def one_document_took_the_number_of_another(_: WrittenRun, cand: WrittenRun) -> None:
    cand.tasks["words"].rows[5]["doc_id"] = 6


@breaks("doubled documents", NOTHING_KNOWN, r"documents \(doc_hash\) differ")
def one_document_was_asked_twice_and_another_not(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["words"].rows
    rows[6] = {**json.loads(json.dumps(rows[5])), "doc_id": 6}


@damages("doubled documents", NOTHING_KNOWN, r"(stands here|twice)")
def a_document_has_two_lines_under_one_filter(folder: Path) -> None:
    _lines(folder, lambda lines: [lines[0], *lines], "numbers")


@damages("truncated files", NOTHING_KNOWN, r"samples_words_.*:\d+")
def a_samples_file_ends_in_a_line(folder: Path) -> None:
    _lines(folder, lambda lines: [*lines[:100], lines[100][:50]])


@damages("truncated files", NOTHING_KNOWN, r"(samples give|documents only in|of one run)")
def a_samples_file_ends_after_a_line(folder: Path) -> None:
    _lines(folder, lambda lines: lines[:100])


@damages("truncated files", NOTHING_KNOWN, r"empty")
def a_samples_file_is_empty(folder: Path) -> None:
    _lines(folder, lambda _: [])


@damages("truncated files", NOTHING_KNOWN, r"results_")
def a_results_file_ends_early(folder: Path) -> None:
    (file,) = folder.glob("results_*.json")
    file.write_bytes(file.read_bytes()[:500])


@damages("truncated files", NOTHING_KNOWN, r"(of one run|samples give)")
def results_are_those_of_another_run(folder: Path) -> None:
    other = healthy_run()
    for row in other.tasks["words"].rows:
        answer(row, loglikelihood(row) - 0.3)
    made = other.write(folder.parent / "other")
    (file,) = made.glob("results_*.json")
    shutil.copy(file, next(folder.glob("results_*.json")))


@damages("truncated files", NOTHING_KNOWN, r"samples_choices")
def a_samples_file_lost_its_middle(folder: Path) -> None:
    _lines(
        folder, lambda lines: [*lines[:50], lines[50][:30] + lines[90][40:], *lines[91:]], "choices"
    )


# Other questions than the base's.


@breaks("other questions", NOTHING_KNOWN, r"num_fewshot is 0 .* 5")
def the_port_was_shown_examples(_: WrittenRun, cand: WrittenRun) -> None:
    cand.tasks["choices"].shots = 5


@breaks("other questions", NOTHING_KNOWN, r"fewshot_seed is 1234 .* 7")
def the_port_was_shown_other_examples(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks["choices"].shots = 5
    cand.config["fewshot_seed"] = 7


@breaks("other questions", NOTHING_KNOWN, r"prompts \(prompt_hash\) differ")
def the_ports_prompts_have_a_chat_template(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["numbers"].rows:
        asked = row["arguments"]["gen_args_0"]
        asked["arg_0"] = f"<|user|>{asked['arg_0']}<|assistant|>"
        rehash(row)


@breaks("other questions", NOTHING_KNOWN, r"generation_kwargs is")
def the_port_may_write_longer(_: WrittenRun, cand: WrittenRun) -> None:
    cand.tasks["numbers"].config["generation_kwargs"] = {"until": ["Q:"], "max_gen_toks": 512}


@breaks("other questions", NOTHING_KNOWN, r"task_version is")
def the_task_has_another_version(_: WrittenRun, cand: WrittenRun) -> None:
    cand.more["versions"] = dict.fromkeys(cand.tasks, 1.0) | {"words": 2.0}


@breaks("other questions", NOTHING_KNOWN, r"0\.4\.9\.1")
def generated_answers_are_of_another_lm_eval(_: WrittenRun, cand: WrittenRun) -> None:
    for run in (_, cand):
        run.tasks = {"numbers": run.tasks["numbers"]}
    cand.more["lm_eval_version"] = "0.4.9.1"


@breaks("other questions", NOTHING_KNOWN, r"0\.4\.9\.1")
def log_likelihoods_are_of_another_lm_eval(_: WrittenRun, cand: WrittenRun) -> None:
    for run in (_, cand):
        run.tasks = {"words": run.tasks["words"]}
    cand.more["lm_eval_version"] = "0.4.9.1"


# Scores in another unit.


@breaks("other units", FAILS, r"words")
def log_likelihoods_are_in_bits(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, loglikelihood(row) / math.log(2.0))


@breaks("other units", NOTHING_KNOWN, r"above 0")
def log_likelihoods_have_the_other_sign(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, -loglikelihood(row))


@breaks("other units", NOTHING_KNOWN, r"above 0")
def log_likelihoods_are_probabilities(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, math.exp(loglikelihood(row)))


@breaks("swapped answers", UNDECIDED, r"texts word_perplexity: .* nothing in common", "--strict")
def whole_texts_are_scored_in_another_order(_: WrittenRun, cand: WrittenRun) -> None:
    rows = cand.tasks["texts"].rows
    rates = [loglikelihood(row) / len(row["doc"]["text"].split()) for row in rows]
    for row, rate in zip(rows, rates[7:] + rates[:7], strict=True):
        answer(row, rate * len(row["doc"]["text"].split()))


@breaks("other units", FAILS, r"texts")
def whole_texts_are_in_bits(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["texts"].rows:
        answer(row, loglikelihood(row) / math.log(2.0))


@breaks("other units", FAILS, r"words")
def log_likelihoods_are_doubled(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, 2.0 * loglikelihood(row))


@damages("other units", NOTHING_KNOWN, r"(of one run|samples give)")
def the_results_are_in_percent(folder: Path) -> None:
    def percent(content: dict[str, Any]) -> None:
        values = content["results"]["choices"]
        values["acc,none"] *= 100.0

    _content(folder, percent)


# The tests.


@pytest.fixture
def screen(run: Any, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Write both runs, compare them; give the exit code and what a reader sees, on one line."""

    def show(breakage: Breakage) -> tuple[int, str]:
        base, cand = write_finished_runs(tmp_path, breakage.change or (lambda *_: None))
        if breakage.damage is not None:
            breakage.damage(cand)
        ran = run("compare", "--base", base, "--cand", cand, *breakage.words)
        return ran.code, " ".join(f"{ran.out} {ran.err}".split())

    return show


def test_the_port_passes_before_anything_is_broken(run: Any, tmp_path: Path) -> None:
    base, cand = write_finished_runs(tmp_path, lambda *_: None)
    ran = run("compare", "--base", base, "--cand", cand, "--strict")
    assert ran.code == 0, ran.out


def test_runs_of_a_client_whose_prompts_have_room_pass(run: Any, tmp_path: Path) -> None:
    def served(base: WrittenRun, cand: WrittenRun) -> None:
        _served(base, 1024, max_length=8192)
        _served(cand, 1024, max_length=8192)

    base, cand = write_finished_runs(tmp_path, served)
    assert run("compare", "--base", base, "--cand", cand, "--strict").code == 0


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda b: f"{b.kind}: {b.name}")
def test_a_planted_breakage_does_not_pass_and_is_named(
    breakage: Breakage, screen: Callable[[Breakage], tuple[int, str]]
) -> None:
    code, seen = screen(breakage)
    assert code == breakage.code, seen
    assert re.search(breakage.says, seen), seen


def test_every_kind_is_planted_at_least_five_times() -> None:
    kinds = [breakage.kind for breakage in BREAKAGES]
    assert {kind: kinds.count(kind) for kind in kinds if kinds.count(kind) < 5} == {}
    assert len(BREAKAGES) >= 60
