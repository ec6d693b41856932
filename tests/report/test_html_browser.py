"""The report in a browser: it works by mouse and keyboard, and no text in it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from accessible import complaints, cut_off, unfolded
from example_bisections import BY_STATUS
from example_documents import HOSTILE, choices, generated, loglikelihoods
from example_reports import DEMO, SETTINGS, comparison, report
from playwright.sync_api import expect

from evalguard.core.compare_report import RunDocuments
from evalguard.core.comparison import Influence, InfluentialDocument
from evalguard.report.compare_html import render_html
from evalguard.report.compare_view import build_report_view
from evalguard.report.document_table import MOST_DOCUMENTS

pytestmark = pytest.mark.slow
Opened = Callable[..., Any]
PAPER = {"width": 718, "height": 1047}  # what an A4 page has between its margins

SHOWN = report(comparison(task="lambada_openai", metric="perplexity"), bisect=BY_STATUS["minimal"])
TEXTS = [
    f"passage {number} about {'plums' if number % 7 == 0 else 'pears'}" for number in range(300)
]


def page_of(*documents: RunDocuments, shown: Any = SHOWN) -> str:
    return render_html(build_report_view(shown), documents)


def of_tokens(base: list[float], candidate: list[float]) -> RunDocuments:
    """One document with these log-probabilities of its tokens."""
    documents = loglikelihoods(["a text"], tokens=len(base), names=(" a", "\n", "b"))
    columns = dict(documents.columns)
    for side, found in (("base", base), ("candidate", candidate)):
        columns[f"{side}:token_logprobs"] = [[found]]
        columns[f"{side}:loglikelihood"] = [[sum(found)]]
    tokens = {name: values for name, values in documents.tokens.items() if name != "kl"}
    return replace(documents, columns=columns, tokens={**tokens, "kl": np.zeros(len(base))})


def ready(page: Any) -> Any:
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    return page


def ids(page: Any) -> list[int]:
    """Ids of the rows in sight, from the top."""
    rows = page.evaluate(
        """() => [...document.querySelectorAll("#grid-body .grid-row")]
        .map((row) => [Number(row.dataset.place), Number(row.querySelector(".id").textContent)])"""
    )
    return [number for _, number in sorted(rows)]


def counted(page: Any, shown: int) -> None:
    """Waits until so many documents are shown."""
    expect(page.locator("#count")).to_have_text(re.compile(f"^{shown:,} of "))


def by_drift(documents: RunDocuments) -> list[int]:
    """Documents by their drift as the page has it, with three digits."""
    drifts = np.array([float(f"{x:.3g}") for x in documents.drifts("none", "perplexity") or ()])
    return [int(place) for place in np.argsort(-drifts, kind="stable")]


def test_the_rows_that_move_the_metric_most_come_first(opened: Opened) -> None:
    documents = loglikelihoods(TEXTS)
    page = ready(opened(page_of(documents)))
    assert ids(page)[:10] == by_drift(documents)[:10]
    assert page.inner_text("#count") == "300 of 300 documents"
    assert page.locator("#grid").get_attribute("aria-rowcount") == "301"


def test_a_column_sorts_both_ways_and_says_so(opened: Opened) -> None:
    documents = loglikelihoods(TEXTS)
    page = ready(opened(page_of(documents)))
    page.click("#grid-head [data-key=id]")
    head = page.locator("#grid-head [role=columnheader]", has_text="Document")
    assert ids(page)[:3] == [0, 1, 2]
    assert head.get_attribute("aria-sort") == "ascending"
    page.click("#grid-head [data-key=id]")
    assert ids(page)[:3] == [299, 298, 297]
    assert head.get_attribute("aria-sort") == "descending"
    page.click("#grid-head [data-key=base]")
    scores = np.array([of[0] for of in documents.of("base", "loglikelihood")])
    assert ids(page)[:5] == np.argsort(-scores)[:5].tolist()


def test_filters_and_search_leave_what_they_say(opened: Opened) -> None:
    documents = loglikelihoods(TEXTS)
    page = ready(opened(page_of(documents)))
    drifts = np.array(documents.drifts("none", "perplexity"), dtype=float)
    page.select_option("#filter", "better")
    counted(page, int((drifts < 0).sum()))
    page.select_option("#filter", "all")
    page.fill("#search", "PLUMS")
    counted(page, 43)
    assert all(number % 7 == 0 for number in ids(page))
    page.fill("#search", "#17")
    counted(page, 1)
    assert ids(page) == [17]
    page.fill("#search", "no such text")
    counted(page, 0)
    expect(page.locator("#grid-empty")).to_be_visible()
    page.fill("#search", "")
    counted(page, 300)
    expect(page.locator("#grid-empty")).to_be_hidden()
    assert len(ids(page)) > 10
    page.select_option("#metric", label="lambada_openai · acc")
    page.select_option("#filter", "lost")
    base, candidate = (
        [row["none"]["acc"] for row in documents.scores(side)] for side in ("base", "candidate")
    )
    lost = sum(a == 1 and b == 0 for a, b in zip(base, candidate, strict=True))
    counted(page, lost)


def test_a_document_opens_with_prompt_answers_and_tokens(opened: Opened) -> None:
    documents = loglikelihoods(TEXTS, tokens=3, names=(" Ro", "sa", "!"))
    page = ready(opened(page_of(documents)))
    first = by_drift(documents)[0]
    page.locator("#grid-body .grid-row").filter(
        has=page.locator(".id", has_text=str(first))
    ).first.click()
    dialog = page.locator("dialog[open]")
    assert dialog.locator("h2").inner_text() == f"Document {first}, lambada_openai"
    assert TEXTS[first] in dialog.inner_text()
    assert dialog.locator(".token").count() == 3
    assert dialog.locator(".token-text").all_inner_texts()[1:] == ["sa", "!"]
    expected = documents.of("candidate", "token_logprobs")[first][0][1]
    assert (
        dialog.locator(".token")
        .nth(1)
        .locator(".heat")
        .nth(1)
        .inner_text()
        .endswith(f"{expected:.2f}")
    )
    dialog.get_by_role("button", name="Next").click()
    expect(page.locator("dialog h2")).to_contain_text(f"{by_drift(documents)[1]},")


def test_tokens_are_read_by_keyboard_and_need_no_colour(opened: Opened) -> None:
    page = ready(opened(page_of(of_tokens([-0.5, -1.0, -2.0], [-0.5, -4.0, -0.25]))))
    page.locator("#grid-body .grid-row").first.click()
    page.locator(".token").first.focus()
    figures = page.locator(".token-figures")
    expect(figures).to_have_text(
        "Token 1 of 3, “·a”: base -0.50 (p 0.61), candidate -0.50 (p 0.61), change 0.00, KL 0.00"
    )
    page.keyboard.press("PageDown")
    expect(figures).to_have_text(
        "Token 2 of 3, “⏎”: base -1.00 (p 0.37), candidate -4.00 (p 0.018), change -3.00, KL 0.00"
    )
    page.keyboard.press("ArrowRight")
    expect(figures).to_contain_text("Token 3 of 3")
    expect(figures).to_contain_text("change +1.75")
    page.keyboard.press("ArrowRight")  # stays at the last
    expect(figures).to_contain_text("Token 3 of 3")
    assert page.locator(".token .mark").all_inner_texts() == ["▼", "▲"]
    borders = [
        page.locator(f".token.{kind}").evaluate("(it) => getComputedStyle(it).borderTopStyle")
        for kind in ("worse", "better")
    ]
    assert borders == ["solid", "dashed"]
    page.locator(".token").first.hover()
    expect(figures).to_contain_text("Token 1 of 3")


def test_a_token_without_a_probability_is_told_from_one_of_none(opened: Opened) -> None:
    page = ready(opened(page_of(of_tokens([-1.0, -1.0, math.nan], [-math.inf, -1.0, -9.0]))))
    page.locator("#grid-body .grid-row").first.click()
    first, second, third = (page.locator(".token").nth(place) for place in range(3))
    assert first.locator(".heat").all_inner_texts() == ["-1.00", "-∞"]
    assert "candidate -∞ (p 0), change -∞" in first.get_attribute("aria-label")
    assert "worse" in first.get_attribute("class")
    assert "change 0.00" in second.get_attribute("aria-label")
    assert third.locator(".heat").all_inner_texts() == ["–", "-9.00"]
    assert "change –" in third.get_attribute("aria-label")
    assert third.get_attribute("class") == "token"
    expect(page.locator("dialog")).to_contain_text("log-likelihood -inf")


def test_going_on_keeps_the_keyboard_where_it_is(opened: Opened) -> None:
    page = ready(opened(page_of(loglikelihoods(TEXTS[:3]))))
    page.locator("#grid-body .grid-row").first.click()
    assert page.get_by_role("button", name="Previous").is_disabled()
    page.get_by_role("button", name="Next").focus()
    order = ids(page)
    for place in (1, 2):
        page.keyboard.press("Enter")
        expect(page.locator("dialog h2")).to_contain_text(f"{order[place]},")
    assert page.get_by_role("button", name="Next").is_disabled()
    assert page.evaluate("document.activeElement.textContent") == "Close"
    page.keyboard.press("Enter")
    # by a locator: what waits for a script's value evaluates text, which the page forbids
    expect(page.locator('.grid-row[data-place="2"]')).to_be_focused()


def test_where_no_score_moved_the_distributions_sort_the_documents(opened: Opened) -> None:
    documents = loglikelihoods(TEXTS[:40])
    still = dict(documents.columns)
    still["drift:none:perplexity"] = [0.0] * 40
    documents = replace(documents, columns=still)
    page = ready(opened(page_of(documents)))
    kl = np.array([float(f"{value:.2g}") for value in documents.mean_kl() or ()])
    assert ids(page)[:5] == np.argsort(-kl, kind="stable")[:5].tolist()
    page.select_option("#filter", "moved")
    counted(page, 0)


def test_documents_that_were_not_compared_are_not_said_to_differ(opened: Opened) -> None:
    documents = loglikelihoods(TEXTS[:4])
    columns = dict(documents.columns)
    columns["drift:none:perplexity"] = [None, 0.0, 0.5, -0.5]
    page = ready(opened(page_of(replace(documents, columns=columns))))
    page.select_option("#filter", "moved")
    counted(page, 2)


def test_all_of_it_can_be_done_by_keyboard(opened: Opened) -> None:
    documents = loglikelihoods(TEXTS)
    page = ready(opened(page_of(documents)))
    page.locator("#search").focus()
    for _ in range(6):  # past the sortable heads
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    focused = "document.activeElement.dataset.place"
    assert page.evaluate(focused) == "2"
    page.keyboard.press("End")
    assert page.evaluate(focused) == "299"
    page.keyboard.press("PageUp")
    assert int(page.evaluate(focused)) < 299
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    assert page.evaluate(focused) == "0"


def test_numbers_of_a_column_have_as_many_digits(opened: Opened) -> None:
    documents = loglikelihoods(TEXTS)
    page = ready(opened(page_of(documents)))
    cells = page.locator("#grid-body .grid-row .cell.base").all_inner_texts()
    assert len(cells) > 10
    assert all(len(cell.lstrip("-0.").replace(".", "")) == 5 for cell in cells)
    page.select_option("#metric", label="lambada_openai · acc")
    page.wait_for_function("document.querySelector('#grid-body .cell.base').textContent.length < 2")
    assert set(page.locator("#grid-body .cell.base").all_inner_texts()) <= {"0", "1"}


def test_a_table_of_few_documents_takes_no_more_room_than_they_do(opened: Opened) -> None:
    page = ready(opened(page_of(loglikelihoods(TEXTS[:2]))))
    assert page.locator("#grid-body").bounding_box()["height"] < 80


def test_long_names_of_the_environment_leave_the_page_its_width(opened: Opened) -> None:
    page = opened(page_of(shown=report(comparison(), environment={"NAME" * 60: "x" * 500})))
    assert cut_off(unfolded(page)) == []


def test_a_command_is_broken_between_its_words_and_copied_as_it_is(opened: Opened) -> None:
    command = "evalguard compare --base orig --cand fla-port --set 'a b=reference'"
    page = opened(
        page_of(shown=report(comparison(), command=command)),
        viewport={"width": 390, "height": 800},
    )
    code = page.locator("#run ~ .command code")
    assert code.inner_text() == code.evaluate("one => one.textContent") == command
    heights = code.locator(".word").evaluate_all(
        "words => words.map((word) => word.getClientRects()[0].height)"
    )
    assert len(set(heights)) == 1


def test_the_row_of_the_keyboard_is_never_cut_and_never_lost(opened: Opened) -> None:
    page = ready(opened(page_of(loglikelihoods(TEXTS))))
    focused = "document.activeElement.dataset.place"
    page.locator("#grid-body .grid-row").first.focus()
    page.keyboard.press("End")
    for _ in range(20):
        page.keyboard.press("ArrowUp")
        row = page.locator("#grid-body .grid-row:focus").bounding_box()
        body = page.locator("#grid-body").bounding_box()
        assert row["y"] >= body["y"] - 1
        assert row["y"] + row["height"] <= body["y"] + body["height"] + 1
    page.evaluate("document.getElementById('grid-body').scrollTop = 0")
    expect(page.locator("#grid-body .grid-row[data-place='0']")).to_be_visible()
    assert page.evaluate(focused) == "279"
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == "278"
    page.focus("#search")
    page.evaluate("document.getElementById('grid-body').scrollTop = 0")
    expect(page.locator("#grid-body .grid-row[data-place='0']")).to_be_visible()
    assert page.locator("#grid-body .grid-row[tabindex='0']").count() == 1
    while page.evaluate(focused) is None:
        page.keyboard.press("Tab")
    assert page.evaluate(focused) == "278"
    expect(page.locator("#grid-body .grid-row:focus")).to_be_in_viewport()


@pytest.mark.parametrize(
    ("target", "named"), [("1", "Option 2"), (" option 2", "Option 3"), ("x", ""), ("7", "")]
)
def test_the_option_that_is_the_target_is_named(opened: Opened, target: str, named: str) -> None:
    documents = choices(3)
    columns = {**documents.columns, "target": [target] * 3}
    page = ready(opened(page_of(replace(documents, columns=columns))))
    page.locator("#grid-body .grid-row").first.click()
    headings = page.locator("dialog h4").all_inner_texts()
    assert len(headings) == 3
    marked = [text for text in headings if text.endswith("the target")]
    assert marked == ([f"{named}, the target"] if named else [])


def test_a_document_named_in_the_text_opens(opened: Opened) -> None:
    moved = InfluentialDocument(task="lambada_openai", doc_id=5, contribution=0.2, share=0.1)
    carried = Influence(documents=(moved,), moved=300, half=90, removed=3, sigma_without=1.0)
    shown = report(comparison(task="lambada_openai", metric="perplexity", influence=carried))
    page = ready(opened(page_of(loglikelihoods(TEXTS), shown=shown)))
    page.locator("a.open-document", has_text="5").click()
    expect(page.locator("dialog[open] h2")).to_have_text("Document 5, lambada_openai")


def test_generated_texts_and_options_open_too(opened: Opened) -> None:
    page = ready(opened(page_of(generated(TEXTS[:5], ["four"] * 5), choices(8))))
    page.locator("#grid-body .grid-row").first.click()
    assert "base four" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.select_option("#metric", label="arc_easy · acc")
    page.select_option("#filter", "answers")
    expect(page.locator("#count")).to_have_text(re.compile(" of 8 "))
    page.locator("#grid-body .grid-row").first.click()
    expect(page.locator("dialog")).to_contain_text("the likeliest option")
    assert page.locator("dialog h4").count() == 3


def test_as_many_rows_as_a_page_holds_are_a_few_elements_and_reach_the_last(
    opened: Opened,
) -> None:
    texts = [f"row {number}" for number in range(MOST_DOCUMENTS)]
    page = ready(opened(page_of(loglikelihoods(texts, tokens=1))))
    page.click("#grid-head [data-key=id]")
    assert page.locator("#grid-body .grid-row").count() < 60
    page.evaluate("document.getElementById('grid-body').scrollTop = 1e9")
    expect(page.locator("#grid-body .id", has_text=str(MOST_DOCUMENTS - 1))).to_be_visible()
    assert page.locator("#grid-body .grid-row").count() < 60
    page.fill("#search", "row 432")
    counted(page, 11)
    page.locator("#grid-body .grid-row").first.click()
    expect(page.locator("dialog")).to_contain_text("row 432")


def test_hostile_texts_neither_run_nor_break_the_page(opened: Opened) -> None:
    huge = "A" * 1_000_000
    texts = [*HOSTILE, huge]
    shown = report(
        *(
            comparison(task=task, metric=metric)
            for task, metric in zip(HOSTILE, reversed(HOSTILE), strict=True)
        ),
        notes=HOSTILE,
    )
    documents = loglikelihoods(
        texts, task=HOSTILE[0], continuation=HOSTILE[1], names=(*HOSTILE, huge)
    )
    page = ready(opened(page_of(documents, generated(texts, texts), shown=shown)))
    before = page.evaluate("document.body.children.length")
    for metric in range(2):
        page.select_option("#metric", str(metric * 2))
        page.wait_for_timeout(100)
        page.click("#grid-head [data-key=id]")
        for place in range(len(texts)):
            row = page.locator(f"#grid-body .grid-row[data-place='{place}']")
            row.scroll_into_view_if_needed()
            row.click()
            page.wait_for_selector("dialog[open] pre.text")
            assert page.locator("dialog").inner_text()
            page.keyboard.press("Escape")
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.body.children.length") == before
    assert page.locator("script").count() == page.locator("body > script").count()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_policy_stops_a_script_that_gets_in(opened: Opened) -> None:
    page = ready(opened(page_of(loglikelihoods(TEXTS)), allowed=("Content Security Policy",)))
    page.evaluate(
        """() => {
        const script = document.createElement("script");
        script.textContent = "window.hit = 1";
        document.body.append(script);
        const box = document.createElement("div");
        box.innerHTML = "<img src='http://127.0.0.1:9/x' onerror='window.hit = 2'>";
        document.body.append(box);
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit") is None
    injected = page_of(loglikelihoods(TEXTS)).replace(
        "</main>", "<script>window.hit = 3</script><p id='styled' style='color: red'>x</p></main>"
    )
    page = ready(opened(injected, allowed=("Content Security Policy",)))
    assert page.evaluate("window.hit") is None
    assert (
        page.evaluate("getComputedStyle(document.getElementById('styled')).color")
        != "rgb(255, 0, 0)"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_hinders_those_who_read_otherwise(opened: Opened, scheme: str, width: int) -> None:
    page = ready(
        opened(
            page_of(loglikelihoods(TEXTS, tokens=30)),
            color_scheme=scheme,
            viewport={"width": width, "height": 800},
        )
    )
    unfolded(page)
    assert cut_off(page) == []
    assert complaints(page) == []
    page.locator("#grid-body .grid-row").first.click()
    page.wait_for_selector("dialog[open] .token")
    assert complaints(page) == []


def test_the_theme_can_be_switched_and_follows_the_system(opened: Opened) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    page = ready(opened(page_of(loglikelihoods(TEXTS)), color_scheme="dark"))
    dark = page.evaluate(paper)
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: light"
    light = page.evaluate(paper)
    assert light == "rgb(255, 255, 255)" != dark
    page.click("#theme")
    assert page.evaluate(paper) == dark


def test_print_shows_everything_but_the_controls_on_white(opened: Opened) -> None:
    page = ready(opened(page_of(loglikelihoods(TEXTS)), color_scheme="dark"))
    page.emulate_media(media="print", color_scheme="dark")
    for hidden in ("#controls", "#grid-box", ".top", "#theme"):
        assert not page.locator(hidden).is_visible()
    assert not page.locator("#documents").is_visible()
    assert page.locator("#verdict").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    assert page.pdf()[:5] == b"%PDF-"


def test_nothing_is_wider_than_the_paper(opened: Opened) -> None:
    targets = [replace(one, target="attr:model.layers." * 6) for one in SETTINGS]
    candidate = replace(SHOWN.candidate, settings=tuple(targets))
    page = opened(page_of(shown=replace(SHOWN, candidate=candidate)), viewport=PAPER)
    page.emulate_media(media="print")
    assert cut_off(unfolded(page)) == []
    assert page.locator(".metrics td.plot").first.bounding_box()["width"] > 150
    name, value = (page.locator(f"dl.facts {one}").first.bounding_box() for one in ("dt", "dd"))
    assert abs(name["y"] - value["y"]) < name["height"], "a fact is one line of paper, not two"


def test_without_a_script_all_but_the_table_of_documents_is_there(opened: Opened) -> None:
    page = opened(page_of(loglikelihoods(TEXTS)), java_script_enabled=False)
    assert page.locator("#verdict").is_visible()
    assert page.locator(".forest").first.is_visible()
    assert page.locator("noscript").first.is_visible()
    assert not page.locator("#controls").is_visible()


def test_a_page_without_documents_says_nothing_in_the_console(opened: Opened) -> None:
    page = opened(page_of(shown=DEMO))
    assert page.locator("#verdict").is_visible()
    assert page.locator("#theme").is_visible()
