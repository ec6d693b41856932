"""What each document adds to a drift, as the files of a run hold it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from fake_models import table

from evalguard.comparison.run_record import add_drift_columns, compute_document_drifts
from evalguard.comparison.table_comparisons import compare_tables
from evalguard.core.compare_report import CompareReport, RunDocuments, RunIdentity
from evalguard.core.gate import Gate
from evalguard.core.scores import ScoreTable
from evalguard.engine.scored_side import ScoredSide

RNG = np.random.default_rng(7)
N = 60
BASE = -RNG.gamma(2.0, 1.0, N)
CANDIDATE = BASE - RNG.normal(0.02, 0.1, N)
WEIGHTS = RNG.integers(3, 20, N).astype(float)


def metric(values: Any, name: str, **changes: Any) -> ScoreTable:
    return table(values, metric=name, **changes)


def sides() -> tuple[tuple[ScoreTable, ...], tuple[ScoreTable, ...]]:
    made = []
    for values in (BASE, CANDIDATE):
        made.append(
            (
                metric(values > -1.5, "acc"),
                metric(-values, "brier", higher_is_better=False),
                metric(values, "perplexity", aggregation="perplexity", higher_is_better=False),
                metric(
                    values, "bits_per_byte", aggregation="bits_per_byte", weights=WEIGHTS,
                    higher_is_better=False,
                ),
            )
        )  # fmt: skip
    return made[0], made[1]


def found_in(
    base: tuple[ScoreTable, ...], candidate: tuple[ScoreTable, ...]
) -> tuple[CompareReport, dict[str, Any]]:
    gate = Gate()
    comparisons = compare_tables(base, candidate, gate=gate)
    names = [RunIdentity(name=name, digest=name) for name in "ab"]
    report = CompareReport(
        base=names[0],
        candidate=names[1],
        comparisons=comparisons,
        gate=gate.judge(comparisons),
        exit_code=0,
        created="2026-01-01T00:00:00+00:00",
    )
    scored = (
        ScoredSide(identity=names[0], tables=base),
        ScoredSide(identity=names[1], tables=candidate),
    )
    return report, compute_document_drifts(report, scored, frozenset())


def test_drifts_of_a_linear_metric_add_up_to_sigma() -> None:
    report, found = found_in(*sides())
    for comparison in report.comparisons:
        parts = found["t"][f"drift:none:{comparison.metric}"]
        total = math.fsum(parts.values())
        assert comparison.sigma is not None
        tolerance = 0.3 if comparison.metric == "perplexity" else 1e-9  # to first order there
        assert total == pytest.approx(comparison.sigma, rel=tolerance)


def test_they_are_the_contributions_of_the_influential_documents() -> None:
    report, found = found_in(*sides())
    for comparison in report.comparisons:
        assert comparison.influence is not None
        for document in comparison.influence.documents:
            part = found["t"][f"drift:none:{comparison.metric}"][document.doc_id]
            assert part == pytest.approx(document.contribution, rel=1e-9)


def test_what_failed_or_has_no_standard_error_has_no_drifts() -> None:
    base = (metric([1.0] * 9, "flat"), metric([1.0, 0.0] * 9, "nan"), metric([1.0], "alone"))
    candidate = (metric([0.0] * 9, "flat"), metric([math.nan] * 18, "nan"))
    _, found = found_in(base, candidate)
    assert found == {}


def test_columns_are_in_the_order_of_the_documents() -> None:
    columns = add_drift_columns(
        {"doc_id": [3, 1, 2], "doc": list("abc")}, {"drift:f:m": {1: 0.1, 2: 0.2}}
    )
    assert columns == {"doc_id": [3, 1, 2], "doc": list("abc"), "drift:f:m": [None, 0.1, 0.2]}


def test_documents_tell_their_drifts_and_their_mean_kl() -> None:
    documents = RunDocuments(
        task="t",
        columns={
            "doc_id": [4, 7, 9],
            "drift:none:acc:x": [0.1, None, 0.2],
            "base:text": [None] * 3,
        },
        tokens={"doc_id": np.array([4, 4, 9]), "kl": np.array([0.1, 0.3, 0.5])},
    )
    assert documents.drifting == (("none", "acc:x"),)
    assert documents.drifts("none", "acc:x") == [0.1, None, 0.2]
    assert documents.drifts("none", "acc") is None
    assert documents.mean_kl() == [pytest.approx(0.2), None, pytest.approx(0.5)]
    assert dataclasses.replace(documents, tokens={}).mean_kl() is None
