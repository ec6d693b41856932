"""Text in a message that goes on to Slack and e-mails stays text."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.page.safe_text import break_links

MARKUP = st.text(st.sampled_from("<>!@#&;|:/.*_ abchtps123\u200b"))


@pytest.mark.parametrize(
    "text",
    [
        "<!channel> port",
        "<!subteam^S1|@oncall>",
        "<@U012AB3CD>",
        "<#C123|general>",
        "<http://evil.example|orig regressed>",
        "<mailto:a@b.example|look>",
        "<!date^1392734382^{date}|never>",
        "< !channel >",
        "<a <!here>",
        "@here :rotating_light: www.evil.example https://evil.example",
        "a &lt;!channel&gt; b",
        "&#60;!channel&#62;",
    ],
)
def test_it_mentions_nobody_and_links_nowhere(text: str) -> None:
    shown = break_links(text)
    assert not re.search(r"<.*>|@\w|://|:\w+:|www\.", shown)
    assert html.unescape(shown) == shown
    read = shown.replace("\u200b", "").replace("\u2039", "<")
    assert read == text


@pytest.mark.parametrize(
    "text",
    ["fla_port regressed against orig: p < 0.001", "AT&T & sons", "a *b* 3 > 2", "R&D 11:00"],
)
def test_what_is_no_markup_can_be_read_as_it_was(text: str) -> None:
    assert break_links(text).replace("\u200b", "") == text


def test_a_usual_sentence_is_not_touched() -> None:
    said = "fla-port regressed against orig: perplexity is 1.47 standard errors worse (p < 0.001)"
    assert break_links(said) == said


def test_it_is_one_line_of_no_great_length() -> None:
    assert break_links("a\nb \t c") == "a b c"
    assert len(break_links("<!channel>" * 100_000, most=200)) < 450


@given(MARKUP)
def test_nothing_made_of_markup_is_left_of_it(text: str) -> None:
    shown = break_links(text)
    assert not re.search(r"<.*>|@\w|://", shown)
    assert html.unescape(shown) == shown
