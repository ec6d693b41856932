"""A trace's page in a browser: it sorts, it filters, it fits, and no text in it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from accessible import complaints, cut_off, unfolded
from example_reports import DEMO
from example_traces import EXAMPLES, LOCATED, NAMED_BY_OTHERS

from evalguard.report.formats import render_report
from evalguard.tracing.trace_page import render_trace_page

pytestmark = pytest.mark.slow
Opened = Callable[..., Any]
POINTS = "#trace-layers tbody tr:visible th"


def points(page: Any) -> list[str]:
    found: list[str] = page.locator(POINTS).evaluate_all(
        "(all) => all.map((one) => one.querySelector('code').textContent)"
    )
    return found


def test_a_click_on_a_columns_head_sorts_by_its_numbers(opened: Opened) -> None:
    page = unfolded(opened(render_trace_page(LOCATED)))
    executed = [one.point for one in LOCATED.trace.layers]
    assert points(page) == executed
    head = page.locator("#trace-layers thead th", has_text="x floor").first
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert points(page)[0] == "model.layers.1.self_attn.o_proj:in"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert points(page)[-1] == "model.layers.1.self_attn.o_proj:in"
    page.locator("#trace-layers thead th", has_text="Point").locator("button").click()
    assert points(page) == executed


def test_only_what_is_beyond_the_floor_may_be_shown(opened: Opened) -> None:
    page = unfolded(opened(render_trace_page(LOCATED)))
    page.get_by_label("only those beyond the floor").check()
    assert points(page) == ["model.layers.1.self_attn.o_proj:in"]
    page.get_by_label("only those beyond the floor").uncheck()
    assert len(points(page)) == len(LOCATED.trace.layers)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_fits_and_can_be_read_by_everybody(opened: Opened, name: str, width: int) -> None:
    page = unfolded(
        opened(render_trace_page(EXAMPLES[name]), viewport={"width": width, "height": 800})
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert cut_off(page) == []
    assert complaints(page) == []


def test_hostile_names_do_not_run(opened: Opened) -> None:
    page = unfolded(opened(render_trace_page(NAMED_BY_OTHERS)))
    assert page.locator("script").count() == 1


def test_the_section_of_a_comparisons_page_sorts_too(opened: Opened) -> None:
    page = unfolded(opened(render_report(DEMO, "html", trace=LOCATED)))
    page.locator("#trace-layers thead th", has_text="x floor").first.locator("button").click()
    assert points(page)[0] == "model.layers.1.self_attn.o_proj:in"
