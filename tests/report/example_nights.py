"""Nights and histories that the tests of pages show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from history_examples import METRIC, night

from evalguard.nights.change_points import change_points
from evalguard.nights.history_report import Night, Trend, TrendReport
from evalguard.nights.night_report import (
    BrokenTonight,
    NightlyMetric,
    NightReport,
    NightStep,
    PairChanges,
    PairNight,
)

KEY = ("lastword", "none", "acc")
LONG = "a_metric_whose_name_somebody_made_as_long_as_this_with,flexible-extract"
_MADE: dict[str, Any] = {"task": "lastword", "filter": "none", "metric": "acc", "n": 40}


def a_night(candidate: str = "port") -> NightReport:
    """A pair that regressed, with all that can be said of it, and one that gave no number."""
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


def a_trend(nights: int, metric: str = "acc") -> Trend:
    """A metric over nights, with a step of 1.4 sigma after the twentieth."""
    sigmas = np.where(np.arange(nights) < 20, 0.2, 1.6) + 0.01 * (np.arange(nights) % 3)
    found = tuple(
        Night(
            run=replace(night(day), number=day + 1),
            metric=replace(
                METRIC, metric=metric, sigma=float(one), sigma_low=one - 0.1, sigma_high=one + 0.1
            ),
        )
        for day, one in enumerate(sigmas)
    )
    scan = change_points(sigmas, np.full(nights, 0.05))
    return Trend(
        key=found[0].metric.key, nights=found, scan=scan, used=tuple(range(nights)),
        changes=((),) * len(scan.points),
    )  # fmt: skip


def a_history(candidate: str = "port", *trends: Trend) -> TrendReport:
    """A pair's trends: many nights, few, one, and a long name."""
    return TrendReport(
        file="h.sqlite",
        base="orig",
        candidate=candidate,
        alpha=0.05,
        trends=trends or (a_trend(60), a_trend(3, "perplexity"), a_trend(1, LONG)),
    )
