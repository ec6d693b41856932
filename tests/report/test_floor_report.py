"""A measured floor as document and as text, and as one line beside a comparison's drift."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from distribution_examples import distribution
from example_floors import DIVERGENT, SHIFTS, divergent, floor_report, moved
from example_reports import comparison, failed, report
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from evalguard.core.distribution_comparison import Figure
from evalguard.core.noise_floor import Floor, beside, distribution_floors, kl_beside, metric_floors
from evalguard.core.verdict import decide
from evalguard.floors.floor_page import render_floor
from evalguard.floors.floor_report import FloorReport, floor_document, floor_schema
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.floor_texts import floor_line

VALIDATOR = jsonschema.Draft202012Validator(floor_schema())
INF = float("inf")
EXAMPLES = {
    "some": floor_report(*SHIFTS),
    "distributions": floor_report(*SHIFTS, distribution_shifts=DIVERGENT),
    "endless": floor_report(*SHIFTS, distribution_shifts=(divergent("a", INF),)),
    "identical": floor_report(moved("batch size 1", "acc", 0.0, 0.0)),
    "infinite": floor_report(moved("batch size 1", "acc", INF, 0.1)),
    "no mean": floor_report(
        moved(
            "batch size 1", "f1", 2.0, 0.1, document_sd=None, largest_difference=None,
            largest_document=None,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_floor_document_validates_and_is_strict_json(name: str) -> None:
    written = floor_document(EXAMPLES[name])
    VALIDATOR.validate(written)
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def test_the_schema_is_a_schema_and_asks_for_every_key() -> None:
    jsonschema.Draft202012Validator.check_schema(floor_schema())
    written = floor_document(EXAMPLES["distributions"])
    assert set(floor_schema()["required"]) == set(written)
    records = {
        "shifts": "Shift", "floors": "MetricFloor", "distribution_shifts": "DistributionShift",
        "distribution_floors": "TaskDistributionFloor", "variations": "Variation",
        "unmeasured": "Unmeasured",
    }  # fmt: skip
    for name, record in records.items():
        assert set(floor_schema()["$defs"][record]["required"]) == set(written[name][0]), name


def test_an_infinite_floor_is_null_and_named() -> None:
    written = floor_document(EXAMPLES["infinite"])
    assert written["floors"][0]["sigma"] is None
    assert "floors[0].sigma is +infinite, so it is null here" in written["notes"]


def test_one_task_of_a_report_stands_alone() -> None:
    other = moved("batch size 1", "acc", 0.5, 0.1, task="other")
    whole = floor_report(*SHIFTS, other)
    part = whole.only("other")
    assert [floor.task for floor in part.floors] == ["other"]
    assert part.shifts == (other,)
    assert dict(part.task_keys) == {"other": "cc33"}
    VALIDATOR.validate(floor_document(part))


def test_the_table_shows_every_variation_that_moved_something() -> None:
    text = render_floor(EXAMPLES["some"], width=80, color=False, verbose=True)
    assert text.splitlines() == [
        "Unchanged, orig shows a drift of up to 0.031 standard errors (lambada_openai",
        "perplexity, eager attention; intervals reach 0.05): a drift that is no larger",
        "says nothing about a conversion.",
        "",
        "unchanged  orig  hf, 7.2B parameters, bfloat16, digest 3f2a9c0d",
        "The usual run: batch size 16, threads 1, attention sdpa.",
        "",
        "                   sigma [95% interval]  sd     max           flips",
        "lambada_openai perplexity · 5,153 documents",
        "  the same again   0 bit-identical",
        "  batch size 1     -0.01 [-0.03, 0.01]   0.021  0.063 (4017)",
        "  eager attention  +0.03 [0.01, 0.05]    0.019  0.057 (4017)",
        "lambada_openai acc · 5,153 documents",
        "  bit-identical: the same again, batch size 1, eager attention",
        "sigma: drift from the usual run, in its standard errors; above 0 is worse. sd:",
        "of single documents' differences (nats for log-likelihoods); max: the largest of",
        "them, and its document.",
        "",
        "Not measured: device: there is no other kind than cpu",
        "",
        "Kept for comparisons with this base in this environment (1 file).",
    ]


def test_the_distributions_that_moved_stand_below() -> None:
    lines = render_floor(
        EXAMPLES["distributions"], width=80, color=False, verbose=True
    ).splitlines()
    start = lines.index("lambada_openai next tokens · 6,021 tokens")
    assert lines[start - 1 : start + 4] == [
        "                   KL [95% interval]         max     top-1",
        "lambada_openai next tokens · 6,021 tokens",
        "  the same again   0 bit-identical",
        "  batch size 1     0.00018 [9e-05, 0.00036]  0.0054  0.31%",
        "  eager attention  0.00051 [0.00026, 0.001]  0.015   0.31%",
    ]
    assert sentence(EXAMPLES["distributions"]).endswith(
        "Its next-token distributions move by a KL of up to 0.00051 nats a token (lambada_openai, "
        "eager attention)."
    )


def test_a_narrow_terminal_keeps_the_variations_and_loses_columns() -> None:
    lines = render_floor(EXAMPLES["some"], width=42, color=False, verbose=True).splitlines()
    assert "  eager attention  +0.03 [0.01, 0.05]" in lines


@given(st.sampled_from(sorted(EXAMPLES)), st.integers(1, 130), st.text(max_size=40))
def test_no_line_is_wider_than_the_terminal(name: str, width: int, note: str) -> None:
    shown = EXAMPLES[name]
    noted = replace(shown, notes=(note,))
    text = render_floor(noted, width=width, color=False, verbose=True)
    assert max(map(cell_len, text.split("\n"))) <= max(width, 20)
    assert "\x1b" not in text
    assert "\x1b[" in render_floor(shown, width=width, color=True, verbose=True)


def sentence(shown: FloorReport) -> str:
    return " ".join(
        render_floor(shown, width=100, color=False, verbose=True).split("\n\n")[0].split()
    )


def test_each_floor_is_held_against_the_margin_of_its_metric_in_its_own_unit() -> None:
    shown = EXAMPLES["some"]
    perplexity, acc = shown.floors
    own = replace(perplexity, margin=0.02, margin_text="1%"), replace(acc, margin_text="1pp")
    said = sentence(replace(shown, floors=own))
    assert "above the margin of 1% (0.02 sigma): a gate would fail an unchanged model." in said
    not_gated = replace(perplexity, margin=None, margin_text="1%"), own[1]
    assert "a gate would fail" not in sentence(replace(shown, floors=not_gated, margin=1e-3))


def test_of_answers_that_differ_nothing_is_said_to_the_last_bit() -> None:
    scores_alike = moved("the same again", "acc", 0.0, 0.0, other_answers=40)
    text = render_floor(floor_report(scores_alike), width=100, color=False)
    assert "last bit" not in text
    assert "bit-identical" not in text
    assert "other answers in up to 40 of 5153 (lambada_openai acc)" in " ".join(text.split())
    assert "40 answers differ" in text
    repeated = render_floor(
        floor_report(replace(scores_alike, other_answers=0)), width=100, color=False
    )
    assert "to the last bit" in " ".join(repeated.split())


def test_the_sentence_says_when_nothing_moves_and_when_the_gate_would_fail() -> None:
    assert sentence(EXAMPLES["identical"]) == (
        "orig gives every document the same score, to the last bit, under all 3 variations: an "
        "unchanged model shows no drift here."
    )
    assert "above the margin of 1.0: a gate would fail an unchanged" in sentence(
        EXAMPLES["no mean"]
    )


def floor_of(sigma: float, size: float, half: float = 0.0, **changes: Any) -> Floor:
    (floor,) = metric_floors([moved("batch size 1", "perplexity", size, half, **changes)])
    return beside(sigma, floor, measured="2026-11-20T11:00:00+00:00")


@pytest.mark.parametrize(
    ("sigma", "size", "half", "said"),
    [
        (1.4, 0.1, 0.01, "the drift is 14 times what an unchanged model shows here (batch size 1)"),
        (-1.4, 0.1, 0.01, "the drift is 14 times what an unchanged model shows here"),
        (0.05, 0.1, 0.01, "the drift is within what an unchanged model shows here (batch size 1)"),
        (0.3, 0.1, 0.4, "the drift is 3 times what an unchanged model shows here, but that is "
                        "known only roughly: it may be 0.5 sigma (batch size 1)"),
        (1.4, 1e-7, 0.0, "the drift is more than 1,000 times what an unchanged model shows here"),
        (1.4, 0.0, 0.0, "a drift, where an unchanged model shows none here (under every "),
        (0.0, 0.0, 0.0, "no drift, as an unchanged model shows here"),
        (INF, 0.1, 0.0, "the drift is far more than what an unchanged model shows here"),
    ],
)  # fmt: skip
def test_a_comparison_says_in_one_line_how_far_above_the_floor_it_is(
    sigma: float, size: float, half: float, said: str
) -> None:
    outcome = decide(sigma, sigma, sigma, 1.0).outcome
    changes = {"outcome": outcome, "sigma_interval": (sigma, sigma)}
    shown = report(comparison(sigma=sigma, floor=floor_of(sigma, size, half), **changes))
    assert floor_line(shown).startswith(f"Floor: {said}")
    text = " ".join(render_terminal(shown, width=80, color=False, verbose=True).split())
    assert f"Floor: {said}" in text


@pytest.mark.parametrize(
    ("kl", "size", "said"),
    [
        (0.004, 1e-4, "the mean KL is 40 times that of an unchanged model (eager attention)."),
        (1e-4, 1e-4, "the mean KL is within that of an unchanged model (eager attention)."),
        (1.5e-4, 1e-4, "1.5 times that of an unchanged model (eager attention, known only "),
        (0.1, 0.0, "the KL of an unchanged model is 0."),
        (0.0, 0.0, "there is no KL either."),
    ],
)
def test_the_mean_kl_of_the_task_stands_in_the_same_line(kl: float, size: float, said: str) -> None:
    (floor,) = distribution_floors([divergent("eager attention", size)])
    measured = distribution(
        task="lambada_openai", kl=Figure(value=kl), floor=kl_beside(kl, floor, measured="")
    )
    shown = report(comparison(floor=floor_of(1.465, 0.1)), distributions=(measured,))
    assert "(batch size 1); " in floor_line(shown)
    assert said in floor_line(shown)
    written = compare_document(shown)
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    assert written["distributions"][0]["floor"]["kl"] == size


def test_a_floor_measured_on_other_documents_says_on_how_many() -> None:
    shown = report(comparison(floor=floor_of(1.465, 0.1, n=64)))
    assert floor_line(shown).endswith("(batch size 1, measured on 64 documents).")


def test_without_a_floor_nothing_is_printed() -> None:
    assert floor_line(report(comparison())) == ""
    assert floor_line(report(failed())) == ""
    assert "Floor" not in render_terminal(report(comparison()), width=80, color=False, verbose=True)


def test_the_contract_has_the_floor_of_a_comparison_or_null() -> None:
    validator = jsonschema.Draft202012Validator(compare_schema())
    floor = floor_of(1.465, 0.1, 0.01)
    written = compare_document(report(comparison(floor=floor)))
    validator.validate(written)
    found = written["comparisons"][0]["floor"]
    assert found["sigma"] == 0.1
    assert found["times"] == floor.times
    assert found["variation"] == "batch size 1"
    assert compare_document(report(comparison()))["comparisons"][0]["floor"] is None
    endless = compare_document(report(comparison(floor=floor_of(1.0, INF))))
    validator.validate(endless)
    assert endless["comparisons"][0]["floor"]["sigma"] is None
    assert "floor.sigma is +infinite, so it is null here" in endless["comparisons"][0]["caveats"]


def test_the_usual_run_names_each_type_that_an_engine_keeps() -> None:
    kept = {"threads": 2, "cache_dtype": ["f16"], "weight_types": ["f32", "q8_0"]}
    text = render_floor(
        replace(EXAMPLES["some"], computation=kept), width=120, color=False, verbose=True
    )
    assert (
        "The usual run: threads 2, keys and values in f16, weights in f32 and q8_0."
        in text.splitlines()
    )
