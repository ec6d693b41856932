"""A token budget is measured by one process, and is that of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalguard.store import fact_cache as budget_store
from evalguard.store.fact_cache import BudgetStore

FACTS = {"device": "cpu", "layers": 2}


def never() -> int:
    raise AssertionError("measured again")


def test_what_was_measured_once_is_known(tmp_path: Path) -> None:
    assert BudgetStore(tmp_path).find_or_measure(FACTS, lambda: 512) == 512
    assert BudgetStore(tmp_path).find_or_measure(FACTS, never) == 512
    assert BudgetStore(tmp_path).find_or_measure({**FACTS, "layers": 3}, lambda: 64) == 64
    assert not list(tmp_path.glob("*.lock"))


def test_while_another_process_measures_its_budget_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = BudgetStore(tmp_path), BudgetStore(tmp_path)
    monkeypatch.setattr(budget_store.time, "sleep", lambda _: other.put(FACTS, 2048))

    def measure_while_asked() -> int:
        assert store.find_or_measure(FACTS, never) == 2048
        return 2048

    assert other.find_or_measure(FACTS, measure_while_asked) == 2048


def test_one_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_store, "PATIENCE", 0.02)
    monkeypatch.setattr(budget_store, "PAUSE", 0.001)
    store, other = BudgetStore(tmp_path), BudgetStore(tmp_path)

    def hang_while_asked() -> int:
        assert store.find_or_measure(FACTS, lambda: 1024) == 1024
        return 512

    assert other.find_or_measure(FACTS, hang_while_asked) == 512


def test_a_folder_that_cannot_be_made_costs_a_measurement(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert BudgetStore(tmp_path / "file" / "devices").find_or_measure(FACTS, lambda: 256) == 256


def test_a_measurement_that_fails_frees_the_turn(tmp_path: Path) -> None:
    def fails() -> int:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        BudgetStore(tmp_path).find_or_measure(FACTS, fails)
    assert list(tmp_path.iterdir()) == []


def test_a_budget_comes_back_for_the_same_facts_only(tmp_path: Path) -> None:
    store = BudgetStore(tmp_path / "devices")
    assert store.get(FACTS) is None
    store.put(FACTS, 2048)
    store.put(FACTS, 1024)
    assert BudgetStore(tmp_path / "devices").get(FACTS) == 1024
    assert store.get({**FACTS, "layers": 3}) is None


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"format": "other/1"}', "null", '"text"', "\x00"]
)
def test_a_damaged_file_is_as_if_it_were_not_there(tmp_path: Path, damage: str) -> None:
    store = BudgetStore(tmp_path)
    store.put(FACTS, 2048)
    (file,) = tmp_path.glob("*.json")
    file.write_text(damage)
    assert store.get(FACTS) is None
    store.put(FACTS, 512)
    assert store.get(FACTS) == 512


@pytest.mark.parametrize("budget", ["0", "-5", "true", "1.5", '"512"'])
def test_what_is_no_budget_is_not_taken(tmp_path: Path, budget: str) -> None:
    store = BudgetStore(tmp_path)
    store.put(FACTS, 2048)
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text().replace("2048", budget))
    assert store.get(FACTS) is None
