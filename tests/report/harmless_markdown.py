"""Texts that try to be markup, and how a page is told to have none but evalguard's own."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

OURS = {"<details>", "</details>", "<summary>", "</summary>", "<span>", "</span>"}
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "](https://evil.example) [click](https://evil.example) ![](https://evil.example/a.png)",
    "https://evil.example www.evil.example",
    "x_www.evil.example &1 [issue:1] [vulnerability:2]",
    "@everyone @org/team hi#1 GH-12 !3 ~label %1 a@b.example",
    "`code` ```\n```  ~~~ ``",
    "a | b | c",
    "</details><details open>",
    "<!-- evalguard 0000 --> --> *bold* __bold__ ~~gone~~ :smile: $x$",
    "GL-12 *iteration:\"x\" ^alert#1 %{latest_tag} [TOC] [[_TOC_]] {+ a +} {- b -} [+ c +] [- d -]",
    "/close", "/merge now",
    "fixed in 8a1f2b3c and a5c3785ed8d6a35868bc169f07e40e889087fd2e, @8a1f2b3c",
    "# head", "- item", "1. item", "=== ", "    code", "> quote", "&lt;b&gt; &copy;",
)  # fmt: skip


def tokens(text: str) -> list[Token]:
    """Every token of a page as GitHub's Markdown reads it, those inside lines too."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    found = []
    for token in parser.parse(text):
        found += [token, *(token.children or ())]
    return found


def seen(found: list[Token]) -> list[str]:
    """The words that a reader sees."""
    texts = [t.content for t in found if t.type in ("text", "code_inline")]
    return "".join(texts).replace("\u200b", "").split()


def assert_harmless(text: str) -> None:
    for token in tokens(text):
        assert token.type not in ("link_open", "image", "blockquote_open"), token
        if token.type in ("html_block", "html_inline"):
            tags = set(re.findall(r"<[^>]*>", token.content))
            assert tags <= OURS or token.content.startswith("<!-- evalguard "), token.content
        if token.type == "text":
            live = (
                r'[@#!%$~][\w"{]|&\d|\[\w+:\w|://|(?<![^\W_])www\.|\bG[HL]-\d|\*iteration:'
                r"|[{\[][+-]|[+-][}\]]|\[_?TOC"
            )
            assert not re.search(live, token.content, re.IGNORECASE), token.content
            for word in re.findall(r"(?<![\w/.-])[0-9a-fA-F]{7,64}(?![\w-])", token.content):
                assert word.isdigit() or word.isalpha(), f"{word} may be a commit"
