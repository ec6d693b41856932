"""What every page must be to those who read otherwise: axe, and room on a phone."""

from __future__ import annotations

from typing import Any

# Elements that reach over the right edge, though nothing around them scrolls.
_WIDER = """() => [...document.querySelectorAll("main *")].filter((one) => {
  if (one.closest("[hidden]")) return false;
  if (one.getBoundingClientRect().right <= innerWidth + 0.5) return false;
  for (let around = one.parentElement; around; around = around.parentElement) {
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(around).overflowX)) return false;
  }
  return true;
}).map((one) => one.outerHTML.slice(0, 80))"""


def unfolded(page: Any) -> Any:
    """Open whatever is folded away: axe does not look into it."""
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    return page


def complaints(page: Any) -> list[str]:
    """What axe finds."""
    from axe_playwright_python.sync_playwright import Axe

    result = Axe().run(page)
    return [result.generate_report()] if result.violations_count else []


def cut_off(page: Any) -> list[str]:
    """What does not fit beside the page's left edge, so that the page scrolls or hides it."""
    found: list[str] = page.evaluate(_WIDER)
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("the page scrolls sideways")
    return found
