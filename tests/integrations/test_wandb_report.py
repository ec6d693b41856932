"""The night's report on W&B: saved through its own API, and harmless whatever names it holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from wandb_server import ENTITY, Serve

from evalguard.core.tracked_night import NightTrend, NightVerdict, TrackedNight, TrendPoint
from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracking import save_night
from evalguard.publish.wandb_tracker import summarize_verdicts, trend_table, verdict_table

REGRESSED = NightVerdict(
    base="orig",
    candidate="int4",
    state="regressed",
    sentence="int4 is worse *than* orig | by 2",
    url="https://wandb.example/runs/1",
)
DIED = NightVerdict(base="orig", candidate="port", state=None, sentence="out of memory")
PASSED = NightVerdict(base="orig", candidate="bf16", state="passed", sentence="no drift")
TREND = NightTrend(
    base="orig",
    candidate="int4",
    task="lambada",
    metric="acc",
    points=(
        TrendPoint(created="2026-11-19T02:00:00Z", drift=0.12),
        TrendPoint(created="2026-11-20T02:00:00Z", drift=None),
        TrendPoint(created="2026-11-21T02:00:00Z", drift=2.04, low=1.5, high=2.6),
    ),
)
NIGHT = TrackedNight(name="2026-11-21", verdicts=(PASSED, DIED, REGRESSED), trends=(TREND,))


def test_what_regressed_stands_first_with_its_run_linked() -> None:
    rows = verdict_table(NIGHT.verdicts).splitlines()[2:]
    linked = "[orig vs int4](https://wandb.example/runs/1)"
    assert rows[0] == rf"| {linked} | **regressed** | int4 is worse \*than\* orig \| by 2 |"
    assert rows[1] == "| orig vs port | **no result** | out of memory |"
    assert rows[2] == "| orig vs bf16 | **passed** | no drift |"


def test_trends_show_tonight_with_its_interval_and_the_nights_before() -> None:
    (row,) = trend_table([TREND]).splitlines()[2:]
    assert row == "| orig vs int4 | lambada acc | +2.04 (+1.50 to +2.60) | +0.12, - |"
    empty = NightTrend(base="a", candidate="b", task="t", metric="m", points=())
    assert trend_table([empty]).splitlines()[2] == "| a vs b | t m | - |  |"


def test_drifts_of_a_base_that_does_not_scatter_are_in_points() -> None:
    (row,) = trend_table([replace(TREND, unit="pp")]).splitlines()[2:]
    assert row == "| orig vs int4 | lambada acc | +2.0pp (+1.50 to +2.60) | +0.1pp, - |"


def test_the_summary_counts() -> None:
    assert summarize_verdicts(NIGHT.verdicts) == "3 pairs: 1 regressed, 1 failed"
    assert summarize_verdicts([PASSED]) == "1 pair: all passed"


HOSTILE = (
    "a|b\n<script> [x](y) ![](z) https://evil.example www.evil.example @all #1 !2 8a1f2b3c $x$ "
    "me@evil.example </td> `x`"
)


def test_names_and_texts_are_no_markup_and_no_link() -> None:
    hostile = NightVerdict(
        base=HOSTILE, candidate=HOSTILE, state="regressed", sentence=HOSTILE,
        url="https://wandb.example/runs/1) [x](https://evil.example",
    )  # fmt: skip
    trend = replace(TREND, base=HOSTILE, task=HOSTILE, metric=HOSTILE)
    parser = MarkdownIt("commonmark").enable("table")
    for page, links in ((verdict_table([hostile]), 1), (trend_table([trend]), 0)):
        found = [t for token in parser.parse(page) for t in (token, *(token.children or ()))]
        hrefs = [token.attrs["href"] for token in found if token.type == "link_open"]
        assert len(hrefs) == links
        assert all(str(href).startswith("https://wandb.example/") for href in hrefs)
        assert not {token.type for token in found} & {"image", "html_inline", "html_block"}
        assert len([token for token in found if token.type == "tr_open"]) == 2
        for token in found:
            if token.type == "text":
                assert not re.search(
                    r"://|www\.|[@#!]\w|(?<!\\)\$x", token.content.replace("\\$", "")
                ), token.content


def test_a_cell_is_never_long() -> None:
    page = verdict_table([replace(REGRESSED, sentence="x" * 1_000_000)])
    assert len(page) < 2_000


@pytest.mark.slow
def test_the_report_is_saved_in_the_project_of_the_runs(
    serve: Serve, bounds: SendingLimits
) -> None:
    server = serve()
    sent = save_night(NIGHT, bounds=bounds)
    assert (sent.state, sent.reason) == ("sent", "")
    assert sent.place.startswith(f"{server.url}/{ENTITY}/evalguard/reports/evalguard-2026-11-21--")
    (view,) = server.arrived.views
    assert (view["displayName"], view["projectName"]) == ("evalguard 2026-11-21", "evalguard")
    assert view["description"] == "3 pairs: 1 regressed, 1 failed"
    spec = json.loads(view["spec"])
    texts = [block["content"] for block in spec["blocks"] if block["type"] == "markdown-block"]
    assert texts == [verdict_table(NIGHT.verdicts), trend_table(NIGHT.trends)]
    (grid,) = [block["metadata"] for block in spec["blocks"] if block["type"] == "panel-grid"]
    (panel,) = grid["panelBankSectionConfig"]["panels"]
    assert panel["config"]["xAxis"] == "run:createdAt"
    assert panel["config"]["yAxis"] == "summary:lambada/acc/sigma"
    wanted = {one["key"]["name"]: one["value"] for one in grid["runSets"][0]["filters"]["filters"]}
    assert wanted == {"jobType": "nightly", "displayName": "orig vs int4"}
    assert server.arrived.unknown == []


@pytest.mark.slow
def test_a_report_that_cannot_be_saved_gives_its_reason(
    monkeypatch: pytest.MonkeyPatch, short_bounds: SendingLimits
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    sent = save_night(NIGHT, bounds=short_bounds)
    assert sent.state == "failed"
    assert sent.reason
