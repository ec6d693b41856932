"""The view: whatever a report holds, every text in it is harmless."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from any_reports import names, reports
from distribution_examples import distribution
from example_bisections import BY_STATUS, bisection, culprit, measured, search
from example_reports import DEMO, INF, comparison, failed, report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_report import WHOLE

from evalguard.bisect.bisect_report import (
    BisectReport,
    Repaired,
    RepairedMetric,
    UntestableAssignment,
)
from evalguard.bisect.search.search_result import Part, Suspect
from evalguard.core.compare_report import CompareReport, RunIdentity, SettingState
from evalguard.core.comparison import Companion, Influence, InfluentialDocument
from evalguard.core.gate import Gate
from evalguard.errors import StoreError
from evalguard.report.compare_document import compare_document, read_report
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.compare_view import build_report_view

HARMFUL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\u202eright to left\u202c",
    "a\nb\r\nc\td",
    "<script>alert(1)</script>&amp;\"'",
    "::error::x\n::stop-commands::y",
    "\ud800 lone",
    "\x00\x07\x7f\x9b",
    "e" + "\u0301" * 500,
    "\u200b\ufeff\u2028\u2029\ue000",
    "| a | b |\n|---|---|",
]


def texts(value: Any, at: str = "view") -> Iterator[tuple[str, str]]:
    """Every text of a view, with the place where it stands."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from texts(getattr(value, field.name), f"{at}.{field.name}")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from texts(item, f"{at}[{number}]")
    elif isinstance(value, str):
        yield at, value


def assert_harmless(shown: CompareReport) -> None:
    for at, text in texts(build_report_view(shown)):
        acting = [c for c in set(text) if unicodedata.category(c) in HARMFUL]
        assert not acting, f"{at}: {acting[:3]!r}"
        text.encode()


def bisected(a: str) -> BisectReport:
    """A bisection with a text wherever one can be that a file or a model names."""
    return bisection(
        search(),
        search(
            task=a,
            metric=a,
            filter=a,
            settings=(a,),
            inside=(a,),
            repaired_before=(a,),
            culprits=(culprit(a, target=a, reference=a, candidate=[a], role="together"),),
            cleared=(a,),
            inert=(a,),
            suspects=(Suspect(name=a, probability=0.5),),
            untestable=(UntestableAssignment(settings=(a,), outcome="crashed", reason=a),),
            measured=(measured(a, outcome="crashed", reason=a),),
            parts=(Part(settings=(a,), sigma=1.0, error_sigma=0.1),),
            failure=a,
        ),
        repaired=Repaired(
            assignment={a: a}, reset=(a,), passed=False, state="regressed", failure="",
            metrics=(
                RepairedMetric(task=a, filter=a, metric=a, sigma=1.0, outcome="failed", gated=True),
            ),
        ),
        notes=(a,), fix=a, fix_where=a, proof=a, resume=a,
    )  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports(), st.sampled_from(HOSTILE) | names)
def test_no_text_of_a_view_can_act_or_break_a_line(shown: CompareReport, text: str) -> None:
    setting = SettingState(
        name=text, value=text, reference=[text], candidate={text: text}, target=text
    )
    companion = Companion(method=text, p_value=0.5, note=text)
    worst = InfluentialDocument(task=text, doc_id=1, contribution=0.5, share=None)
    influence = Influence(documents=(worst,), moved=1, half=1, removed=1, sigma_without=0.0)
    odd = comparison(
        task=text, companions=(companion,), influence=influence, method=text, clusters=3,
        cluster_field=text, subtasks=(text,), caveats=(text,),
    )  # fmt: skip
    side = RunIdentity(name=text, digest=text, description=text, settings=(setting,))
    assert_harmless(
        dataclasses.replace(
            shown,
            base=side,
            candidate=side,
            comparisons=(*shown.comparisons, odd),
            distributions=(*shown.distributions, distribution(task=text, failure=text)),
            environment={text: text, "inner": {text: [text]}},
            bisect=bisected(text),
            bisect_reason=text,
            created=text,
            version=text,
            command=text,
        )
    )


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every text in a document."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    elif isinstance(value, str):
        yield path


def test_a_stored_report_that_somebody_changed_is_harmless_or_refused() -> None:
    text = "".join(HOSTILE)
    written = compare_document(dataclasses.replace(WHOLE, bisect=bisected("a name")))
    places = list(leaves(written))
    refused = 0
    for path in places:
        place = written
        for key in path[:-1]:
            place = place[key]
        place[path[-1]], before = text, place[path[-1]]
        try:
            read_report(written)
        except StoreError:
            place[path[-1]] = before
            refused += 1
    assert 10 < refused < len(places) / 2
    assert_harmless(read_report(written))


def test_a_token_of_a_million_characters_is_a_text_like_any_other() -> None:
    long = "a" * (2**20 - 1) + "\u202e"
    shown = report(
        comparison(task=long, caveats=(long,)), candidate=RunIdentity(name=long, digest=long)
    )
    assert_harmless(shown)
    assert len(build_report_view(shown).candidate.name) == 2**20


@pytest.mark.parametrize("status", BY_STATUS)
def test_a_stored_report_has_the_view_of_the_one_that_was_stored(status: str) -> None:
    shown = dataclasses.replace(DEMO, bisect=BY_STATUS[status])
    assert build_report_view(read_report(compare_document(shown))) == build_report_view(shown)


def test_the_texts_are_those_of_the_terminal() -> None:
    shown = dataclasses.replace(DEMO, bisect=BY_STATUS["minimal"])
    view, page = (
        build_report_view(shown),
        " ".join(render_terminal(shown, width=10_000, color=False, verbose=True).split()),
    )
    whole = [
        view.verdict, view.headline, view.sentence, view.next_command, view.base.about,
        view.legend, *(caveat.line for caveat in view.caveats), *view.left_out,
        *(search.title for search in view.bisection.searches if view.bisection),
        *(line.strip() for line in view.bisection.fix.lines),
    ]  # fmt: skip
    for text in whole:
        assert " ".join(text.split()) in page
    for metric in view.metrics:
        cells = (metric.base_with_stderr, metric.sigma, metric.interval, metric.p, metric.said)
        assert all(cell in page for cell in cells)


def test_a_metric_points_at_its_caveats_and_says_what_the_gate_made_of_it() -> None:
    gate = Gate(gate_metrics=("perplexity",))
    shown = report(
        comparison(caveats=("of one", "of both")),
        comparison(metric="acc", caveats=("of both",)),
        gate=gate,
        notes=("of all",),
    )
    view = build_report_view(shown)
    first, second = view.metrics
    assert [caveat.text for caveat in view.caveats] == ["of one", "of both", "of all"]
    assert (first.caveats, second.caveats) == ((1, 2), (2,))
    assert [caveat.where for caveat in view.caveats] == ["lambada_openai perplexity", "", ""]
    assert (first.gate_state, second.gate_state) == ("regressed", None)


def test_what_is_infinite_is_drawn_and_what_is_no_number_is_not() -> None:
    first, second = build_report_view(
        report(comparison(sigma=INF, sigma_interval=(0.5, INF)), failed(metric="acc"))
    ).metrics
    assert (first.plot.sigma, first.plot.low, first.plot.high) == (INF, 0.5, INF)
    assert (first.sigma, first.interval) == ("+inf", "[0.50, inf]")
    assert (second.plot.sigma, second.plot.margin, second.interval) == (None, 1.0, "")


def test_probes_are_listed_with_their_numbers() -> None:
    view = build_report_view(dataclasses.replace(DEMO, bisect=BY_STATUS["minimal"])).bisection
    assert view is not None
    first, second, third, _ = view.searches[0].probes
    assert (first.number, first.documents, first.cost) == (1, "1,024 of 5,153", "0.25")
    assert (second.drift, second.sigma, second.error) == ("+1.40", 1.4, 0.02)
    assert (third.outcome, third.reason, third.drift) == ("out_of_memory", "out of memory", "-")
