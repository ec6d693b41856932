"""Nights as a history keeps them, made up."""

from __future__ import annotations

import functools
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalguard.nights.document_scores import DocumentScores, fingerprints
from evalguard.nights.history import database
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_report import NightMetric, NightRun

N = 40

RUN = NightRun(
    created="2026-11-20T03:00:00+00:00",
    base="orig",
    base_digest="b" * 16,
    candidate="port",
    candidate_digest="c" * 16,
    exit_code=0,
    passed=True,
    state="passed",
    margin=1.0,
    fail_on="margin",
    version="0.1.0",
    environment="e" * 16,
    folder="reports/x",
)
METRIC = NightMetric(
    task="lastword",
    filter="none",
    metric="acc",
    higher_is_better=True,
    n=N,
    n_used=N,
    base=0.5,
    base_stderr=0.08,
    candidate=0.45,
    candidate_stderr=0.08,
    sigma=0.625,
    sigma_low=-0.5,
    sigma_high=1.75,
    paired_stderr=0.04,
    p_value=0.1,
    method="mcnemar-exact",
    outcome="undecided",
    significant=False,
    certain=False,
    bit_identical=False,
    gated=True,
    lost=3,
    won=1,
)


def night(day: int, **changed: Any) -> NightRun:
    """A run at 03:00 of a day of the year 2026."""
    when = np.datetime64("2026-01-01") + np.timedelta64(day, "D")
    return replace(RUN, created=f"{when}T03:00:00+00:00", **changed)


def right(*wrong: int, n: int = N) -> np.ndarray[Any, np.dtype[np.float64]]:
    """0/1 scores: all right but for these documents."""
    scores = np.ones(n)
    scores[list(wrong)] = 0.0
    return scores


def documents(candidate: Any, base: Any = None, **changed: Any) -> DocumentScores:
    """Documents of acc; the base has all right unless it is given."""
    n = len(candidate)
    made = DocumentScores(
        aggregation="mean",
        higher_is_better=True,
        doc_ids=np.arange(n),
        prints=fingerprints([f"document {number}" for number in range(n)]),
        base=np.ones(n) if base is None else np.asarray(base, float),
        candidate=np.asarray(candidate, float),
    )
    return replace(made, **changed)


def keep_nights(path: Path, sigmas: Any, **changed: Any) -> None:
    """Keep a night per sigma, with documents in which few are broken."""
    rng = np.random.default_rng(7)
    with HistoryFile(path, create=True) as history:
        for day, sigma in enumerate(sigmas):
            run = night(day, **changed)
            scores = right(*rng.choice(N, 3, replace=False))
            metric = replace(METRIC, sigma=float(sigma))
            kept = StoredMetric(metric=metric, documents=documents(scores))
            history.add(run, [kept], {"packages": {"torch": "2.13"}})


class FullDisk(sqlite3.Connection):
    """Has no room for more pages than the file has already."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        (pages,) = self.execute("PRAGMA page_count").fetchone()
        self.execute(f"PRAGMA max_page_count = {pages}")


def connect_by(kind: type[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let histories be read and written by another kind of connection."""
    connect = functools.partial(sqlite3.connect, factory=kind)
    monkeypatch.setattr(database.sqlite3, "connect", connect)
