"""What a comparison took: in the JSON document, in the terminal, and not in its identity."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
import pytest
from example_reports import comparison, report

from evalguard.core.compare_report import AnswerCounts, Phase, Resources
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.run_costs import format_duration, resources_text

TOOK = Resources(
    phases=(
        Phase(phase="preparing", wall_seconds=4.0, cpu_seconds=3.5),
        Phase(phase="loading", models=("orig",), wall_seconds=9.0, cpu_seconds=8.0),
        Phase(phase="scoring", models=("orig", "port"), wall_seconds=58.2, cpu_seconds=57.0),
        Phase(phase="comparing", wall_seconds=0.9, cpu_seconds=0.9),
    ),
    answers=(
        AnswerCounts(model="orig", documents=2048, kept=1638, tokens=30_000),
        AnswerCounts(model="port", documents=2048, kept=0, tokens=150_000),
    ),
    wall_seconds=72.1,
    cpu_seconds=69.4,
    children_cpu_seconds=0.0,
    peak_memory=412_300_000,
)


def test_the_document_holds_every_phase_and_every_model() -> None:
    written = compare_document(report(comparison(), resources=TOOK))
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    took = written["resources"]
    assert [phase["phase"] for phase in took["phases"]] == [
        "preparing", "loading", "scoring", "comparing",
    ]  # fmt: skip
    assert took["phases"][2]["models"] == ["orig", "port"]
    assert took["answers"][0] == {
        "model": "orig", "documents": 2048, "kept": 1638, "tokens": 30_000,
    }  # fmt: skip
    assert took["tokens"] == 180_000
    assert took["tokens_per_second"] == pytest.approx(180_000 / 58.2)
    assert took["peak_memory_bytes"] == 412_300_000
    assert took["device_peak_memory_bytes"] is None


def test_a_report_that_nobody_measured_says_null() -> None:
    written = compare_document(report(comparison()))
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    assert written["resources"] is None
    assert resources_text(None) == ""


def test_the_terminal_has_one_quiet_line() -> None:
    text = render_terminal(
        report(comparison(), resources=TOOK), width=80, color=False, verbose=True
    )
    line = (
        "Took 1 min 12 s, of which scoring 58 s; 2,048 documents, 40% from the cache;\n"
        "  peak memory 412 MB."
    )
    assert line in text


def test_two_finished_runs_take_time_and_no_documents() -> None:
    nothing = replace(TOOK, answers=(), phases=TOOK.phases[:1], wall_seconds=0.31)
    assert resources_text(nothing) == "Took 0.3 s; peak memory 412 MB."
    beside = replace(nothing, worker_peak_memory=2_100_000_000, device_peak_memory=30_000_000_000)
    assert resources_text(beside) == (
        "Took 0.3 s; peak memory 412 MB; of a worker 2.1 GB; of the device 30 GB."
    )


def test_what_it_took_is_no_part_of_a_result() -> None:
    assert report(comparison(), resources=TOOK) == report(comparison())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"),
        (3599.4, "59 min 59 s"), (3599.6, "1 h 0 min"), (3900.0, "1 h 5 min"),
    ],
)  # fmt: skip
def test_durations_are_rounded_to_what_a_person_reads(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
