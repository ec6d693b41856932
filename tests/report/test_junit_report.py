"""The JUnit file: the structure that Jenkins reads, and counts that say what the gate says."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from any_reports import reports
from example_reports import DEMO, UNCHANGED, UNDECIDED, comparison, failed, report
from hypothesis import HealthCheck, given, settings

from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.findings import Finding
from evalguard.core.gate import Gate
from evalguard.core.limits import Limit
from evalguard.publish.junit import render_junit
from evalguard.report.compare_view import build_report_view

# The facts of junit-10.xsd, the schema of Jenkins' xunit plugin, about what is written here:
# (attributes that must be there, further ones, children in any order).
STRUCTURE = {
    "testsuites": ((), ("name", "time", "tests", "failures", "errors"), ("testsuite",)),
    "testsuite": (
        ("name", "tests", "failures", "errors"),
        ("group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log",
         "url"),
        ("testsuite", "properties", "testcase", "system-out", "system-err"),
    ),
    "properties": ((), (), ("property",)),
    "property": (("name", "value"), (), ()),
    "testcase": (
        ("name",),
        ("time", "classname", "group"),
        ("skipped", "error", "failure", "system-out", "system-err"),
    ),
    "failure": ((), ("type", "message"), ()),
    "error": ((), ("type", "message"), ()),
    "skipped": ((), ("type", "message"), ()),
    "system-out": ((), (), ()),
}  # fmt: skip


def assert_valid(element: ElementTree.Element) -> None:
    required, optional, children = STRUCTURE[element.tag]
    assert set(required) <= set(element.attrib) <= {*required, *optional}, element.attrib
    for child in element:
        assert child.tag in children, (element.tag, child.tag)
        assert_valid(child)


def parsed(shown: CompareReport) -> ElementTree.Element:
    text = render_junit(build_report_view(shown))
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert root.tag == "testsuites"
    assert_valid(root)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u202e\ufffe]", text)
    return root


def outcomes(root: ElementTree.Element) -> dict[str, str]:
    """Test case -> what stands in it."""
    found = {}
    for case in root.iter("testcase"):
        tags = [child.tag for child in case if child.tag != "system-out"]
        found[case.attrib["name"]] = tags[0] if tags else "passed"
    return found


def test_every_gated_metric_is_a_test_case() -> None:
    root = parsed(DEMO)
    assert outcomes(root) == {
        "evalguard_lastword perplexity": "failure",
        "evalguard_lastword acc": "failure",
        "evalguard_rolling word_perplexity": "passed",
        "evalguard_rolling bits_per_byte": "passed",
        "evalguard_choice acc": "passed",
    }
    assert root.attrib["failures"] == "2"
    (failure, *_) = root.iter("failure")
    assert failure.attrib["message"] == "regressed: the drift is above the margin"
    assert "1.47 standard errors" in (failure.text or "")


def test_no_number_is_an_error_and_undecided_is_skipped_unless_strict() -> None:
    undecided = comparison(**UNDECIDED)
    assert outcomes(parsed(report(failed()))) == {"lambada_openai perplexity": "error"}
    assert outcomes(parsed(report(undecided))) == {"lambada_openai perplexity": "skipped"}
    strict = report(undecided, exit_code=4)
    assert outcomes(parsed(strict)) == {"lambada_openai perplexity": "failure"}


def test_limits_are_test_cases_too() -> None:
    gate = Gate(limits=(Limit(metric="kl_mean", value=0.01),))
    found = outcomes(parsed(report(comparison(**UNCHANGED), gate=gate)))
    assert found["kl_mean"] == "error"


def test_metrics_that_are_not_gated_are_none() -> None:
    group = comparison(**UNCHANGED, task="mmlu", metric="acc", subtasks=("mmlu_law",))
    law = comparison(task="mmlu_law", metric="acc")
    assert list(outcomes(parsed(report(group, law)))) == ["mmlu acc"]


def test_what_passes_is_green() -> None:
    root = parsed(report(comparison(**UNCHANGED)))
    assert (root.attrib["failures"], root.attrib["errors"]) == ("0", "0")


def test_what_every_reader_must_see_is_a_property_of_every_suite() -> None:
    found = Finding(kind="same_model", text="base and candidate are one model")
    for suite in parsed(report(comparison(**UNCHANGED), findings=(found,))):
        told = {(one.get("name"), one.get("value")) for one in suite.iter("property")}
        assert ("note", found.text) in told


def test_where_nothing_was_compared_the_file_is_not_green() -> None:
    assert outcomes(parsed(report())) == {"gate": "error"}


@pytest.mark.parametrize(
    "text", ["\x00\x1b[31m\x07", "]]> <b> & \"'", "\u202eabc", "\ud800", "a\nb"]
)
def test_hostile_names_keep_the_file_whole(text: str) -> None:
    side = RunIdentity(name=text, digest="0" * 16, description=text)
    parsed(report(comparison(task=text, metric=text, reason=text), base=side, candidate=side))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_counts_add_up_and_say_what_the_exit_code_says(shown: CompareReport) -> None:
    root = parsed(shown)
    for suite in root:
        told = list(suite.iter())
        assert int(suite.attrib["tests"]) == sum(e.tag == "testcase" for e in told)
        assert int(suite.attrib["failures"]) == sum(e.tag == "failure" for e in told)
        assert int(suite.attrib["errors"]) == sum(e.tag == "error" for e in told)
    red = int(root.attrib["failures"]) + int(root.attrib["errors"])
    assert red > 0 or shown.exit_code == 0
