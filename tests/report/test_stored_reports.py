"""A stored document is read back into the report that it was made of."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from typing import Any

import pytest
from any_reports import reports
from example_bisections import BY_STATUS
from example_reports import DEMO, INF, comparison, failed, report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_report import WHOLE

from evalguard.compare_report import CompareReport
from evalguard.errors import StoreError
from evalguard.report.contract import document
from evalguard.report.stored import read_report

EXAMPLES = {
    "everything": WHOLE,
    "failed": report(failed()),
    "nothing compared": report(),
    "hardly a number": report(
        comparison(sigma=INF, sigma_interval=(0.5, INF), base=-INF, candidate=math.nan)
    ),
    **{
        f"bisection {status}": dataclasses.replace(WHOLE, bisect=found)
        for status, found in BY_STATUS.items()
    },
}


def read(written: dict[str, Any]) -> CompareReport:
    return read_report(json.loads(json.dumps(written)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_report_is_read_back_as_it_was(name: str) -> None:
    shown = EXAMPLES[name]
    assert repr(read(document(shown))) == repr(shown)  # repr: a NaN is not equal to itself


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports(), st.sampled_from([None, *BY_STATUS.values()]))
def test_any_document_is_written_again_to_the_letter(shown: CompareReport, bisect: Any) -> None:
    written = document(dataclasses.replace(shown, bisect=bisect))
    assert document(read(written)) == written


def test_a_group_searched_further_keeps_the_figures_of_what_its_parts_stand_for() -> None:
    found = BY_STATUS["minimal"]
    inside = dataclasses.replace(found.searches[0], inside=("attn_softcap",), culprits=())
    both = dataclasses.replace(found, searches=(*found.searches, inside))
    shown = dataclasses.replace(DEMO, bisect=both)
    assert document(shown)["bisect"]["culprits"] == []
    assert read(document(shown)) == shown


def without(value: Any, key: str) -> Any:
    """A document without a key, wherever it stands."""
    if isinstance(value, dict):
        return {name: without(item, key) for name, item in value.items() if name != key}
    return [without(item, key) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "key",
    ["measured", "resources", "sequential", "accepted", "limits", "influence", "companions",
     "bh_q_value", "bisect_reason", "alone_error_sigma", "subgroups", "floor", "stopping"],
)  # fmt: skip
def test_documents_of_earlier_versions_are_read(key: str) -> None:
    written = document(dataclasses.replace(DEMO, bisect=BY_STATUS["minimal"]))
    again = document(read(without(written, key)))
    assert without(again, key) == without(written, key)


def test_what_an_earlier_version_did_not_say_follows_from_what_it_said() -> None:
    written = document(dataclasses.replace(DEMO, bisect=BY_STATUS["minimal"]))
    gate = {**written["gate"], "gated": without(written["gate"]["gated"], "state")}
    bisect = without(without(written["bisect"], "guilty"), "alone_share")
    assert document(read({**written, "gate": gate, "bisect": bisect})) == written


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": "evalguard.compare/2"}, "'evalguard.compare/2'"),
        ({"schema": None}, "None"),
        ({"gate": None}, "gate is None, not an object"),
        ({"gate": {}}, "gate.gated is None, not a list"),
        ({"comparisons": {}}, "comparisons is {}, not a list"),
        ({"comparisons": [7]}, "comparisons[0] is 7, not an object"),
        ({"comparisons": [{}]}, "comparisons[0].task is missing"),
        ({"exit_code": True}, "exit_code is True, not a whole number"),
        ({"exit_code": "1"}, "exit_code is '1', not a whole number"),
        ({"notes": "x"}, "notes is 'x', not a list"),
        ({"created": 5}, "created is 5, not a text"),
        ({"environment": []}, "environment is [], not an object"),
        ({"bisect": {"searches": []}}, "bisect.searches has none of whole settings"),
        ({"across_tasks": {"metrics": [1]}}, "across_tasks.metrics is 1, not an object"),
        ({"resources": {"phases": [{"phase": "x"}]}}, "resources.phases[0].phase is 'x', not one"),
        ({"base": {"name": "a" * 99}}, "base.digest is missing"),
        ({"candidate": {"name": ["b" * 99], "digest": ""}}, "candidate.name is ['bbb"),
    ],
)  # fmt: skip
def test_a_damaged_document_is_refused_with_the_key(change: Any, named: str) -> None:
    with pytest.raises(StoreError, match=re.escape(named)):
        read_report({**document(DEMO), **change})


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(StoreError, match="nested too deeply"):
        read_report({**document(DEMO), "environment": {"deep": deep}})


def test_a_missing_key_is_named_and_a_new_one_ignored() -> None:
    written = document(DEMO)
    for key in ("base", "candidate", "comparisons", "gate", "exit_code", "created"):
        with pytest.raises(StoreError, match=key):
            read_report({name: value for name, value in written.items() if name != key})
    assert read_report({**written, "of a later version": 1}) == read_report(written)


def test_a_caveat_about_another_number_stays_a_caveat() -> None:
    odd = "x.y is +infinite, so it is null here"
    shown = report(comparison(caveats=(odd, "plain")), notes=(odd,))
    assert read(document(shown)) == shown


leaves = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_changed_a_document_is_read_or_refused_in_words(data: st.DataObject) -> None:
    written = json.loads(json.dumps(document(WHOLE)))
    place: Any = written
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = data.draw(leaves)
    with contextlib.suppress(StoreError):  # the only error that there may be
        assert isinstance(read_report(written), CompareReport)
