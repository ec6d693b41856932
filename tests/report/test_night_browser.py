"""A night's index and a history in a browser: readable on a phone, and no text in them runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from accessible import complaints, cut_off, unfolded
from example_documents import HOSTILE
from example_nights import a_history, a_night, a_trend

from evalguard.nights.history_page import render_history_page
from evalguard.nights.history_report import TrendReport
from evalguard.nights.night_page import render_night_page
from evalguard.nights.night_report import NightReport

pytestmark = pytest.mark.slow
Opened = Callable[..., Any]

PAGES = {
    "index": lambda: render_night_page(a_night(), [a_history(), a_history("gone", a_trend(40))]),
    "history": lambda: render_history_page(a_history()),
}
EMPTY = {
    "index without a history": lambda: render_night_page(a_night()),
    "history without a night": lambda: render_history_page(
        replace(a_history(), trends=(replace(a_trend(3), used=()),))
    ),
}
SMALLEST = 9.0  # pixels of a letter that can still be read


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_hinders_those_who_read_otherwise(
    opened: Opened, name: str, width: int, scheme: str
) -> None:
    page = opened(PAGES[name](), color_scheme=scheme, viewport={"width": width, "height": 800})
    unfolded(page)
    assert cut_off(page) == []
    assert complaints(page) == []


@pytest.mark.parametrize("name", EMPTY)
def test_a_page_with_little_to_show_says_so(opened: Opened, name: str) -> None:
    page = opened(EMPTY[name](), viewport={"width": 390, "height": 800})
    unfolded(page)
    assert page.locator(".trend").count() == 0
    assert page.locator("h1").is_visible()
    assert complaints(page) == []


@pytest.mark.parametrize("name", ["index", "history"])
def test_the_words_of_a_trend_are_read_on_a_phone(opened: Opened, name: str) -> None:
    page = opened(PAGES[name](), viewport={"width": 390, "height": 800})
    unfolded(page)
    heights = page.evaluate(
        """() => [...document.querySelectorAll(".trend text")].map((one) => {
        const drawn = one.closest("svg");
        return parseFloat(getComputedStyle(one).fontSize)
          * drawn.getBoundingClientRect().width / drawn.viewBox.baseVal.width;
        })"""
    )
    assert heights
    assert min(heights) >= SMALLEST


@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_names_neither_run_nor_break_a_page(opened: Opened, width: int) -> None:
    name = " ".join(HOSTILE) + "A" * 5_000
    trend = replace(a_trend(4), key=(name, name, name))
    history: TrendReport = a_history(name, trend)
    night: NightReport = replace(
        a_night(name), guard=name, history=name, notes=HOSTILE, command=name
    )
    for text in (
        render_night_page(night, [history]),
        render_history_page(replace(history, file=name, problems=HOSTILE)),
    ):
        page = unfolded(opened(text, viewport={"width": width, "height": 800}))
        assert page.evaluate("window.hit") is None
        assert page.locator("script").count() == 1
        assert page.locator("img, iframe, object, style:not(head style)").count() == 0
        assert cut_off(page) == []


def test_a_script_that_gets_into_a_page_does_not_run(opened: Opened) -> None:
    for text in (PAGES["index"](), PAGES["history"]()):
        injected = text.replace("</main>", "<script>window.hit = 1</script></main>")
        page = opened(injected, allowed=("Content Security Policy",))
        assert page.locator("#theme").is_visible()  # the page's own script ran
        assert page.evaluate("window.hit") is None


def test_every_link_and_wide_part_is_reached_by_tab(opened: Opened) -> None:
    page = opened(PAGES["index"](), viewport={"width": 390, "height": 800})
    wanted = page.locator("a[href], button:visible, summary, .scroll").count()
    reached = set()
    for _ in range(3 * wanted):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 300)"))
    for one in page.locator("a[href], button:visible, summary, .scroll").all():
        assert one.evaluate("(it) => it.outerHTML.slice(0, 300)") in reached


def test_what_is_folded_away_is_printed_in_ink_on_paper(opened: Opened) -> None:
    page = opened(PAGES["index"](), color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert not page.locator("#theme").is_visible()
    ink, paper = page.evaluate(
        """() => [getComputedStyle(document.body).color,
        getComputedStyle(document.body).backgroundColor]"""
    )
    assert (ink, paper) == ("rgb(0, 0, 0)", "rgb(255, 255, 255)")
    assert page.pdf()[:5] == b"%PDF-"
