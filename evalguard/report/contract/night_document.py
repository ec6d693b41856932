"""The JSON contract ``evalguard.nightly/1``: one night as one strict JSON document."""

from __future__ import annotations

from typing import Any

from evalguard.core.gate import EXIT_GIT_BISECT_SKIP
from evalguard.core.reports.findings import Finding
from evalguard.core.reports.night_report import (
    SCHEMA,
    NightReport,
    PairNight,
)
from evalguard.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_REGRESSED,
    EXIT_UNDECIDED,
)
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.non_finite import replace_non_finite
from evalguard.report.contract.record_schema import FINDING_KIND, TEXT, add_keys, contract_schema
from evalguard.report.words.night_news import pair_problems, report_link

_EXIT_CODES = (
    EXIT_PASSED,
    EXIT_REGRESSED,
    EXIT_FAILED,
    EXIT_UNDECIDED,
    EXIT_GIT_BISECT_SKIP,
)


def night_document(report: NightReport) -> dict[str, Any]:
    """Return a night as plain JSON values; a number that JSON cannot hold is null."""
    content = {"schema": SCHEMA, **write_record(report)}
    for pair, fields in zip(report.pairs, content["pairs"], strict=True):
        fields["report"] = report_link(report, pair.run_folder)
        fields["problems"] = list(pair_problems(pair))
    written: dict[str, Any] = replace_non_finite(content, "", {})
    return written


def night_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    title = "A night of comparisons: every pair of the guard files"
    schema = contract_schema(SCHEMA, NightReport, title, exit_code={"enum": [*_EXIT_CODES]})
    text = 'Its run folder, from the night\'s own; "" where there is none.'
    add_keys(schema, Finding, kind=FINDING_KIND)
    add_keys(schema, PairNight, report={**TEXT, "description": text})
    return schema
