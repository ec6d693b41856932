"""A measured floor counts for the same model, documents and environment; else that is said."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fake_models import table

from evalguard.comparison.table_comparisons import compare_tables
from evalguard.config.options import CompareOptions
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.gate import Gate
from evalguard.core.scorer import ModelDescription
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value, digest_of
from evalguard.errors import UsageError
from evalguard.floors.known_floors import (
    FLOORS_FOLDER,
    FloorStore,
    compare_with_floors,
    floor_environment,
    floor_model_key,
    floor_task_keys,
    read_floor,
    read_given_floor,
)

IDENTITY: dict[str, Value] = {
    "weights": {"pretrained": "w"},
    "tokenizer": "t",
    "dtype": "float32",
    "model": "hf",
    "model_args": {"dtype": "float32", "max_length": 64},
    "policy": {"batch_size": 16},
    "threads": 1,
}
BASE = ModelDescription(
    model_type="hf",
    identity=IDENTITY,
    dtype="float32",
    environment={"device": "cpu (x)", "packages": {"torch": "2.13.0", "transformers": "5.0"}},
)
TABLE = table([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
WORSE = table([0.0, 0.0, 1.0, 1.0, 0.0, 1.0])


KL = DistributionComparison(
    task="t", n=6, positions=9, top_k=10, confidence=0.95, kl=Figure(value=0.004)
)


def with_identity(**changes: Value) -> ModelDescription:
    return dataclasses.replace(BASE, identity={**IDENTITY, **changes})


def document(
    of: ModelDescription = BASE, scores: ScoreTable = TABLE, **changes: Any
) -> dict[str, Any]:
    """What ``evalguard floor`` keeps, as far as a comparison reads it."""
    entry = {
        "task": "t", "filter": "none", "metric": "acc", "n": 6, "sigma": 0.1,
        "sigma_upper": 0.2, "document_sd": 0.0, "variation": "batch size 1",
        "bit_identical": False,
    }  # fmt: skip
    kl_entry = {
        "task": "t", "n": 6, "positions": 9, "kl": 1e-4, "kl_upper": 2e-4, "kl_max": 0.01,
        "top1_changed": 0.0, "variation": "eager attention", "bit_identical": False,
    }  # fmt: skip
    content = {
        "schema": "evalguard.floor/1",
        "created": "2026-11-20T12:00:00+00:00",
        "model": {"key": floor_model_key(of)},
        "environment_key": digest_of(floor_environment(of)),
        "environment": floor_environment(of),
        "task_keys": floor_task_keys([scores]),
        "floors": [entry],
        "distribution_floors": [kl_entry],
    }
    return {**content, **changes}


def keep(folder: Path, content: dict[str, Any]) -> None:
    key = content["task_keys"]["t"]
    store = FloorStore(folder / FLOORS_FOLDER)
    store.put(content["model"]["key"], key, content["environment_key"], content)


def looked_up(
    folder: Path,
    base: ModelDescription | None = BASE,
    *,
    scores: ScoreTable = TABLE,
    floor: Path | None = None,
) -> tuple[Comparison, tuple[str, ...]]:
    options = CompareOptions(cache_dir=folder, floor=floor)
    compared = compare_tables([TABLE], [WORSE], gate=Gate())
    held = compare_with_floors(compared, [KL], [scores], base, options)
    (found,), (held_kl,) = held.comparisons, held.distributions
    assert (found.floor is None) == (held_kl.floor is None)
    return found, held.notes


def test_the_floor_that_was_kept_for_this_base_is_found(tmp_path: Path) -> None:
    keep(tmp_path, document())
    compared, notes = looked_up(tmp_path)
    assert compared.sigma is not None
    assert compared.floor is not None
    assert compared.floor.times == pytest.approx(abs(compared.sigma) / 0.1)
    assert (compared.floor.variation, compared.floor.n) == ("batch size 1", 6)
    assert compared.floor.measured == "2026-11-20T12:00:00+00:00"
    assert notes == ()


def test_the_mean_kl_stands_beside_its_own_floor(tmp_path: Path) -> None:
    keep(tmp_path, document())
    compared = compare_tables([TABLE], [WORSE], gate=Gate())
    options = CompareOptions(cache_dir=tmp_path)
    (found,) = compare_with_floors(compared, [KL], [TABLE], BASE, options).distributions
    assert found.floor is not None
    assert found.floor.times == pytest.approx(40.0)
    assert found.floor.variation == "eager attention"


def test_a_floor_without_distributions_is_a_floor(tmp_path: Path) -> None:
    content = document()
    del content["distribution_floors"]
    keep(tmp_path, content)
    compared = compare_tables([TABLE], [WORSE], gate=Gate())
    held = compare_with_floors(compared, [KL], [TABLE], BASE, CompareOptions(cache_dir=tmp_path))
    assert held.comparisons[0].floor is not None
    assert held.distributions[0].floor is None


def test_without_a_floor_nothing_is_said(tmp_path: Path) -> None:
    assert looked_up(tmp_path)[0].floor is None
    assert looked_up(tmp_path)[1] == ()
    assert looked_up(tmp_path, None) == looked_up(
        tmp_path, dataclasses.replace(BASE, identity=None)
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"batch_size": 4}},
        {"threads": 8},
        {"model_args": {"attn_implementation": "eager", "device": "cpu", "max_length": 64}},
    ],
)
def test_what_a_floor_varies_is_no_part_of_the_model(
    tmp_path: Path, changes: dict[str, Value]
) -> None:
    keep(tmp_path, document())
    assert looked_up(tmp_path, with_identity(**changes))[0].floor is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": {"pretrained": "other"}},
        {"tokenizer": "other"},
        {"dtype": "bfloat16"},
        {"settings": [["attr:x.y", 2.0, 2.0]]},
        {"model_args": {"dtype": "float32", "max_length": 32}},
    ],
)
def test_another_model_has_another_floor(tmp_path: Path, changes: dict[str, Value]) -> None:
    keep(tmp_path, document())
    compared, notes = looked_up(tmp_path, with_identity(**changes))
    assert (compared.floor, notes) == (None, ())


def test_a_floor_of_another_environment_is_not_used_and_that_is_said(tmp_path: Path) -> None:
    packages: Value = {"torch": "2.9.0", "transformers": "5.0"}
    elsewhere = dataclasses.replace(BASE, environment={"device": "cpu (x)", "packages": packages})
    keep(tmp_path, document(elsewhere))
    compared, (note,) = looked_up(tmp_path)
    assert compared.floor is None
    assert "another environment (torch 2.9.0, here 2.13.0) and is not used" in note
    assert "evalguard floor measures one here" in note


def test_other_documents_have_another_floor(tmp_path: Path) -> None:
    keep(tmp_path, document())
    other = table([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], prompt_hashes=("other",) * 6)
    assert looked_up(tmp_path, scores=other)[0].floor is None


def test_a_floor_measured_on_the_first_documents_counts_for_all(tmp_path: Path) -> None:
    keep(tmp_path, document(scores=table([1.0, 0.0])))
    assert looked_up(tmp_path)[0].floor is not None


def test_a_damaged_floor_costs_no_verdict(tmp_path: Path) -> None:
    keep(tmp_path, document(floors=[{"task": "t"}]))
    compared, (note,) = looked_up(tmp_path)
    assert compared.floor is None
    assert "not a measured floor" in note


def write(folder: Path, content: object) -> Path:
    path = folder / "floor.json"
    path.write_text(json.dumps(content))
    return path


def test_a_floor_that_is_given_wins_over_the_one_that_was_kept(tmp_path: Path) -> None:
    keep(tmp_path, document())
    entry = {**document()["floors"][0], "sigma": 5.0, "sigma_upper": None}
    path = write(tmp_path, document(floors=[entry]))
    compared, notes = looked_up(tmp_path, floor=path)
    assert compared.floor is not None
    assert compared.floor.within
    assert compared.floor.sigma_upper == float("inf")  # null in the document
    assert notes == ()


def test_a_given_floor_of_another_environment_is_used_and_said(tmp_path: Path) -> None:
    elsewhere = dataclasses.replace(BASE, environment={"device": "cuda (H100)"})
    compared, (note,) = looked_up(tmp_path, floor=write(tmp_path, document(elsewhere)))
    assert compared.floor is not None
    assert "was measured in another environment (device cuda (H100), here cpu (x)" in note


def test_a_given_floor_of_another_model_is_not_used(tmp_path: Path) -> None:
    path = write(tmp_path, document(with_identity(tokenizer="other")))
    compared, (note,) = looked_up(tmp_path, floor=path)
    assert compared.floor is None
    assert "it was measured on another model" in note


@pytest.mark.parametrize("base", [None, dataclasses.replace(BASE, identity=None)])
def test_a_base_that_proves_no_weights_takes_a_given_floor_with_a_caveat(
    tmp_path: Path, base: ModelDescription | None
) -> None:
    compared, (note,) = looked_up(tmp_path, base, floor=write(tmp_path, document()))
    assert compared.floor is not None
    assert "cannot be proven" in note


def test_a_given_floor_says_which_tasks_it_lacks(tmp_path: Path) -> None:
    path = write(tmp_path, document(task_keys={"other": "k"}))
    assert looked_up(tmp_path, floor=path)[1] == (f"the floor in {path} has no task t",)
    path = write(tmp_path, document(task_keys={"t": "k"}))
    (note,) = looked_up(tmp_path, floor=path)[1]
    assert "not used for t: it was measured on other documents" in note


@pytest.mark.parametrize(
    "content",
    [
        {"schema": "evalguard.compare/1"},
        {"schema": "evalguard.floor/1"},
        document(floors=[{**document()["floors"][0], "sigma": -1.0}]),
        document(task_keys=3),
        [],
    ],
)
def test_a_file_that_is_no_floor_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(UsageError) as raised:
        read_given_floor(CompareOptions(floor=write(tmp_path, content)))
    assert "evalguard floor --base MODEL --json" in raised.value.hint


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("floors", {"n": float("inf")}),
        ("floors", {"n": [1]}),
        ("floors", {"sigma": float("nan")}),
        ("floors", {"sigma": True}),
        ("floors", {"sigma": -1.0}),
        ("floors", {"bit_identical": "false"}),
        ("distribution_floors", {"kl": "nan"}),
        ("distribution_floors", {"kl_upper": float("nan")}),
        ("distribution_floors", {"positions": 1.5}),
    ],
)
def test_a_number_that_is_none_is_refused(where: str, changes: dict[str, Any]) -> None:
    content = document()
    content[where][0].update(changes)
    with pytest.raises(UsageError, match="is not a measured floor"):
        read_floor(content, "it")
