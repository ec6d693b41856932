"""When a trace is a comparison's next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from example_bisections import BY_STATUS
from example_reports import comparison, report
from example_traces import (
    NAMED_BY_OTHERS,
)

from evalguard.core.compare_report import RunIdentity
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.compare_view import build_report_view
from evalguard.report.formats import render_report
from evalguard.tracing.trace_report import TraceReport
from evalguard.tracing.trace_view import build_trace_view


def models(shown: Any, **more: Any) -> Any:
    sides = {
        role: RunIdentity(name=name, digest="", model_type="hf")
        for role, name in (("base", "orig"), ("candidate", "port"))
    }
    return replace(shown, **{**sides, **more})


REGRESSED = comparison(task="lambada", metric="perplexity")
TRACE = "evalguard trace --base orig --cand fla-port"


def test_where_nothing_can_be_searched_the_trace_is_the_next_step() -> None:
    view = build_report_view(models(report(REGRESSED)))
    assert view.next_step == "to see where in the model it comes from"
    assert view.next_command == TRACE
    typed = "evalguard compare --base ./a --cand ./b --tasks t --limit 9 --margin 2 --device cpu"
    view = build_report_view(models(report(REGRESSED), command=typed))
    assert view.next_command == "evalguard trace --base ./a --cand ./b --tasks t --device cpu"


@pytest.mark.parametrize(
    "side",
    [
        {"kind": "lm-eval run"},
        {"model_type": "local-completions"},
        {"kind": "stored run"},
    ],
)
def test_what_shows_no_activations_is_not_sent_to_a_trace(side: dict[str, Any]) -> None:
    shown = models(report(REGRESSED))
    view = build_report_view(replace(shown, base=replace(shown.base, **side)))
    assert "trace" not in view.next_command


@pytest.mark.parametrize("target", ["attr:a.b", "dtype:a", "weights:a", "module:a"])
def test_a_culprit_with_a_place_in_the_model_names_the_trace(target: str) -> None:
    found = BY_STATUS["minimal"]

    def placed(to: str) -> Any:
        searches = tuple(
            replace(one, culprits=tuple(replace(c, target=to) for c in one.culprits))
            for one in found.searches
        )
        return models(report(REGRESSED, bisect=replace(found, searches=searches)))

    shown = placed(target)
    assert build_report_view(shown).trace_command == TRACE
    assert f"Where in the model: {TRACE}" in render_terminal(shown, width=80, color=False)
    assert TRACE in render_report(shown, "markdown")
    assert "Where in the model:" in render_report(shown, "html")
    assert build_report_view(placed("config.a")).trace_command == ""


def test_a_report_of_hostile_names_is_one_line_a_name() -> None:
    shown: TraceReport = NAMED_BY_OTHERS
    view = build_trace_view(shown)
    for text in (view.headline, view.chosen, view.base.name, *view.caveats):
        assert "\n" not in text
        assert "\x1b" not in text
