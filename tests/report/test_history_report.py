"""A history for people, at any width, and for programs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from history_examples import METRIC, documents, keep_nights, night, right
from rich.cells import cell_len

from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_page import HistoryResult
from evalguard.nights.history_questions import (
    HistorySelection,
    check_history,
    find_environment_changes,
    find_flips,
    find_trends,
    list_runs,
)
from evalguard.nights.history_report import NightMetric

STEP = np.repeat([0.2, 1.3], 20) + np.tile([0.02, -0.02], 20)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.sqlite"


def answers(file: Path) -> list[HistoryResult]:
    wanted = HistorySelection()
    return [
        HistoryResult(list_runs(file, wanted)),
        HistoryResult(find_trends(file, wanted)),
        HistoryResult(find_flips(file, wanted, first="latest~1", second="latest")),
        HistoryResult(check_history(file)),
    ]


@pytest.mark.parametrize("width", [30, 80, 200])
def test_no_line_is_wider_than_the_terminal(file: Path, width: int) -> None:
    keep_nights(file, STEP)
    for answer in answers(file):
        lines = answer.render(width=width).splitlines()
        assert lines
        assert max(map(cell_len, lines)) <= width
        assert "\x1b" not in "".join(lines)


def test_a_step_is_told_with_its_run_and_what_changed_there(file: Path) -> None:
    with HistoryFile(file, create=True) as history:
        for day, sigma in enumerate(STEP):
            environment = {"packages": {"torch": "2.12" if day < 20 else "2.13"}}
            run = night(day, environment=str(day < 20))
            kept = StoredMetric(metric=replace(METRIC, sigma=float(sigma)))
            history.add(run, [kept], environment)
    answer = HistoryResult(find_trends(file, HistorySelection()))
    text = " ".join(answer.render().split())
    assert "worse by 1.1000 ± 0.0065 sigma from run 21 on (2026-01-21): 0.2000" in text
    assert "changed there: packages.torch 2.12 -> 2.13 in run 21" in text
    (trend,) = json.loads(answer.to_json())["trends"]
    (point,) = trend["change_points"]
    assert (point["run"], point["earliest_run"], point["latest_run"]) == (21, 21, 21)
    assert point["step"] == pytest.approx(1.1)
    assert point["changes"] == [
        {"run": 21, "what": "packages.torch", "before": "2.12", "after": "2.13"}
    ]


def in_points(share: float) -> NightMetric:
    """A figure of answers of which the base has none, as a history of any version keeps it."""
    return replace(
        METRIC, metric="loops", filter="text", higher_is_better=False, base=0.0, base_stderr=0.0,
        candidate=share, sigma=math.inf if share else 0.0, sigma_low=0.0 if share else -math.inf,
        sigma_high=math.inf, paired_stderr=math.sqrt(share * (1.0 - share) / 40), margin=None,
        margin_text="1pp", lost=round(40 * share), won=0,
    )  # fmt: skip


def test_a_figure_of_which_the_base_has_none_has_a_trend_in_points(file: Path) -> None:
    shares = [0.0, 0.05, 0.0, 0.05, 0.0] * 4 + [0.5, 0.55, 0.5, 0.45, 0.5] * 4
    with HistoryFile(file, create=True) as history:
        for day, share in enumerate(shares):
            history.add(night(day), [StoredMetric(metric=in_points(share))], {})
    answer = HistoryResult(find_trends(file, HistorySelection()))
    text = " ".join(answer.render().split())
    assert "1 change point: port against orig, drift over nights" in text
    assert "worse by 48.00 ± 0.92 pp from run 21 on (2026-01-21): 2.0" in text
    assert "the latest 50.0 ± 7.9 pp" in text
    assert "inf" not in text
    assert "50.0 ± 7.9 pp" in HistoryResult(list_runs(file, HistorySelection())).render()
    (trend,) = json.loads(answer.to_json())["trends"]
    assert trend["unit"] == "pp"
    assert all(one["used"] for one in trend["nights"])
    assert trend["nights"][-1]["drift_in_unit"] == pytest.approx(50.0)
    assert [one["sigma"] for one in trend["levels"]] == [None, None]
    assert trend["levels"][1]["mean"] == pytest.approx(50.0, abs=1.0)


def test_points_are_the_unit_of_all_nights_where_a_base_scatters_in_some(file: Path) -> None:
    scattering = replace(
        in_points(0.25), base=0.05, base_stderr=0.0345, sigma=5.8, sigma_low=2.0, sigma_high=9.6,
        margin=1.0, margin_text="1 sigma",
    )  # fmt: skip
    with HistoryFile(file, create=True) as history:
        history.add(night(0), [StoredMetric(metric=in_points(0.25))], {})
        history.add(night(1), [StoredMetric(metric=scattering)], {})
    (trend,) = find_trends(file, HistorySelection()).trends
    assert trend.unit == "pp"
    drifts = [one.metric.drift_in(trend.unit)[0] for one in trend.nights]
    assert drifts == [pytest.approx(25.0), pytest.approx(20.0)]
    assert [one.margin_in("pp") for one in trend.nights] == [1.0, pytest.approx(3.45)]


MEAN: dict[str, Any] = {"lost": None, "won": None}


@pytest.mark.parametrize(
    ("changed", "unit", "drift"),
    [
        ({"margin_text": "1 sigma"}, "pp", 25.0),  # right and wrong answers are points
        ({"margin_text": ""}, "pp", 25.0),  # kept before margins were
        (MEAN, "pp", 25.0),  # means of repeats, held to 1pp
        (MEAN | {"margin_text": "10%", "base": 40.0, "candidate": 50.0}, "%", 25.0),
        ({"higher_is_better": True, "base": 1.0, "candidate": 0.75}, "pp", 25.0),
        (MEAN | {"margin_text": "1 sigma"}, "sigma", math.inf),
        ({"base_stderr": 0.05, "sigma": 5.0, "sigma_high": 9.0}, "sigma", 5.0),
        ({"base_stderr": None, "sigma": None}, "sigma", None),
    ],
)  # fmt: skip
def test_a_drift_has_the_unit_in_which_it_has_a_size(
    changed: dict[str, Any], unit: str, drift: float | None
) -> None:
    metric = replace(in_points(0.25), **changed)
    assert metric.unit == unit
    assert metric.drift == (None if drift is None else pytest.approx(drift))


def test_behind_a_change_stands_the_command_that_shows_its_documents(file: Path) -> None:
    keep_nights(file, STEP)
    lines = HistoryResult(find_trends(file, HistorySelection())).render(width=200).splitlines()
    command = lines[lines.index("Next, to see which documents changed:") + 1].strip()
    assert command == f"evalguard history flips 20 21 --base orig --cand port --history {file}"
    found = find_flips(
        file, HistorySelection(base="orig", candidate="port"), first="20", second="21"
    )
    assert HistoryResult(found).render()


def test_many_metrics_have_a_line_each(file: Path) -> None:
    metrics = [replace(METRIC, metric=f"metric{number}") for number in range(5)]
    with HistoryFile(file, create=True) as history:
        for day in range(6):
            history.add(night(day), [StoredMetric(metric=metric) for metric in metrics], {})
    report = find_trends(file, HistorySelection())
    assert [trend.scan.alpha for trend in report.trends] == [0.01] * 5
    text = HistoryResult(report).render()
    assert sum("▁▁▁▁▁▁" in line for line in text.splitlines()) == 5
    assert "among these 5 trends is at most 5%" in " ".join(text.split())


def test_nights_without_a_number_are_left_out_and_said(file: Path) -> None:
    keep_nights(file, [*STEP[:6], float("inf")])
    answer = HistoryResult(find_trends(file, HistorySelection()))
    assert "1 of 7 nights has no finite sigma" in " ".join(answer.render().split())
    nights = json.loads(answer.to_json())["trends"][0]["nights"]
    assert [(one["used"], one["sigma"]) for one in nights][-1] == (False, None)


def test_a_pair_without_any_number_is_told(file: Path) -> None:
    failed = replace(METRIC, sigma=None, paired_stderr=None, outcome="failed", gated=False)
    with HistoryFile(file, create=True) as history:
        history.add(night(1, state="failed"), [StoredMetric(metric=failed)], {})
    assert "the latest failed" in HistoryResult(find_trends(file, HistorySelection())).render()
    assert "failed" in HistoryResult(list_runs(file, HistorySelection())).render()


def test_documents_that_broke_again_are_named_with_the_night(file: Path) -> None:
    with HistoryFile(file, create=True) as history:
        for day, wrong in enumerate([{4, 5, 6}, {1}, {4, 5, 6, 7}]):
            kept = StoredMetric(metric=METRIC, documents=documents(right(*wrong)))
            history.add(night(day), [kept], {})
    found = find_flips(file, HistorySelection(), first="latest~1", second="latest")
    text = " ".join(HistoryResult(found).render().split())
    assert "lost 4: documents 4, 5, 6, 7" in text
    assert "broken in run 3: 4 (0 still, 1 for the first time, 3 again)" in text
    assert "3 of the 4 that broke were broken in run 1 (2026-01-01 03:00), too" in text


def test_hostile_names_do_not_reach_the_terminal(file: Path) -> None:
    name = "\x1b[31mred\u202e\n"
    keep_nights(file, STEP, base=name, candidate=name)
    for answer in answers(file):
        assert "\x1b" not in answer.render()
        assert "\u202e" not in answer.render()
        json.loads(answer.to_json())


def test_a_trend_shows_the_metrics_own_margin_and_a_change_of_the_unit_but_not_of_its_size(
    file: Path,
) -> None:
    with HistoryFile(file, create=True) as history:
        for day, sigma in enumerate(STEP):
            own = {"margin": 1.5, "margin_text": "1.5 sigma"}
            if day >= 20:  # so many sigmas as the base's standard error of that night makes it
                own = {"margin": 2.0 + day / 100.0, "margin_text": "2%"}
            metric = replace(METRIC, sigma=float(sigma), **own)
            history.add(night(day, margin=0.5), [StoredMetric(metric=metric)], {})
    answer = HistoryResult(find_trends(file, HistorySelection()))
    text = " ".join(answer.render().split())
    assert "changed there: margin 1.5 sigma -> 2% in run 21" in text
    assert any(line.lstrip().startswith("2.39 ") for line in answer.render().splitlines())
    (trend,) = find_trends(file, HistorySelection()).trends
    assert [one.what for one in find_environment_changes(*trend.nights[30:32], lambda _: {})] == []
