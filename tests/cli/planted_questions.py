"""Other questions than the base's."""

from __future__ import annotations

from breakages import NOTHING_KNOWN, Kind
from written_runs import (
    WrittenRun,
    rehash,
)

OTHER_QUESTIONS = Kind("other questions")


@OTHER_QUESTIONS.breaks(NOTHING_KNOWN, r"num_fewshot is 0 .* 5")
def the_port_was_shown_examples(_: WrittenRun, cand: WrittenRun) -> None:
    cand.tasks["choices"].shots = 5


@OTHER_QUESTIONS.breaks(NOTHING_KNOWN, r"fewshot_seed is 1234 .* 7")
def the_port_was_shown_other_examples(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks["choices"].shots = 5
    cand.config["fewshot_seed"] = 7


@OTHER_QUESTIONS.breaks(
    NOTHING_KNOWN, r"prompts: only the candidate's are made by a chat template: <\|user\|>"
)
def the_ports_prompts_have_a_chat_template(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["numbers"].rows:
        asked = row["arguments"]["gen_args_0"]
        asked["arg_0"] = f"<|user|>{asked['arg_0']}<|assistant|>"
        rehash(row)


@OTHER_QUESTIONS.breaks(NOTHING_KNOWN, r"generation_kwargs is")
def the_port_may_write_longer(_: WrittenRun, cand: WrittenRun) -> None:
    cand.tasks["numbers"].config["generation_kwargs"] = {"until": ["Q:"], "max_gen_toks": 512}


@OTHER_QUESTIONS.breaks(NOTHING_KNOWN, r"task_version is")
def the_task_has_another_version(_: WrittenRun, cand: WrittenRun) -> None:
    cand.more["versions"] = dict.fromkeys(cand.tasks, 1.0) | {"words": 2.0}


@OTHER_QUESTIONS.breaks(NOTHING_KNOWN, r"0\.4\.9\.1")
def generated_answers_are_of_another_lm_eval(_: WrittenRun, cand: WrittenRun) -> None:
    for run in (_, cand):
        run.tasks = {"numbers": run.tasks["numbers"]}
    cand.more["lm_eval_version"] = "0.4.9.1"


@OTHER_QUESTIONS.breaks(NOTHING_KNOWN, r"0\.4\.9\.1")
def log_likelihoods_are_of_another_lm_eval(_: WrittenRun, cand: WrittenRun) -> None:
    for run in (_, cand):
        run.tasks = {"words": run.tasks["words"]}
    cand.more["lm_eval_version"] = "0.4.9.1"
