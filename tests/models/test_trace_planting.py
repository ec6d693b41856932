"""Faults planted at random in seven architectures: the guilty module is named first."""

from __future__ import annotations

import pytest

from benchmarks.trace_faults import ARCHITECTURES, FAULTS, HEALTHY
from benchmarks.trace_planting import check_healthy, run_plantings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # transformers on missing kernels of hybrid models
]


def test_the_guilty_module_is_named_first() -> None:
    """Of 60 plantings, three for each fault; the whole study has 300."""
    plantings = [p for p in run_plantings(3 * len(FAULTS), seed=0) if not p.inert]
    assert all(planting.innocent == 0 for planting in plantings)
    assert [planting for planting in plantings if planting.told is False] == []
    missed = [planting for planting in plantings if planting.place != 1]
    assert len(missed) <= 0.05 * len(plantings) + 1, missed


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_port_has_no_suspect(kind: str) -> None:
    for architecture in ARCHITECTURES:
        for dtype in HEALTHY[kind][1]:
            assert check_healthy(0, architecture, kind, dtype) == ""
