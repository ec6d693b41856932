"""Every report is a document of the contract evalguard.compare/1."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from any_reports import reports
from example_reports import DEMO, INF, comparison, failed, report
from hypothesis import given, settings
from whole_report import WHOLE

import evalguard
from evalguard.core.compare_report import CompareReport, RunIdentity, SettingState
from evalguard.core.comparison import Companion
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.record_documents import FORMS

VALIDATOR = jsonschema.Draft202012Validator(compare_schema())

# The keys of the design page, which may never be renamed or dropped.
PROMISED = {
    "": {
        "schema", "base", "candidate", "comparisons", "gate", "bisect", "environment", "exit_code",
    },
    "base": {"name", "digest"},
    "candidate": {"name", "digest"},
    "gate": {"passed", "margin", "fail_on", "family_false_alarm"},
    "comparisons": {
        "task", "filter", "metric", "higher_is_better", "n", "n_used", "base", "base_stderr",
        "candidate", "candidate_stderr", "sigma", "sigma_interval", "p_value", "method",
        "false_alarm_probability", "outcome", "significant", "certain", "caveats",
    },
}  # fmt: skip


def quiet(outcome: str, sigma: float, low: float, high: float) -> Any:
    return comparison(
        outcome=outcome, sigma=sigma, sigma_interval=(low, high), significant=False, certain=False
    )


EXAMPLES = {
    "regressed": DEMO,
    "failed": report(failed()),
    "infinite": report(comparison(sigma=INF, sigma_interval=(0.5, INF), base_stderr=0.0)),
    "undecided": report(quiet("undecided", 0.4, -0.4, 1.2)),
    "unchanged": report(quiet("unchanged", 0.0, -0.1, 0.1), run_folder=None),
    "improved": report(quiet("improved", -0.4, -0.5, -0.3)),
    "nothing compared": report(),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_document_validates_and_is_strict_json(name: str) -> None:
    written = compare_document(EXAMPLES[name])
    VALIDATOR.validate(written)
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def test_companions_are_listed_beside_the_deciding_test() -> None:
    test = Companion(method="sign-flip", p_value=0.25, resamples=99, seed=7, note="a note")
    written = compare_document(report(comparison(companions=(test,))))
    VALIDATOR.validate(written)
    (listed,) = written["comparisons"][0]["companions"]
    assert listed == dataclasses.asdict(test)
    assert compare_document(DEMO)["comparisons"][0]["companions"] == []


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(compare_schema())


def test_the_promised_keys_are_there_with_the_values_of_the_report() -> None:
    written = compare_document(DEMO)
    assert set(written) >= PROMISED[""]
    for name in ("base", "candidate", "gate"):
        assert set(written[name]) >= PROMISED[name]
    first = written["comparisons"][0]
    assert set(first) >= PROMISED["comparisons"]
    assert written["schema"] == "evalguard.compare/1"
    assert written["exit_code"] == 1
    assert first["sigma"] == 1.465272
    assert first["sigma_interval"] == [1.30, 1.63]
    assert written["comparisons"][1]["flips"] == [60, 36]
    assert written["candidate"]["settings"][1] == {
        "name": "attn_scale",
        "value": 0.0668,
        "reference": 0.0625,
        "candidate": 0.0668,
        "target": "attr:model.layers.*.self_attn.scaling",
        "effective": 0.0668,
    }


def test_every_key_of_a_document_is_described_by_the_schema() -> None:
    described = compare_schema()
    for path, value, part in objects(compare_document(DEMO), described):
        extra = set(value) - set(part["properties"])
        assert not extra, f"{path}: {extra}"


def test_the_keys_of_a_document_stand_in_the_order_of_the_schema() -> None:
    for path, value, part in objects(compare_document(WHOLE), compare_schema()):
        assert list(value) == [key for key in part["properties"] if key in value], path


def objects(value: Any, part: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield every object of a document that the schema describes key by key."""
    if "$ref" in part:
        part = compare_schema()["$defs"][part["$ref"].rpartition("/")[2]]
    if isinstance(value, dict) and "properties" in part:
        yield path, value, part
        for key, item in value.items():
            yield from objects(item, part["properties"].get(key, {}), f"{path}.{key}")
    elif isinstance(value, list) and "items" in part:
        for item in value:
            yield from objects(item, part["items"], f"{path}[]")


def test_infinite_and_missing_numbers_are_null_with_a_caveat() -> None:
    (first,) = compare_document(EXAMPLES["infinite"])["comparisons"]
    assert first["sigma"] is None
    assert first["sigma_interval"] == [0.5, None]
    assert "sigma is +infinite, so it is null here" in first["caveats"]
    assert "sigma_interval[1] is +infinite, so it is null here" in first["caveats"]
    (first,) = compare_document(EXAMPLES["failed"])["comparisons"]
    assert first["p_value"] is None
    assert "p_value does not exist, so it is null here" in first["caveats"]


def test_a_null_without_a_caveat_is_refused_by_the_schema() -> None:
    written = compare_document(EXAMPLES["failed"])
    written["comparisons"][0]["caveats"] = []
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(written)


def test_an_infinite_setting_is_null_with_a_note() -> None:
    odd = SettingState(name="x", value=INF, reference=1, candidate=INF, target="config.x")
    shown = report(candidate=RunIdentity(name="c", digest="d", settings=(odd,)))
    written = compare_document(shown)
    VALIDATOR.validate(written)
    assert written["candidate"]["settings"][0]["value"] is None
    assert any("candidate.settings[0].value is +infinite" in note for note in written["notes"])


@settings(max_examples=60, deadline=None)
@given(reports())
def test_any_report_is_a_document_of_the_contract(shown: CompareReport) -> None:
    written = compare_document(shown)
    VALIDATOR.validate(written)
    json.dumps(written, allow_nan=False).encode("ascii")


def test_a_form_belongs_to_one_class_of_the_package() -> None:
    """Forms are found by the names of records, so that no two of these may be alike."""
    sources = Path(evalguard.__file__).parent.rglob("*.py")
    classes = Counter(
        name
        for file in sources
        for name in re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {name: classes[name] for name in FORMS} == dict.fromkeys(FORMS, 1)
