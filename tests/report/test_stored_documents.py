"""What every version of evalguard wrote is read, and a contract does not change unseen."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from contract_keys import KEYS, contract_keys
from example_floors import DIVERGENT, SHIFTS, floor_report
from stored_examples import STORED, documents

from evalguard.floors.known_floors import read_floor
from evalguard.report.compare_document import compare_document, read_report
from evalguard.report.schemas import SCHEMAS
from evalguard.tracing.trace_report import read_trace, trace_document

VERSIONS = ("0.1.0", "0.2.0")
KEPT = {
    (version, name): kept
    for version in VERSIONS
    for name, kept in json.loads((STORED / f"{version}.json").read_text(encoding="utf-8")).items()
}


def of_kind(kind: str) -> list[Any]:
    found = [(key, kept) for key, kept in KEPT.items() if key[1].split()[0] == kind]
    return [pytest.param(kept, id=" ".join(key)) for key, kept in found]


def lost(written: Any, kept: Any, path: str = "") -> list[str]:
    """What an earlier document says and a later one does not; it may have more keys."""
    if isinstance(kept, dict) and isinstance(written, dict):
        gone = [f"{path}.{key}" for key in kept if key not in written]
        there = [key for key in kept if key in written]
        return gone + [x for k in there for x in lost(written[k], kept[k], f"{path}.{k}")]
    if path.endswith((".caveats", ".notes")):  # numbers that are null may be told in any order
        written, kept = sorted(written), sorted(kept)
    if isinstance(kept, list) and isinstance(written, list) and len(written) == len(kept):
        return [x for i, one in enumerate(kept) for x in lost(written[i], one, f"{path}[{i}]")]
    return [] if written == kept else [f"{path}: {written!r} for {kept!r}"]


# Dropped before the first release (docs/json.md): documents that hold it are read all the same.
RETIRED = "across_tasks"


def without_checksum(kept: Any) -> Any:
    """All that a later version still says."""
    gone = ("checksum", RETIRED, f"{RETIRED}_reason")
    told = {key: value for key, value in kept.items() if key not in gone}
    if "notes" in told:
        told["notes"] = [note for note in told["notes"] if RETIRED not in note]
    if "non_finite" in told:
        places = told["non_finite"].items()
        told["non_finite"] = {at: kind for at, kind in places if not at.startswith(RETIRED)}
    return told


@pytest.mark.parametrize("kept", of_kind("compare"))
def test_a_stored_comparison_is_read_and_written_again_with_all_that_it_said(kept: Any) -> None:
    assert lost(compare_document(read_report(kept)), without_checksum(kept)) == []


@pytest.mark.parametrize("kept", of_kind("trace"))
def test_a_stored_trace_is_read_and_written_again_with_all_that_it_said(kept: Any) -> None:
    assert lost(trace_document(read_trace(kept)), without_checksum(kept)) == []


@pytest.mark.parametrize("kept", of_kind("floor"))
def test_a_stored_floor_is_read_as_it_was_measured(kept: Any) -> None:
    measured = read_floor(kept, "it")
    made = floor_report(*SHIFTS, distribution_shifts=DIVERGENT)
    assert list(measured.floors.values()) == list(made.floors)
    if kept["distribution_floors"]:
        assert list(measured.distributions.values()) == list(made.distribution_floors)


@pytest.mark.parametrize("name", documents())
def test_what_is_written_has_what_was_written_before(name: str) -> None:
    assert lost(documents()[name], without_checksum(KEPT["0.2.0", name])) == []


@pytest.mark.parametrize("name", documents())
def test_what_is_written_fits_its_schema_and_the_schema_every_key(name: str) -> None:
    written, schema = documents()[name], SCHEMAS[name.split()[0]]()
    jsonschema.Draft202012Validator(schema).validate(written)
    assert schema["required"] == [key for key in schema["properties"] if key in written]


def test_every_contract_has_a_schema_that_is_one() -> None:
    assert list(SCHEMAS) == ["compare", "floor", "nightly", "plan", "tensors", "trace"]
    for name in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(SCHEMAS[name]())


def test_the_keys_of_the_contracts_are_those_of_the_golden_list() -> None:
    """Where keys were added, ``python contract_keys.py FILE`` writes the list anew."""
    assert contract_keys() == KEYS.read_text(encoding="utf-8").splitlines()


def described(part: Any, named: Any) -> bool:
    """Whether a schema, or the record that it refers to, has a description."""
    inner = [*part.get("anyOf", ()), *([part["items"]] if "items" in part else [])]
    if "$ref" in part:
        inner.append(named[part["$ref"].rpartition("/")[2]])
    return "description" in part or any(described(one, named) for one in inner)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_of_a_contract_is_described(name: str) -> None:
    schema = SCHEMAS[name]()
    named = schema["$defs"]
    silent = [
        f"{record}.{key}"
        for record, part in {name: schema, **named}.items()
        for key, inner in part["properties"].items()
        if not described(inner, named)
    ]
    assert silent == []
