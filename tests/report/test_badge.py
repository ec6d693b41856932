"""The badge: a small SVG file that says the verdict, and whose text fits whatever font draws it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from any_reports import reports
from example_cards import ACC, ASKED, BASE, BROKEN, Q2, Q4, Q8, candidate, run
from example_reports import UNCHANGED, comparison
from harmless_markdown import HOSTILE
from hypothesis import HealthCheck, given, settings

from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import SequentialRun, SequentialTask
from evalguard.core.gate import Gate
from evalguard.several.badge import badge_text, draw_badge

SVG = "{http://www.w3.org/2000/svg}"


def texts(badge: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(badge).findall(f".//{SVG}text")]


def with_margins(*margins: str) -> CompareReport:
    return run("Q8_0", *(
        comparison(**{**ACC, **UNCHANGED, "task": f"t{at}", "margin": 1.0, "margin_text": margin})
        for at, margin in enumerate(margins)
    ), tasks=())  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (Q8, "passed within 1 sigma"),
        (Q4, "undecided"),
        (Q2, "regressed by 1.47 sigma"),
        (BROKEN, "no verdict"),
        (with_margins("1pp", "1pp"), "passed within 1pp"),
        (with_margins("1pp", "2%"), "passed"),
        (run("x", gate=Gate(margin=2.0)), "passed within 2 sigma"),
    ],
)
def test_it_says_the_verdict(shown: CompareReport, said: str) -> None:
    assert badge_text(shown) == said
    assert texts(draw_badge(shown)) == ["evalguard", said]


def test_a_part_of_the_documents_is_told() -> None:
    part = dataclasses.replace(ASKED[0], n=100)
    shown = run("x", comparison(**{**UNCHANGED, "n": 100, "n_used": 100}), tasks=(part,))
    assert badge_text(shown) == "passed within 1 sigma (n = 100)"
    assert "100 of 5,153 documents of lambada_openai" in draw_badge(shown)


def test_stopping_early_is_told() -> None:
    task = SequentialTask(task="lambada_openai", n_used=320, n_total=5153, look=1, looks=(320,))
    stopped = SequentialRun(alpha=0.05, gated=1, seed=7, loads=1, tasks=(task,))
    shown = run("x", comparison(**{**UNCHANGED, "n_used": 320}), sequential=stopped)
    assert badge_text(shown) == "passed within 1 sigma (n = 320)"


def test_each_state_has_a_colour_of_its_own() -> None:
    roots = [ElementTree.fromstring(draw_badge(one)) for one in (Q8, Q4, Q2, BROKEN)]
    fills = {root.find(f"{SVG}path").get("fill") for root in roots}  # type: ignore[union-attr]
    assert len(fills) == 4


@pytest.mark.parametrize("text", [*HOSTILE, "\u202eevil\u202c", "a\x00\x1b[31mb", "\ud800"])
def test_names_stay_text(text: str) -> None:
    shown = run(text, candidate=candidate(text), base=dataclasses.replace(BASE, name=text))
    badge = draw_badge(shown)
    root = ElementTree.fromstring(badge)
    assert {one.tag.removeprefix(SVG) for one in root.iter()} == {
        "svg", "title", "rect", "path", "g", "text",
    }  # fmt: skip
    assert "\u202e" not in badge
    assert "\x1b" not in badge
    badge.encode()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_has_a_badge(shown: CompareReport) -> None:
    badge = draw_badge(shown)
    ElementTree.fromstring(badge)
    assert len(texts(badge)[1]) <= 60


_MEASURE = """() => [...document.querySelectorAll("text")].map((text) => {
  const box = text.getBBox(), all = document.querySelector("svg").getBBox();
  const own = text.cloneNode(true);
  own.removeAttribute("textLength");
  text.parentNode.append(own);
  const natural = own.getComputedTextLength();
  own.remove();
  return [box.x, box.x + box.width, all.width, natural, Number(text.getAttribute("textLength"))];
})"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q8", "wide"])
def test_the_text_fills_its_place_and_no_more(opened: Callable[..., Any], name: str) -> None:
    wide = with_margins("0.123456789pp" if name == "wide" else "1 sigma")
    page = opened(f"<!doctype html><body>{draw_badge(wide)}</body>")
    (left, right, whole, natural, told), (start, end, _, own, given) = page.evaluate(_MEASURE)
    assert 5 <= left < right <= start - 10
    assert end <= whole - 5
    # Where the font that it was measured by is there, nothing is stretched by more than a pixel.
    assert abs(natural - told) < 2.0
    assert abs(own - given) < 3.0
