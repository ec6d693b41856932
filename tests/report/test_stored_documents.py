"""What every version of evalguard wrote is read, and a contract does not change unseen."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from contract_keys import KEYS, contract_keys
from example_floors import DIVERGENT, SHIFTS, floor_report
from stored_examples import STORED, documents, noise_table

from evalguard.report.contract.compare import compare_document
from evalguard.report.contract.json_values import list_schemas, read_schema
from evalguard.report.contract.reading import read_report
from evalguard.report.tensors.contract import parse_noise
from evalguard.report.trace.document import read_trace, trace_document
from evalguard.run.floor.stored_floors import read_floor

VERSIONS = ("0.1.0", "0.2.0")
KEPT = {
    (version, name): kept
    for version in VERSIONS
    for name, kept in json.loads((STORED / f"{version}.json").read_text(encoding="utf-8")).items()
}


def of_kind(kind: str) -> list[Any]:
    found = [(key, kept) for key, kept in KEPT.items() if key[1].split()[0] == kind]
    return [pytest.param(kept, id=" ".join(key)) for key, kept in found]


def holds(written: Any, kept: Any) -> bool:
    """Whether a document has every key and value of an earlier one; it may have more keys."""
    if isinstance(kept, dict):
        return isinstance(written, dict) and all(
            key in written and holds(written[key], value) for key, value in kept.items()
        )
    if isinstance(kept, list):
        return (
            isinstance(written, list)
            and len(written) == len(kept)
            and all(map(holds, written, kept))
        )
    return bool(written == kept)


def without_checksum(kept: Any) -> Any:
    return {key: value for key, value in kept.items() if key != "checksum"}


@pytest.mark.parametrize("kept", of_kind("compare"))
def test_a_stored_comparison_is_read_and_written_again_with_all_that_it_said(kept: Any) -> None:
    assert holds(compare_document(read_report(kept)), without_checksum(kept))


@pytest.mark.parametrize("kept", of_kind("trace"))
def test_a_stored_trace_is_read_and_written_again_with_all_that_it_said(kept: Any) -> None:
    assert holds(trace_document(read_trace(kept)), without_checksum(kept))


@pytest.mark.parametrize("kept", of_kind("floor"))
def test_a_stored_floor_is_read_as_it_was_measured(kept: Any) -> None:
    measured = read_floor(kept, "it")
    made = floor_report(*SHIFTS, distribution_shifts=DIVERGENT)
    assert list(measured.floors.values()) == list(made.floors)
    if kept["distribution_floors"]:
        assert list(measured.distributions.values()) == list(made.distribution_floors)


@pytest.mark.parametrize("kept", of_kind("noise"))
def test_a_stored_noise_table_is_read_as_it_was_measured(kept: Any) -> None:
    assert parse_noise(json.dumps(kept), "it") == noise_table()


@pytest.mark.parametrize("name", documents())
def test_what_is_written_has_what_was_written_before(name: str) -> None:
    assert holds(documents()[name], without_checksum(KEPT["0.2.0", name]))


@pytest.mark.parametrize("name", documents())
def test_what_is_written_fits_its_schema_and_the_schema_every_key(name: str) -> None:
    written, schema = documents()[name], read_schema(name.split()[0])
    jsonschema.Draft202012Validator(schema).validate(written)
    assert schema["required"] == [key for key in schema["properties"] if key in written]


def test_every_contract_has_a_schema_that_is_one() -> None:
    assert list_schemas() == ["compare", "floor", "nightly", "noise", "tensors", "trace"]
    for name in list_schemas():
        jsonschema.Draft202012Validator.check_schema(read_schema(name))


def test_the_keys_of_the_contracts_are_those_of_the_golden_list() -> None:
    """Where keys were added, ``python contract_keys.py FILE`` writes the list anew."""
    assert contract_keys() == KEYS.read_text(encoding="utf-8").splitlines()
