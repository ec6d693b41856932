"""A figure of generated answers that fails is searched: which of eight settings makes it loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bisect_generations import SEED, local, served

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [0, 2], ids=["loops", "valid_json"])
def test_the_flag_that_spoils_5_of_15_answers_of_a_server_is_named(
    number: int, tmp_path: Path
) -> None:
    row = served(SEED, number, tmp_path)
    assert row.exact
    assert row.status == "minimal"
    assert row.share == pytest.approx(1 / 3)
    assert row.spent <= row.alone / 3


@pytest.mark.data
@pytest.mark.parametrize("number", [1, 2], ids=["first_difference_beyond_ties", "loops"])
def test_the_setting_that_spoils_a_trained_models_texts_is_named_and_texts_end_early(
    number: int, tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.bisect_generations.SHARED", shared_data)
    row = local(SEED, number, tmp_path)
    assert row.exact
    assert row.unit == "tokens"
    assert row.spent <= row.alone / 3
