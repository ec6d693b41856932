"""A report as a tracked run: the report's own numbers, no secrets, and what CI calls its group."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from any_reports import reports
from distribution_examples import distribution
from example_bisections import bisection, culprit, measured, search
from example_reports import DEMO, comparison, failed, report
from hypothesis import HealthCheck, given, settings

from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Influence, InfluentialDocument
from evalguard.core.findings import Finding
from evalguard.core.tracked_run import TrackedRun
from evalguard.publish.tracked_comparison import CiOrigin, build_tracked_run, read_origin
from evalguard.report.compare_document import compare_document


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)


def check_plain(run: TrackedRun) -> None:
    """JSON holds it, whatever names and numbers it was made of."""
    text = json.dumps(dataclasses.asdict(run), allow_nan=False)
    assert json.loads(text) is not None


def test_the_numbers_are_those_of_the_report() -> None:
    run, written = build_tracked_run(DEMO), compare_document(DEMO)
    for one in written["comparisons"]:
        place = f"{one['task']}/{one['metric']}"
        for name in ("base", "base_stderr", "candidate", "candidate_stderr", "sigma", "p_value"):
            assert run.scalars[f"{place}/{name}"] == one[name]
        low, high = one["sigma_interval"]
        assert run.scalars[f"{place}/sigma_low"] == low
        assert run.scalars[f"{place}/sigma_high"] == high
        assert run.summary[f"{place}/outcome"] == one["outcome"]
    assert run.scalars["evalguard_lastword/acc/flips_lost"] == 60
    assert run.scalars["gate/exit_code"] == written["exit_code"]


def test_what_has_no_number_has_no_scalar_and_what_is_infinite_is_said_in_words() -> None:
    run = build_tracked_run(report(failed(), comparison(metric="acc", sigma=math.inf)))
    assert not [name for name in run.scalars if name.startswith("lambada_openai/perplexity/s")]
    assert run.summary["lambada_openai/perplexity/outcome"] == "failed"
    assert run.summary["lambada_openai/acc/sigma"] == "inf"
    assert "lambada_openai/acc/sigma" not in run.scalars


def test_what_every_reader_must_see_is_in_the_summary() -> None:
    found = Finding(kind="same_model", text="base and candidate are one model")
    run = build_tracked_run(report(comparison(), findings=(found,)))
    assert run.summary["notes"] == found.text
    assert "notes" not in build_tracked_run(report(comparison())).summary


def test_metrics_of_two_filters_have_two_names() -> None:
    run = build_tracked_run(
        report(comparison(filter="strict"), comparison(filter="flexible", sigma=9.0))
    )
    assert run.scalars["lambada_openai/perplexity,strict/sigma"] == 1.465272
    assert run.scalars["lambada_openai/perplexity,flexible/sigma"] == 9.0


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=30)
@given(reports())
def test_any_report_becomes_a_plain_run(any_report: CompareReport) -> None:
    check_plain(build_tracked_run(dataclasses.replace(any_report, run_folder=None)))


def test_the_forest_plot_draws_every_metric_on_a_page_that_loads_nothing() -> None:
    page = build_tracked_run(DEMO).pages["forest"]
    drawn = page.count('class="chart forest ')
    assert drawn == len(DEMO.comparisons) + 1, "a row each, and the axis"
    assert "default-src 'none'" in html.unescape(page)
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page)


def test_kl_stands_beside_the_forest_plot_and_in_a_table_where_it_was_measured() -> None:
    unknown = distribution(task="unknown", failure="they share no vocabulary")
    run = build_tracked_run(report(comparison(), distributions=(distribution(), unknown)))
    table = run.tables["distributions"]
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (row["task"], row["positions"], row["exact"]) == ("evalguard_rolling", 48_211, True)
    assert row["kl_mean"] == run.scalars["evalguard_rolling/kl_mean"] == 0.01234
    assert (row["kl_low"], row["kl_high"]) == pytest.approx((0.01152, 0.01316))
    assert (row["kl_p99"], row["kl_max"], row["same_top1"]) == (0.1123, 2.3119, 0.98123)
    page = html.unescape(run.pages["forest"])
    assert "0.01234 ± 0.00041" in page
    assert "they share no vocabulary" in page
    assert "distributions" not in build_tracked_run(report(comparison())).tables
    check_plain(run)


def test_drifts_and_mean_kl_are_what_is_charted() -> None:
    flat = comparison(metric="acc", sigma=None, sigma_interval=None, drift=0.02)
    run = build_tracked_run(report(comparison(), flat, distributions=(distribution(),)))
    assert run.charts == (
        "lambada_openai/perplexity/sigma",
        "lambada_openai/acc/drift",
        "evalguard_rolling/kl_mean",
    )
    assert build_tracked_run(report(failed())).charts == ()


def test_every_link_of_the_forest_page_leads_somewhere_on_it() -> None:
    page = build_tracked_run(report(comparison(caveats=("few documents",)))).pages["forest"]
    linked = set(re.findall(r'href="#([^"]+)"', page))
    assert "caveat-1" in linked
    assert linked <= set(re.findall(r'id="([^"]+)"', page))


def test_only_a_regression_alarms() -> None:
    alert = build_tracked_run(report(comparison())).alert
    assert alert is not None
    assert alert.title == "fla-port regressed against orig"
    assert "1.47 standard errors" in alert.text
    passed = comparison(
        sigma=0.1,
        sigma_interval=(-0.1, 0.3),
        outcome="unchanged",
        significant=False,
        certain=False,
    )
    assert build_tracked_run(report(passed)).alert is None
    assert build_tracked_run(report(failed())).alert is None


def test_secrets_stay_here() -> None:
    given_token = "evalguard compare --base_model_args token=hf_abcdefghijklmnopqrstuvwxyz"
    environment = {"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz", "python": "3.11"}
    run = build_tracked_run(report(comparison(), command=given_token, environment=environment))
    assert "hf_" not in json.dumps(dataclasses.asdict(run))
    assert run.config["environment"]["python"] == "3.11"


def test_the_probes_of_a_bisection_are_a_table_in_their_order() -> None:
    probes = (measured(documents=200), measured("attn_softcap", documents=50))
    found = bisection(search(measured=probes, culprits=(culprit(),)))
    run = build_tracked_run(report(comparison(), bisect=found))
    assert run.job_type == "bisect"
    table = run.tables["bisect/probes"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["sigma"] for row in rows] == [one.drift_sigma for one in probes]
    assert [row["cost"] for row in rows] == [one.cost for one in probes]
    assert [row["at candidate value"] for row in rows] == ["none", "attn_softcap"]
    assert [row[0] for row in run.tables["bisect/culprits"].rows] == ["attn_softcap"]
    check_plain(run)


def test_documents_that_moved_are_named_where_nothing_was_written() -> None:
    worst = InfluentialDocument(task="lambada_openai", doc_id=7, contribution=0.4, share=None)
    influence = Influence(documents=(worst,), moved=3, half=1, removed=1, sigma_without=1.0)
    moved = report(comparison(influence=influence), run_folder=None)
    run = build_tracked_run(moved, documents=True)
    (row,) = run.tables["moved_documents"].rows
    assert row[:5] == ("lambada_openai", "perplexity", 7, 0.4, None)


def test_files_of_the_run_folder_go_with_its_documents_but_for_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").mkdir()
    for name, size in (("result.json", 2), ("samples/t.parquet", 9), ("tokens-t.parquet", 1)):
        (tmp_path / name).write_bytes(b"x" * size)
    monkeypatch.setattr("evalguard.publish.tracked_comparison.LARGEST_FILE", 5)
    run = build_tracked_run(report(comparison(), run_folder=str(tmp_path)), documents=True)
    assert run.files == {"result.json": str(tmp_path / "result.json")}
    assert run.summary["files left out"] == "samples/t.parquet"


GITHUB = {
    "GITHUB_ACTIONS": "true", "GITHUB_REF": "refs/pull/12/merge", "GITHUB_SHA": "abc",
    "GITHUB_RUN_ID": "99", "GITHUB_REPOSITORY": "o/r", "GITHUB_SERVER_URL": "https://github.com",
}  # fmt: skip
GITLAB = {
    "GITLAB_CI": "true", "CI_MERGE_REQUEST_IID": "4", "CI_COMMIT_SHA": "def",
    "CI_PIPELINE_ID": "5", "CI_PIPELINE_URL": "https://gitlab.example/p/5",
}  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, CiOrigin()),
        (
            GITHUB,
            CiOrigin(
                group="pull request 12",
                commit="abc",
                url="https://github.com/o/r/actions/runs/99",
            ),
        ),
        (
            {**GITHUB, "GITHUB_REF": "refs/heads/main", "GITHUB_SERVER_URL": ""},
            CiOrigin(group="workflow 99", commit="abc"),
        ),
        (
            GITLAB,
            CiOrigin(group="merge request 4", commit="def", url="https://gitlab.example/p/5"),
        ),
        (
            {**GITLAB, "CI_MERGE_REQUEST_IID": ""},
            CiOrigin(group="pipeline 5", commit="def", url="https://gitlab.example/p/5"),
        ),
    ],
)
def test_runs_of_one_pull_request_or_pipeline_are_a_group(
    variables: dict[str, str], expected: CiOrigin
) -> None:
    assert read_origin(variables) == expected


def test_a_night_is_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GITHUB.items():
        monkeypatch.setenv(name, value)
    assert build_tracked_run(DEMO).group == "pull request 12"
    night: Any = build_tracked_run(DEMO, job_type="nightly", group="night of 2026-11-21")
    assert (night.job_type, night.group) == ("nightly", "night of 2026-11-21")
