"""Prompts that lm-eval's clients of servers cut to nothing (others: test_planted_servers.py)."""

from __future__ import annotations

from breakages import NOTHING_KNOWN, Kind
from written_runs import (
    WrittenRun,
)

CUT_PROMPTS = Kind("cut prompts")


def serve(run: WrittenRun, most: int, **arguments: object) -> None:
    """Let a run be one of lm-eval's client, which generates so many tokens."""
    run.tasks = {"numbers": run.tasks["numbers"]}
    run.config["model"] = "local-completions"
    run.config["model_args"] = {"base_url": "http://host/v1/completions", **arguments}
    for row in run.tasks["numbers"].rows:
        row["arguments"]["gen_args_0"]["arg_1"]["max_gen_toks"] = most


@CUT_PROMPTS.breaks(NOTHING_KNOWN, r"4,096 tokens .* left no room for a prompt in 2,047")
def both_generate_more_than_the_client_reads(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        serve(run, 4096)


@CUT_PROMPTS.breaks(NOTHING_KNOWN, r"left no room for a prompt in 511 ")
def both_were_given_a_short_context(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        serve(run, 512, max_length=512)


@CUT_PROMPTS.breaks(NOTHING_KNOWN, r"cand/.*left no room for a prompt")
def only_the_ports_context_is_short(base: WrittenRun, cand: WrittenRun) -> None:
    serve(base, 1024, max_length=8192)
    serve(cand, 1024, max_length=1024)


@CUT_PROMPTS.breaks(NOTHING_KNOWN, r"base/.*left no room for a prompt")
def only_the_bases_context_is_short(base: WrittenRun, cand: WrittenRun) -> None:
    serve(base, 1024, max_length="1024")
    serve(cand, 1024, max_length="8192")


@CUT_PROMPTS.breaks(NOTHING_KNOWN, r"left no room for a prompt")
def the_clients_own_default_is_too_long(base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        serve(run, 0, max_length=300, max_gen_toks=300)
        for row in run.tasks["numbers"].rows:
            row["arguments"]["gen_args_0"]["arg_1"].pop("max_gen_toks", None)
