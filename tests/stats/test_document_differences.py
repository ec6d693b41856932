"""Differences of single documents: scatter, and the furthest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_tables import paired

from evalguard.stats.influence import document_differences

SCORES = st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0)), min_size=2, max_size=30)


@given(SCORES)
def test_scatter_is_numpys_sample_standard_deviation(scores: list[tuple[float, float]]) -> None:
    base, candidate = (np.array(side) for side in zip(*scores, strict=True))
    found = document_differences(paired(base, candidate))
    assert found is not None
    d = base - candidate
    assert found.sd == pytest.approx(np.std(d, ddof=1), rel=1e-9, abs=1e-12)
    assert found.largest == np.max(np.abs(d))
    assert abs(d[found.doc_id]) == found.largest


def test_the_furthest_document_is_named_by_its_id() -> None:
    scores = paired(np.array([0.0, 1.0, 0.0]), np.array([0.0, 1.0, 1.0]))
    ids = np.array([4, 7, 9])
    moved = replace(
        scores,
        base=replace(scores.base, doc_ids=ids),
        candidate=replace(scores.candidate, doc_ids=ids),
    )
    found = document_differences(moved)
    assert found is not None
    assert (found.doc_id, found.largest) == (9, 1.0)
