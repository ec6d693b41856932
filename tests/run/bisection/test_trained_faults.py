"""The benchmark of faults that nobody declared, on a model that is trained for it."""

from __future__ import annotations

import pytest

from benchmarks import unseen_faults
from benchmarks.bisect_undeclared import rows
from benchmarks.trained_models import read_training
from benchmarks.undeclared_faults import FAULTS

_KIND = "gpt_neox"


def test_faults_are_told_apart_by_model_kind_and_name() -> None:
    for faults in (FAULTS, (*unseen_faults.FAULTS, *unseen_faults.HEALTHY)):
        assert len({(fault.model, fault.kind, fault.name) for fault in faults}) == len(faults)


@pytest.mark.nightly
def test_a_trained_model_knows_more_than_how_often_words_come() -> None:
    told = read_training(_KIND)
    assert told["perplexity"] < told["unigram"] / 10


@pytest.mark.nightly
def test_of_faults_in_a_trained_model_the_guilty_are_named_and_nobody_else() -> None:
    wanted = [
        number
        for number, fault in enumerate(FAULTS)
        if fault.model == _KIND and fault.kind in ("weights", "config", "healthy")
    ]
    for number, row in rows(FAULTS, 192, wanted):
        healthy = FAULTS[number].kind == "healthy"
        assert row.verdict == ("nobody" if healthy else "named"), row
        assert row.within, row
