"""No "nothing to do" stands beside a finding: the next step says how to look into it."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from distribution_examples import distribution, figure
from example_reports import comparison, report

from evalguard.core.compare_report import CheckpointSize, CompareReport, RunIdentity
from evalguard.core.comparison import Undecided
from evalguard.core.findings import Finding, FindingKind
from evalguard.core.noise_floor import DistributionFloor
from evalguard.distributions.task_distributions import find_moved_distributions
from evalguard.report.meaning import _STEPS, decide_step, derive_meaning

HF = "hf, 1.2M parameters, float32, on cpu"
SIDES = {
    "base": RunIdentity(name="orig", digest="1", description=HF, model_type="hf"),
    "candidate": RunIdentity(name="port", digest="2", description=HF, model_type="hf"),
}
SERVED = {"candidate": RunIdentity(name="port", digest="2", description="local-completions")}
UNCHANGED: dict[str, Any] = {
    "outcome": "unchanged", "sigma": 0.0, "sigma_interval": (0.0, 0.0), "significant": False,
}  # fmt: skip
IMPROVED: dict[str, Any] = {
    "outcome": "improved", "sigma": -3.0, "sigma_interval": (-4.0, -2.0), "significant": True,
}  # fmt: skip
COMMAND = "evalguard compare --base orig --cand port"


def of(kind: FindingKind, **about: Any) -> Finding:
    return Finding(kind=kind, text="something was found", **about)


def passed(*findings: Finding, **changes: Any) -> CompareReport:
    fields = {**SIDES, "command": COMMAND, "findings": findings, **changes}
    return report(comparison(bit_identical=True, **UNCHANGED), **fields)


def test_where_nothing_was_found_there_is_nothing_to_do() -> None:
    said = derive_meaning(passed())
    assert (said.next_step, said.command) == ("nothing to do", "")
    assert derive_meaning(passed(of("sides_differ"))).next_step == "nothing to do"


@pytest.mark.parametrize(
    ("bits", "named"), [(4.5, True), (8.5, True), (16.0, False), (None, False)]
)
def test_a_quantised_candidate_that_passed_leads_to_its_card(
    bits: float | None, named: bool
) -> None:
    size = CheckpointSize(bytes=None if bits is None else int(1000 * bits), weights=8000)
    sides = {**SIDES, "candidate": dataclasses.replace(SIDES["candidate"], size=size)}
    said = derive_meaning(passed(**sides, run_folder="reports/of port"))
    assert (said.command == "evalguard card 'reports/of port'") is named
    assert derive_meaning(passed(**sides, run_folder=None)).command == ""


# What a reader need do nothing about: it is declared, asked for, allowed for in the interval, or
# what the verdict is about.
ASKS_NOTHING = {
    "loss_is_spread", "prompts_differ", "sides_differ", "server_varies", "dependent_documents",
    "made_differently", "run_chosen", "batch_size_effect", "own_reference",
}  # fmt: skip
ABOUT = comparison()
VALUES: dict[str, dict[str, Any]] = {
    "task_shows_little": {"task": ABOUT.task, "filter": ABOUT.filter, "metric": ABOUT.metric},
    "answers_differ": {"values": {"documents": 9, "same": 8, "calling": 0, "same_calls": 0}},
    "untested_differences": {"values": {"generated": ("eos_token_id",)}},
}


@pytest.mark.parametrize("passing", [UNCHANGED, IMPROVED], ids=["unchanged", "improved"])
@pytest.mark.parametrize("kind", get_args(FindingKind))
def test_nothing_to_do_stands_only_beside_what_asks_nothing(
    kind: FindingKind, passing: dict[str, Any]
) -> None:
    about = comparison(**passing)
    found = of(kind, **VALUES.get(kind, {}))
    said = derive_meaning(report(about, **SIDES, command=COMMAND, findings=(found,)))
    assert said.next_step.startswith("nothing") is (kind in ASKS_NOTHING)
    assert set(_STEPS) == set(get_args(FindingKind))


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (COMMAND, COMMAND),
        ("evalguard compare --distributions auto --base a --cand b", ""),
        ("evalguard bisect --base a --budget 9 --cand b", ""),
        ("", COMMAND),
    ],
)
def test_distributions_that_nobody_compared_are_compared_next(command: str, asked: str) -> None:
    said = derive_meaning(passed(of("distributions_unknown"), command=command))
    asked = asked or "evalguard compare --base a --cand b"
    assert said.command == f"{asked} --distributions reference"
    stored = {"base": dataclasses.replace(SIDES["base"], kind="stored run")}
    said = derive_meaning(passed(of("distributions_unknown"), **{**stored, "command": ""}))
    assert said.next_step.endswith("--distributions reference")


@pytest.mark.parametrize("kind", ["padding_changes", "distributions_moved"])
def test_what_lies_inside_of_a_model_is_traced(kind: FindingKind) -> None:
    said = derive_meaning(passed(of(kind)))
    assert said.next_step.startswith("to see where")
    assert said.command == "evalguard trace --base orig --cand port"


@pytest.mark.parametrize("kind", ["broken_answers", "answers_go_on"])
def test_broken_answers_are_something_to_do(kind: FindingKind) -> None:
    said = derive_meaning(passed(of(kind)))
    assert said.next_step.endswith("and run again")


@pytest.mark.parametrize(
    ("kind", "step"),
    [("padding_changes", "--batch-size 8"), ("distributions_moved", "--gate-metric kl_mean=0.01")],
)
def test_what_cannot_be_traced_is_measured(kind: FindingKind, step: str) -> None:
    said = derive_meaning(passed(of(kind), **SERVED))
    assert step in said.next_step
    assert said.command == ""


def test_tasks_that_show_little_ask_for_another_one() -> None:
    about = comparison()
    whole = of("task_shows_little", task=about.task, filter=about.filter, metric=about.metric)
    assert "score a task" in derive_meaning(passed(whole)).next_step
    named = of("task_shows_little", values={"metrics": ("/".join(about.key),)})
    assert "score a task" in derive_meaning(passed(named)).next_step
    other = of("task_shows_little", task="another", filter="none", metric="acc")
    assert derive_meaning(passed(other)).next_step == "nothing to do"


def test_a_model_that_was_compared_with_itself_is_to_be_replaced() -> None:
    proved = of("same_model", values={"proved": True})
    assert "this one is the base" in derive_meaning(passed(proved, of("padding_changes"))).next_step
    recorded = of("same_model", values={"proved": False})
    assert derive_meaning(passed(recorded)).next_step.startswith("make sure that the candidate is")


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ({"longer": ("sliding_window",), "beyond": 4096, "generated": ("eos_token_id",)},
         "to test sliding_window, score texts of more than 4,096 tokens"),
        ({"longer": (), "beyond": None, "generated": ("eos_token_id",)},
         "to test how texts end, score a task that generates them"),
        ({"longer": (), "beyond": None, "generated": (), "chat": ("chat template",)},
         "to test the chat template, apply it (--apply-chat-template)"),
        ({"longer": (), "beyond": None, "generated": (), "other_tokens": ("rules",)},
         "to test rules, score texts in which tokens differ"),
    ],
)  # fmt: skip
def test_what_is_untested_says_which_texts_would_test_it(values: Any, step: str) -> None:
    assert derive_meaning(passed(of("untested_differences", values=values))).next_step == step


def test_of_some_metrics_that_show_little_the_first_is_named() -> None:
    about = comparison(bit_identical=True, **UNCHANGED)
    figure = dataclasses.replace(about, metric="valid_json", filter="text", base=0.0)
    dull = of("task_shows_little", values={"metrics": ("/".join(figure.key), "no/such/metric")})
    said = derive_meaning(report(about, figure, **SIDES, findings=(dull,)))
    label = f"{about.task} valid_json (text)"
    assert said.next_step == (
        f"to see a loss of {label}, score a task at which the base is far above chance"
    )
    easy = dataclasses.replace(about, base=1.0)
    dull = of("task_shows_little", task=easy.task, filter=easy.filter, metric=easy.metric)
    said = derive_meaning(report(easy, **SIDES, findings=(dull,)))
    assert said.next_step == "score a harder task: this one can hardly fail"


def test_what_is_known_of_no_answer_is_to_be_shown_or_taken_off_the_gate() -> None:
    failed = comparison(
        metric="cut", filter="text", outcome="failed", sigma=None, sigma_interval=None,
        reason="it is known of no document of either side: nobody says",
    )  # fmt: skip
    said = derive_meaning(report(failed, **SIDES))
    name = f"{failed.task}/cut"
    assert said.next_step == f"have it shown, or take it off the gate: advisory: [{name}]"


@pytest.mark.parametrize(
    ("about", "step"),
    [
        ({"metric": "loops", "filter": "text"}, "add requests, or take a larger task"),
        ({"metric": "acc", "filter": "none"}, "take a larger task"),
    ],
)
def test_figures_of_answers_are_decided_by_more_requests(about: dict[str, Any], step: str) -> None:
    lacks = Undecided(kind="too_few_documents", needed_n=900)
    fields: dict[str, Any] = {"outcome": "undecided", "undecided": lacks, "n_total": 20}
    told = decide_step(comparison(**fields, n=20, n_used=20, **about))
    assert told.endswith(f"has 20 documents, about 900 are needed; {step}")


FAR = [
    {"kl": figure(0.0418, 0.001), "same_top1": figure(0.8587, 0.004)},
    {"kl": figure(0.338, 0.01), "same_top1": figure(0.99, 0.004)},
    {"kl": figure(0.002, 0.0001), "same_top1": figure(0.93, 0.01)},
    {"kl": figure(0.03, 0.005), "same_top1": figure(0.97, 0.02)},
    {"kl": figure(5.0, 0.1), "same_top1": figure(0.1, 0.02)},
]
NEAR = [
    {"kl": figure(7e-4, 1e-5), "same_top1": figure(0.991, 0.001)},  # bfloat16
    {"kl": figure(2e-12, 1e-13), "same_top1": figure(1.0, 0.0)},
    {"kl": figure(0.02, 0.008), "same_top1": figure(0.985, 0.01)},  # few documents
    {"kl": figure(0.012, 0.01), "same_top1": figure(0.96, 0.02)},
    {"failure": "the models show none"},
]


@pytest.mark.parametrize("of_task", FAR)
def test_distributions_that_no_rounding_makes_are_found(of_task: dict[str, Any]) -> None:
    (told,) = find_moved_distributions([distribution(**of_task), distribution(**NEAR[0])])
    assert told.kind == "distributions_moved"
    assert told.task == "evalguard_rolling"
    assert "another most likely token at" in told.text
    assert told.values["tasks"] == ("evalguard_rolling",)


@pytest.mark.parametrize("of_task", NEAR)
def test_rounding_and_chance_are_not(of_task: dict[str, Any]) -> None:
    assert find_moved_distributions([distribution(**of_task)]) == ()


def test_a_floor_that_is_as_high_is_no_finding() -> None:
    floor = DistributionFloor(
        kl=0.04, kl_upper=0.05, kl_max=1.0, top1_changed=0.05, n=300, positions=48_211,
        variation="dtype bfloat16", bit_identical=False, measured="", times=1.0, within=True,
        within_upper=True,
    )  # fmt: skip
    assert find_moved_distributions([distribution(**FAR[0], floor=floor)]) == ()
