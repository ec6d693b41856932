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

from evalguard.core.compare_report import CompareReport
from evalguard.core.gate import Gate
from evalguard.errors import StoreError
from evalguard.report.compare_document import compare_document, parse_report, read_report

EXAMPLES = {
    "everything": WHOLE,
    "failed": report(failed()),
    "nothing compared": report(),
    "hardly a number": report(
        comparison(
            sigma=INF, sigma_interval=(0.5, INF), base=-INF, candidate=math.nan, certain=False
        )
    ),
    **{
        f"bisection {status}": dataclasses.replace(WHOLE, bisect=found)
        for status, found in BY_STATUS.items()
    },
}

NO_TIME = {
    "phases": [], "answers": [], "wall_seconds": 0, "cpu_seconds": 0, "children_cpu_seconds": 0
}  # fmt: skip


def read(written: dict[str, Any]) -> CompareReport:
    return read_report(json.loads(json.dumps(written)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_report_is_read_back_as_it_was(name: str) -> None:
    shown = EXAMPLES[name]
    assert repr(read(compare_document(shown))) == repr(shown)  # repr: a NaN is not equal to itself


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports(), st.sampled_from([None, *BY_STATUS.values()]))
def test_any_document_is_written_again_to_the_letter(shown: CompareReport, bisect: Any) -> None:
    written = compare_document(dataclasses.replace(shown, bisect=bisect))
    assert compare_document(parse_report(json.loads(json.dumps(written)))) == written


def test_a_group_searched_further_keeps_the_figures_of_what_its_parts_stand_for() -> None:
    found = BY_STATUS["minimal"]
    inside = dataclasses.replace(found.searches[0], inside=("attn_softcap",), culprits=())
    both = dataclasses.replace(found, searches=(*found.searches, inside))
    shown = dataclasses.replace(DEMO, bisect=both)
    assert compare_document(shown)["bisect"]["culprits"] == []
    assert read(compare_document(shown)) == shown


def without(value: Any, key: str) -> Any:
    """A document without a key, wherever it stands."""
    if isinstance(value, dict):
        return {name: without(item, key) for name, item in value.items() if name != key}
    return [without(item, key) for item in value] if isinstance(value, list) else value


def rest(written: dict[str, Any], key: str) -> Any:
    """All else, without the checksum of it."""
    return without(without(written, key), "checksum")


@pytest.mark.parametrize(
    "key",
    ["measured", "resources", "sequential", "accepted", "limits", "influence", "companions",
     "bh_q_value", "bisect_reason", "alone_error_sigma", "subgroups", "floor", "stopping"],
)  # fmt: skip
def test_documents_of_earlier_versions_are_read(key: str) -> None:
    written = compare_document(dataclasses.replace(DEMO, bisect=BY_STATUS["minimal"]))
    again = compare_document(read(without(written, key)))
    assert rest(again, key) == rest(written, key)


def test_what_an_earlier_version_did_not_say_follows_from_what_it_said() -> None:
    written = compare_document(dataclasses.replace(DEMO, bisect=BY_STATUS["minimal"]))
    gate = {**written["gate"], "gated": without(written["gate"]["gated"], "state")}
    bisect = without(without(written["bisect"], "guilty"), "alone_share")
    assert compare_document(read({**written, "gate": gate, "bisect": bisect})) == written


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
        ({"resources": {"phases": [{"phase": "x"}]}}, "resources.phases[0].phase is 'x', not one"),
        ({"base": {"name": "a" * 99}}, "base.digest is missing"),
        ({"candidate": {"name": ["b" * 99], "digest": ""}}, "candidate.name is ['bbb"),
        ({"base": {"name": "", "digest": "", "settings": [{"name": "x"}]}}, "[0].value is missing"),
        ({"gate": {"gated": [], "passed": 1}}, "gate.passed is 1, not true or false"),
        ({"bisect": {"searches": [{"parts": 1}]}}, "bisect.searches[0].task is missing"),
        ({"resources": {**NO_TIME, "peak_memory_bytes": "1"}}, "peak_memory_bytes is '1', not a"),
    ],
)  # fmt: skip
def test_a_damaged_document_is_refused_with_the_key(change: Any, named: str) -> None:
    with pytest.raises(StoreError, match=re.escape(named)) as refused:
        read_report({**compare_document(DEMO), **change})
    assert len(str(refused.value).splitlines()) == 1


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(StoreError, match="nested too deeply"):
        read_report({**compare_document(DEMO), "environment": {"deep": deep}})


def test_a_missing_key_is_named_and_a_new_one_ignored() -> None:
    written = compare_document(DEMO)
    for key in ("base", "candidate", "comparisons", "gate", "exit_code", "created"):
        with pytest.raises(StoreError, match=key):
            read_report({name: value for name, value in written.items() if name != key})
    assert read_report({**written, "of a later version": 1}) == read_report(written)


def test_a_caveat_about_another_number_stays_a_caveat() -> None:
    odd = "x.y is +infinite, so it is null here"
    shown = report(comparison(caveats=(odd, "plain")), notes=(odd,))
    assert read(compare_document(shown)) == shown


def test_numbers_that_json_cannot_hold_stand_in_a_key_of_their_own() -> None:
    endless = report(comparison(sigma=INF, sigma_interval=(-INF, INF), base=math.nan))
    written = compare_document(endless)
    assert written["non_finite"] == {
        "comparisons[0].base": "nan",
        "comparisons[0].sigma": "+inf",
        "comparisons[0].sigma_interval[0]": "-inf",
        "comparisons[0].sigma_interval[1]": "+inf",
    }
    told = parse_report({**written, "comparisons": [{**written["comparisons"][0], "caveats": []}]})
    assert told.comparisons[0].sigma_interval == (-INF, INF)
    damaged = {**written, "non_finite": {"comparisons[0].sigma": "much"}}
    with pytest.raises(StoreError, match=r"non_finite.*is 'much', not one of"):
        read_report(damaged)


def test_a_document_of_before_that_key_is_read_by_its_caveats() -> None:
    shown = report(comparison(sigma=math.inf, caveats=("plain",)), comparison(metric="b"))
    written = compare_document(shown)
    del written["non_finite"]
    assert parse_report(written) == shown


leaves = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_changed_a_document_is_read_or_refused_in_words(data: st.DataObject) -> None:
    written = json.loads(json.dumps(compare_document(WHOLE)))
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


LATE = {"outcome": "unchanged", "significant": False, "certain": False}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": -4, "n_used": -4}, "comparisons[0].n is -4"),
        ({"n_used": 2049}, "comparisons[0].n_used is 2049, of 2048 documents"),
        ({"n_used": 10**400}, "comparisons[0].n_used is a number of hundreds of digits"),
        ({"n_used": 10**400, "n": 10**400}, "comparisons[0].n is a number of hundreds of digits"),
        ({"p_value": 7}, "comparisons[0].p_value is 7.0, not between 0 and 1"),
        ({"p_value": None}, "gate.gated[0].holm_p_value does not follow"),
        ({"p_value": 0.5}, "gate.gated[0].holm_p_value does not follow"),
        ({"bh_q_value": 0.9}, "comparisons[0].bh_q_value does not follow"),
        ({"mid_p_value": -0.1}, "comparisons[0].mid_p_value is -0.1"),
        ({"confidence": 1.0}, "comparisons[0].confidence is 1.0"),
        ({"base_stderr": -0.1}, "comparisons[0].base_stderr is -0.1"),
        ({"sigma": None}, "comparisons[0].sigma is missing"),
        ({"sigma": 0.2}, "comparisons[0].outcome is 'regressed', and 'degraded' follows"),
        ({"sigma_interval": [1.63, 1.3]}, "comparisons[0].sigma_interval begins at 1.63"),
        ({"sigma_interval": [-1.0, 1.63]}, "comparisons[0].significant is True, and False follows"),
        (LATE, "comparisons[0].outcome is 'unchanged', and 'regressed' follows"),
        ({"outcome": "failed"}, "comparisons[0].outcome is failed, and there are numbers"),
        ({"bit_identical": True}, "comparisons[0].bit_identical is true, and there is a drift"),
        ({"flips": [3000, 1]}, "comparisons[0].flips counts other documents"),
        ({"flips": [-1, 1]}, "comparisons[0].flips counts other documents"),
        ({"churn": 3000}, "comparisons[0].churn counts other documents"),
        ({"clusters": 3000}, "comparisons[0].clusters is 3000"),
        ({"same_answer": 1.2}, "comparisons[0].same_answer is 1.2"),
        ({"same_answer": 0.5, "same_answer_interval": [0.6, 0.4]}, "same_answer_interval begins"),
        ({"task": "another"}, "gate.gated[0] is not among the comparisons"),
    ],
)
def test_a_comparison_that_contradicts_itself_is_refused_with_the_key(
    change: Any, named: str
) -> None:
    written = compare_document(DEMO)
    first, *others = written["comparisons"]
    with pytest.raises(StoreError, match=re.escape(named)):
        read({**written, "comparisons": [{**first, **change}, *others]})


def test_a_chance_that_passes_1_by_rounding_is_no_damage() -> None:
    written = compare_document(DEMO)
    *others, last = written["comparisons"]
    whole = {**last, "false_alarm_probability": 1.0000000000000002}
    read({**written, "comparisons": [*others, whole]})


def test_a_comparison_that_is_listed_twice_is_refused() -> None:
    written = compare_document(DEMO)
    first, *others = written["comparisons"]
    with pytest.raises(StoreError, match=re.escape("comparisons[0] is there twice: eval")):
        read({**written, "comparisons": [first, first, *others]})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"state": "passed"}, "gate.state is passed, and regressed follows"),
        ({"passed": True}, "gate.passed is True, and the state is regressed"),
        ({"margin": 4.0}, "comparisons[0].outcome is 'regressed', and 'degraded' follows"),
        ({"margin": -1.0}, "gate.margin is -1.0"),
        ({"fail_on": "any-degradation"}, "gate.gated[2].state is passed, and regressed follows"),
        ({"confidence": 95}, "gate.confidence is 95.0, not between 0 and 1"),
        ({"family_false_alarm": 3}, "gate.family_false_alarm is 3.0"),
        ({"gated": []}, "gate.state is regressed, and failed follows"),
    ],
)
def test_a_verdict_that_does_not_follow_from_the_comparisons_is_refused(
    change: Any, named: str
) -> None:
    written = compare_document(DEMO)
    with pytest.raises(StoreError, match=re.escape(named)):
        read({**written, "gate": {**written["gate"], **change}})


def test_a_gated_state_and_an_exit_code_that_do_not_follow_are_refused() -> None:
    written = compare_document(DEMO)
    gated = [{**one, "state": "passed"} for one in written["gate"]["gated"]]
    with pytest.raises(StoreError, match=r"gate\.gated\[0\]\.state is passed, and regressed"):
        read({**written, "gate": {**written["gate"], "gated": gated}})
    with pytest.raises(StoreError, match="exit_code is 0, and the gate says regressed"):
        read({**written, "exit_code": 0})


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["outcome", "significant", "certain", "sigma", "sigma_interval", "n_used"]),
    st.integers(0, len(DEMO.comparisons) - 1),
    st.data(),
)
def test_no_change_of_a_verdict_s_numbers_leaves_another_verdict(
    key: str, place: int, data: st.DataObject
) -> None:
    """Whatever is changed, what is read has the outcomes that follow from its numbers."""
    written = compare_document(DEMO)
    one = written["comparisons"][place]
    numbers = st.floats(-5, 5)
    one[key] = data.draw(
        st.lists(numbers, min_size=2, max_size=2) if key == "sigma_interval"
        else numbers if key == "sigma"
        else st.integers(-5, 10**6) if key == "n_used"
        else st.sampled_from(["regressed", "degraded", "improved", "undecided", True, False])
    )  # fmt: skip
    with contextlib.suppress(StoreError):
        found = read(written)
        assert found.gate == Gate().judge(found.comparisons)
        assert all(0 <= c.n_used <= c.n for c in found.comparisons)
