"""The sample under reports/: a run of the demo, as it is written and shown today."""

from __future__ import annotations

import json

import jsonschema
from markupsafe import escape
from sample_run import SAMPLE

from evalguard.report.compare_document import compare_document, compare_schema, read_report
from evalguard.report.compare_view import build_report_view
from evalguard.report.formats import render_report


def test_its_result_is_todays_contract() -> None:
    written = json.loads((SAMPLE / "result.json").read_text(encoding="utf-8"))
    jsonschema.validate(written, compare_schema())
    assert compare_document(read_report(written)) == written


def test_its_page_says_what_todays_page_says() -> None:
    report = read_report(json.loads((SAMPLE / "result.json").read_text(encoding="utf-8")))
    kept = (SAMPLE / "report.html").read_text(encoding="utf-8")
    view = build_report_view(report)
    assert escape(view.headline) in kept
    assert all(escape(text) in kept for text in (view.lead, *view.because))
    for metric in view.metrics:
        assert escape(metric.interval) in kept
    today = render_report(report, "html")
    start, end = '<section class="verdict', '<section aria-labelledby="distributions"'
    assert today[today.index(start) : today.index(end)] in kept


def test_it_is_small() -> None:
    names = ("result.json", "report.html", "junit.xml")
    assert sum((SAMPLE / name).stat().st_size for name in names) < 1_500_000


def test_it_names_no_folder_of_the_machine_that_made_it() -> None:
    for path in SAMPLE.iterdir():
        text = path.read_text(encoding="utf-8")
        folders = ("/tmp/", "/home/", "/root/", "/Users/", "/work/")
        assert not [place for place in folders if place in text]
