"""A night in its renderings: the same words, harmless whatever a model is called."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
from history_examples import METRIC, night

from evalguard.history.change_points import change_points
from evalguard.history.report import Trend, TrendReport
from evalguard.night_report import (
    BrokenTonight,
    NightlyMetric,
    NightReport,
    NightStep,
    PairChanges,
    PairNight,
)
from evalguard.report.html.history import history_page
from evalguard.report.night.document import night_document, night_schema
from evalguard.report.night.html import night_page
from evalguard.report.night.markdown import night_markdown
from evalguard.report.night.summary import night_mail

KEY = ("lastword", "none", "acc")
_MADE: dict[str, Any] = {"task": "lastword", "filter": "none", "metric": "acc", "n": 40}
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e@team"


def a_night(candidate: str = "port") -> NightReport:
    metric = NightlyMetric(
        sigma=1.8, low=1.1, high=2.5, outcome="regressed", state="regressed", **_MADE
    )
    pair = PairNight(
        base="orig", candidate=candidate, state="regressed", exit_code=1, margin=1.0,
        reason="1 of 1 gated metrics regressed (lastword acc)", created="2026-11-21T03:00:00+00:00",
        metrics=(metric,), culprits=("norm_dtype",), run_folder="/r/nightly/n/run",
    )  # fmt: skip
    gone = PairNight(base="orig", candidate="gone", state="failed", exit_code=3, reason="no model")
    step = NightStep(
        key=KEY, created="2026-11-19T03:00:00+00:00", earliest="2026-11-19T03:00:00+00:00",
        latest="2026-11-20T03:00:00+00:00", before=0.4, after=1.7, stderr=0.1,
        changed=("packages.torch 2.12 -> 2.13",),
    )  # fmt: skip
    broken = BrokenTonight(
        key=KEY, total=9, new=2, again=5, repaired=0, alike="2026-10-02T03:00:00+00:00", shared=5,
        by_chance=0.4,
    )  # fmt: skip
    changes = PairChanges(
        base="orig", candidate=candidate, was="passed", regressed=(KEY,), steps=(step,),
        broken=(broken,),
    )  # fmt: skip
    return NightReport(
        name="n", created="2026-11-21T03:00:00+00:00", finished="2026-11-21T03:09:00+00:00",
        guard="evalguard.yaml", folder="/r/nightly/n", history="/r/nightly/history.sqlite",
        previous="2026-11-20T03:00:00+00:00", resumed=0, pairs=(pair, gone),
        changes=(changes, PairChanges(base="orig", candidate="gone", failed=True)), exit_code=1,
        version="0.1.0",
    )  # fmt: skip


def test_all_that_is_new_stands_on_top_of_every_page() -> None:
    report = a_night()
    said = (
        "NEW: port against orig regressed on lastword acc.",
        "NEW: gone against orig gave no number: no model.",
        "is worse by 1.30 ± 0.10 sigma since 2026-11-19; changed there: packages.torch 2.12",
        "5 documents that were broken before, 2 for the first time; 5 of them as on 2026-10-02",
    )
    mail = " ".join(night_mail(report).split())
    for line in said:
        assert line in mail
        assert line in night_page(report)
    assert mail.startswith("Subject: evalguard nightly 2026-11-21: REGRESSED, 1 new")
    assert "guilty: norm_dtype" in mail
    assert "norm\\_dtype" in night_markdown(report)
    assert 'href="run/report.html"' in night_page(report)


def test_documents_that_break_as_often_as_chance_does_are_not_told_of() -> None:
    report = a_night()
    (broken,) = report.changes[0].broken
    often = replace(report.changes[0], broken=(replace(broken, by_chance=4.0),))
    few = replace(report.changes[0], broken=(replace(broken, again=2, shared=2),))
    for changes in (often, few):
        assert "Broken again" not in night_mail(
            replace(report, changes=(changes, report.changes[1]))
        )


def test_a_name_cannot_act_on_any_page() -> None:
    report = a_night(HOSTILE)
    page = night_page(report)
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    assert "http" not in page.split("<main", 1)[1]
    for text in (night_mail(report), night_markdown(report), page):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script>" not in night_markdown(report)


def test_the_document_satisfies_its_schema_and_holds_no_infinity() -> None:
    report = a_night()
    metric = replace(report.pairs[0].metrics[0], sigma=float("inf"))
    report = replace(report, pairs=(replace(report.pairs[0], metrics=(metric,)), report.pairs[1]))
    document = json.loads(json.dumps(night_document(report), allow_nan=False))
    jsonschema.validate(document, night_schema())
    assert document["pairs"][0]["metrics"][0]["sigma"] is None
    assert document["counts"] == {"passed": 0, "regressed": 1, "undecided": 0, "failed": 1}


@pytest.mark.parametrize("nights", [1, 40])
def test_a_history_s_page_shows_every_night_and_change_point(nights: int) -> None:
    sigmas = np.where(np.arange(nights) < 20, 0.2, 1.6) + 0.01 * (np.arange(nights) % 3)
    from evalguard.history import Night

    found = tuple(
        Night(
            run=replace(night(day), number=day + 1),
            metric=replace(
                METRIC, sigma=float(sigma), sigma_low=sigma - 0.1, sigma_high=sigma + 0.1
            ),
        )
        for day, sigma in enumerate(sigmas)
    )
    scan = change_points(sigmas, np.full(nights, 0.05))
    trend = Trend(
        key=METRIC.key, nights=found, scan=scan, used=tuple(range(nights)),
        changes=((),) * len(scan.points),
    )  # fmt: skip
    report = TrendReport(
        file="h.sqlite", base="orig", candidate=HOSTILE, alpha=0.05, trends=(trend,)
    )
    page = history_page(report)
    assert page.count("<circle") == nights
    assert ("worse by 1.40" in page) == (nights == 40)
    assert "<script>alert" not in page
