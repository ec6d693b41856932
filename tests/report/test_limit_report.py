"""Absolute limits and answers in the report."""

from __future__ import annotations

import dataclasses
import math

import jsonschema
import pytest
from distribution_examples import distribution, figure
from example_reports import DEMO, comparison, report

from evalguard.core.compare_report import CompareReport
from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.figures import FigureShare
from evalguard.core.gate import Gate
from evalguard.core.limits import Limit
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.meaning import derive_meaning

FINE = comparison(
    task="evalguard_choice", metric="acc", sigma=0.0, sigma_interval=(-0.2, 0.2),
    outcome="unchanged", significant=False, certain=False, flips=(7, 8), churn=12,
    same_answer=0.973, same_answer_interval=(0.961, 0.982),
)  # fmt: skip


def limited(
    limits: dict[str, float], *distributions: DistributionComparison, fail_on: str = "margin"
) -> CompareReport:
    limits_of_gate = tuple(Limit(metric=name, value=value) for name, value in limits.items())
    gate = Gate(limits=limits_of_gate, fail_on=fail_on)
    judged = gate.judge([FINE], distributions)
    return dataclasses.replace(
        report(FINE),
        gate=judged,
        distributions=distributions,
        exit_code=decide_exit_code(judged, strict=False, git_bisect=False),
    )


def share(known: int, unknown: int = 0, value: float = 0.0, high: float = 0.2) -> FigureShare:
    interval = Figure(value=value, interval=(max(value - 0.1, 0.0), high))
    return FigureShare(
        task="calls", filter="text", metric="loops", figure=interval, n=known, unknown=unknown,
        units=known, clustered=False, confidence=0.95, unknown_why="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "of", "step"),
    [
        (0.1, share(20, value=0.05), "ask more: a higher --limit, more requests, or a larger task"),
        (0.1, share(20, 4, value=0.0, high=0.05), "make loops known of every answer, or widen"),
        (0.0, share(20, 4), "make loops known of every answer, or widen"),
    ],
)
def test_an_undecided_limit_on_answers_says_what_would_decide_it(
    limit: float, of: FigureShare, step: str
) -> None:
    gate = Gate(limits=(Limit(metric="loops", value=limit),))
    judged = gate.judge([FINE], shares=[of])
    assert judged.state == "undecided"
    assert derive_meaning(dataclasses.replace(report(FINE), gate=judged)).next_step.startswith(step)


def test_every_limit_has_a_line_in_the_long_form() -> None:
    of = limited({"kl_mean": 0.01, "same_top1": 0.98, "same_answer": 0.95}, distribution())
    lines = render_terminal(of, width=100, color=False, verbose=True).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("REGRESSED: 1 unchanged"))
    text = " ".join(" ".join(lines[start : start + 9]).split())
    assert "REGRESSED: 1 unchanged; limits: 1 regressed, 1 undecided, 1 passed; exit" in text
    assert (
        "regressed · kl_mean on evalguard_rolling at most 0.01: 0.01234 [0.01152, 0.01316]: above "
        "the limit, and so is its whole interval"
    ) in text
    unsure = "undecided · same_top1 on evalguard_rolling at least 0.98: 0.9812 [0.9788, 0.9836]"
    assert unsure in text
    assert "passed · same_answer on evalguard_choice acc at least 0.95: 0.9730 [0.9610, " in text
    assert all(
        len(line) <= 80
        for line in render_terminal(of, width=80, color=False, verbose=True).splitlines()
    )


def test_the_sentence_is_about_the_limit_that_decided() -> None:
    said = derive_meaning(limited({"kl_mean": 0.01}, distribution()))
    assert said.sentence == (
        "fla-port breaks the limit of kl_mean on evalguard_rolling: 0.01234 (95% interval 0.01152 "
        "to 0.01316); at most 0.01 is allowed."
    )
    unsure = derive_meaning(limited({"same_top1": 0.98}, distribution()))
    assert unsure.sentence.startswith(
        "Whether fla-port keeps the limit of same_top1 on evalguard_rolling is not sure: 0.9812"
    )
    assert "more documents" in unsure.next_step
    unknown = derive_meaning(limited({"kl_mean": 0.01}))
    assert unknown.sentence == (
        "Whether fla-port keeps the limit of kl_mean is not known: of no task distributions were "
        "compared."
    )
    kept = derive_meaning(limited({"kl_mean": 0.1}, distribution()))
    assert "not measurably worse" in kept.sentence


def test_the_document_holds_every_limit() -> None:
    infinite = distribution(kl=dataclasses.replace(figure(0.01, 0.001), interval=(0.0, math.inf)))
    of = limited({"kl_mean": 0.02, "dp_rms": 0.1, "same_answer": 0.9}, infinite)
    written = compare_document(of)
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    first, second, third = written["gate"]["limits"]
    assert (first["metric"], first["kind"], first["limit"]) == ("kl_mean", "upper", 0.02)
    assert first["interval"] == [0.0, None]
    assert first["state"] == "undecided"
    assert second["state"] == third["state"] == "passed"
    assert (third["task"], third["of"], third["filter"]) == ("evalguard_choice", "acc", "none")
    assert any("limits[0].interval[1] is +infinite" in note for note in written["notes"])
    assert compare_document(DEMO)["gate"]["limits"] == []


def test_flips_and_churn_are_shown_where_answers_differ() -> None:
    text = " ".join(render_terminal(report(FINE), width=100, color=False, verbose=True).split())
    assert (
        "Answers, evalguard_choice acc: 7 lost, 8 won, 12 wrong in another way; the same in 97.30% "
        "of documents [96.10%, 98.20%]."
    ) in text
    alike = dataclasses.replace(FINE, same_answer=1.0, same_answer_interval=(0.99, 1.0))
    assert "Answers" not in render_terminal(report(alike), width=100, color=False, verbose=True)
    assert "Answers" not in render_terminal(DEMO, width=100, color=False, verbose=True)


@pytest.mark.parametrize("width", [20, 50])
def test_narrow_terminals_hold_limits_and_answers(width: int) -> None:
    of = limited({"kl_mean": 0.01, "same_answer": 0.95}, distribution())
    assert all(
        len(line) <= width
        for line in render_terminal(of, width=width, color=False, verbose=True).splitlines()
    )
