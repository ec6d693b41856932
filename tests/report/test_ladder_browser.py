"""The page of several candidates in a browser: read on a phone and in the dark, hovered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from accessible import complaints, cut_off
from test_several_report import candidate, gguf, ladder

from evalguard.several.several_page import SEVERAL_FORMATS
from evalguard.several.several_report import NoVerdict

pytestmark = pytest.mark.slow
SMALLEST = 9.0  # pixels of a letter that can still be read


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_hinders_those_who_read_otherwise(
    opened: Callable[..., Any], width: int, scheme: str
) -> None:
    gone = NoVerdict(name="int4", reason="there is no model folder", hint="", exit_code=3)
    text = SEVERAL_FORMATS["html"](ladder(gone, candidate("a long name " * 9, size=gguf(10**6))))
    page = opened(text, color_scheme=scheme, viewport={"width": width, "height": 800})
    assert cut_off(page) == []
    assert complaints(page) == []
    heights = page.evaluate(
        """() => [...document.querySelectorAll(".size-plot text")].map((one) => {
        const drawn = one.closest("svg");
        return parseFloat(getComputedStyle(one).fontSize)
          * drawn.getBoundingClientRect().width / drawn.viewBox.baseVal.width;
        })"""
    )
    assert min(heights) >= SMALLEST
    titles = page.locator(".size-plot title").all_text_contents()
    assert any("q4_K; verdict regressed; size 516 kB" in title for title in titles)
