"""The plan in a terminal: within its width, harmless, and honest in its last sentence."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
from rich.cells import cell_len

from evalguard.core.compare_report import RunIdentity
from evalguard.planning.metric_plan import AimFacts, MetricPlan, plan_metric
from evalguard.planning.pilot import Pilot
from evalguard.planning.plan_page import plan_document, plan_schema, render_plan
from evalguard.planning.plan_report import ExpectedDrift, PilotFacts, PlanReport, TaskCost

SIDE = RunIdentity(name="orig", digest="3f2a9c0d11e2b4a7", description="hf, 1.2M parameters")


def metric(name: str = "perplexity", *, n: int = 2048, **changes: Any) -> MetricPlan:
    fields: dict[str, Any] = {
        "task": "evalguard_lastword", "filter": "none", "metric": name, "higher_is_better": True,
        "n": 64, "confidence": 0.95, "base": 0.5, "base_stderr": 0.0625, "base_scatter": 0.5,
        "ratio": 0.2, "ratio_range": (0.15, 0.3),
    }  # fmt: skip
    pilot = Pilot(**{**fields, **changes})
    return plan_metric(pilot, n=n, margin=1.0, alpha=0.025, power=0.8)


def report(*metrics: MetricPlan, **changes: Any) -> PlanReport:
    cost = TaskCost(
        task="evalguard_lastword", role="base", pilot_documents=64, pilot_seconds=2.0,
        pilot_tokens=4800, n=2048, seconds=ExpectedDrift(amount=64.0, low=60.0, high=math.inf),
        tokens=ExpectedDrift(amount=153600.0, low=150000.0, high=160000.0),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "base": SIDE,
        "candidate": SIDE,
        "metrics": metrics,
        "costs": (cost,),
        "load_seconds": {"base": 1.25},
        "pilot": PilotFacts(kind="sample", documents=64, seed=1234),
        "aim": AimFacts(margin=1.0, alpha=0.025, power=0.8, confidence=0.95),
        "exit_code": 0,
        "created": "2026-11-20T12:00:00+00:00",
    }
    return PlanReport(**{**fields, **changes})


def first_sentence(*metrics: MetricPlan) -> str:
    text = render_plan(report(*metrics), width=80, color=False, verbose=True)
    return " ".join(text.split("\n\n")[0].split())


HOSTILE = metric(
    "acc\x1b[2J\u202e", task="a\ttask\nof two lines 漢字" * 3, flip_rate=0.0, ratio=0.0,
    ratio_range=(0.0, 0.6), caveats=("no document\x07 flipped",),
)  # fmt: skip
BROKEN = metric("mcc", problem="3 of 64 documents have NaN\x1b scores")
HARD = metric("acc", ratio=1.0, ratio_range=(0.9, 1.1))
HARDER = metric("f1", ratio=2.0, ratio_range=(1.8, 2.2))
OPEN = metric("f1", ratio_range=(0.1, math.inf), n=10**9)


@pytest.mark.parametrize("width", [1, 24, 50, 80, 120, 300])
@pytest.mark.parametrize("color", [False, True])
def test_no_line_is_wider_than_the_terminal_and_nothing_acts_on_it(width: int, color: bool) -> None:
    text = render_plan(
        report(metric(), HOSTILE, BROKEN, OPEN), width=width, color=color, verbose=True
    )
    if not color:
        assert "\x1b" not in text
        assert all(cell_len(line) <= max(width, 20) for line in text.splitlines())
    assert not {"\x07", "\u202e", "\t"} & set(text)


def test_numbers_stand_in_columns() -> None:
    text = render_plan(
        report(metric(), metric("acc", flip_rate=0.09)), width=80, color=False, verbose=True
    )
    rows = [line.split() for line in text.splitlines() if line.startswith(("  perp", "  acc"))]
    assert rows[0][:4] == ["perplexity", "0.56", "[0.42,", "0.84]"]
    assert rows[0][4] == "645"
    assert "1:04 [1:00, ?]" in text
    assert "153,600" in text


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ([metric(ratio=0.2, ratio_range=(0.15, 0.25))], "Enough documents: at most 1,"),
        (
            [metric(), metric("acc", ratio=0.1)],
            "Probably enough documents: evalguard_lastword perplexity needs about 964",
        ),
        ([metric(ratio_range=(0.15, 0.5))], "Probably enough documents: evalguard_lastword perp"),
        ([metric(ratio=1.0, ratio_range=(0.9, 1.1))], "needs about 23,900 for 1.0 sigma, and the"),
        ([metric(ratio=math.inf, ratio_range=(1.0, math.inf))], "needs more than can be said for"),
        (
            [HARD, HARDER],
            "Too few documents: both metrics fall short, and most of all evalguard_lastword f1",
        ),
        (
            [metric(), HARD, HARDER],
            "Too few documents: 2 of 3 metrics fall short, and most of all evalguard_lastword f1",
        ),
        ([BROKEN], "Nothing can be planned from this pilot."),
    ],
)
def test_the_first_sentence_says_whether_the_documents_are_enough(
    metrics: list[MetricPlan], said: str
) -> None:
    assert said in first_sentence(*metrics)


def test_a_remark_about_several_metrics_is_said_once() -> None:
    same = ("heavy tails",)
    plans = (metric(caveats=same), metric("acc", caveats=same), metric("f1"))
    text = render_plan(report(*plans), width=80, color=False, verbose=True)
    assert text.count("heavy tails") == 1
    assert "evalguard_lastword perplexity, acc: heavy tails" in text


def test_what_json_cannot_hold_is_null_with_a_note() -> None:
    document = plan_document(report(OPEN))
    json.dumps(document, allow_nan=False)
    assert document["metrics"][0]["detectable_sigma_range"][1] is None
    assert document["costs"][0]["expected_seconds_range"][1] is None
    assert any("detectable_sigma_range[1] is +infinite" in note for note in document["notes"])


def test_a_plan_whose_documents_are_enough_ends_with_the_comparison_to_type() -> None:
    enough = metric(ratio=0.2, ratio_range=(0.15, 0.25))
    typed = "evalguard plan --base './the original' --cand b --pilot 32 --limit 900 -v"
    screen = render_plan(report(enough, command=typed), width=80, color=False)
    assert "Next, to compare:" in screen
    assert "evalguard compare --base './the original' --cand b --limit 900" in screen
    of_a_run = render_plan(
        report(enough, command="evalguard plan --run reports/a"), width=80, color=False
    )
    assert "Next: to compare with the same options." in of_a_run


def test_every_plan_keeps_its_contract() -> None:
    jsonschema.Draft202012Validator.check_schema(plan_schema())
    validator = jsonschema.Draft202012Validator(plan_schema())
    for metrics in ((), (metric(), HOSTILE, BROKEN, OPEN)):
        document = plan_document(report(*metrics))
        validator.validate(document)
        assert {*plan_schema()["required"]} == {*document}
