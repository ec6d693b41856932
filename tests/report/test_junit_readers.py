"""The JUnit file under hostile texts, read back by readers that are not ours."""

from __future__ import annotations

import unicodedata

import junitparser
import pytest
from example_reports import UNCHANGED, UNDECIDED, comparison, failed, report
from lxml import etree

from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.publish.junit import render_junit
from evalguard.report.compare_view import build_report_view

HOSTILE = {
    "every control character": "".join(map(chr, [*range(32), *range(127, 160)])),
    "the end of a CDATA section": "]]> <![CDATA[ ]]]]><![CDATA[>",
    "markup and entities": "<failure>&amp;&#0;&#x1F;&nbsp;<!-- -- --><?php ?>",
    "a document type with an entity": '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>&a;',
    "surrogates": "\ud800 \udfff \udc80",
    "not characters of XML": "\ufffe \uffff \ufdd0 \U0001ffff",
    "right to left": "\u202eabc\u2066\u200f\u061c",
    "quotes and line ends": "\"'\t\r\n\u2028\u2029\u0085",
    "beyond the basic plane": "\U0001f600 \U00010000 e\u0301 \u0e33",
    "a megabyte": "x]]>" * 262_144,
}


def hostile(text: str) -> CompareReport:
    """A report whose every text is this one: names, task, metric, reasons."""
    side = RunIdentity(name=text, digest="0" * 16, description=text)
    changed = {"task": text, "metric": text, "reason": text}
    return report(
        comparison(**changed),
        comparison(**{**UNCHANGED, **changed, "metric": f"{text}2"}),
        base=side,
        candidate=side,
    )


def read(shown: CompareReport) -> tuple[str, junitparser.JUnitXml]:
    text = render_junit(build_report_view(shown))
    content = text.encode("utf-8")  # strict: a lone surrogate would not pass
    strict = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    root = etree.fromstring(content, strict)
    assert root.tag == "testsuites"
    assert not root.getroottree().docinfo.doctype
    return text, junitparser.JUnitXml.fromstring(content)


@pytest.mark.parametrize("kind", HOSTILE)
def test_two_other_readers_read_back_the_same_verdicts(kind: str) -> None:
    text, found = read(hostile(HOSTILE[kind]))
    cases = [case for suite in found for case in suite]
    assert len(cases) == 2
    assert [len(case.result) for case in cases] == [1, 0]
    assert isinstance(cases[0].result[0], junitparser.Failure)
    assert (found.tests, found.failures, found.errors) == (2, 1, 0)
    allowed = {"\n", " "}
    assert not [char for char in set(text) - allowed if unicodedata.category(char) in ("Cc", "Cs")]


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_stays_small_enough_to_be_shown_in_a_list(kind: str) -> None:
    _, found = read(hostile(HOSTILE[kind]))
    for suite in found:
        assert len(suite.name) <= 600
        for case in suite:
            assert 0 < len(case.name) <= 600
            assert len(case.classname) <= 600


def test_every_state_is_read_as_what_it_is() -> None:
    kinds = {
        "passed": report(comparison(**UNCHANGED)),
        "failure": report(comparison()),
        "error": report(failed()),
        "skipped": report(comparison(**UNDECIDED)),
    }
    for kind, shown in kinds.items():
        _, found = read(shown)
        (case,) = [case for suite in found for case in suite]
        assert [one._tag for one in case.result] == ([] if kind == "passed" else [kind])


def test_what_stands_in_a_file_is_what_the_report_says() -> None:
    _, found = read(report(comparison(task="a & b <c>", metric="perplexity")))
    ((case,),) = found
    assert case.name == "a & b <c> perplexity"
    assert case.result[0].message.startswith("regressed: ")
    assert "sigma: " in case.system_out
