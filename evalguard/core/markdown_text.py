"""Text of models, files and people inside Markdown and chat: it stays text, whatever it holds.

For GitHub, GitLab, W&B and Slack alike: what one of them reads as markup, none is given.
"""

from __future__ import annotations

import html
import re

# What Markdown reads as markup anywhere, and at the beginning of a line; there, GitLab also reads
# /merge or /close as an order.
_MARKUP = re.compile(r"([\\`*_\[\]|~])")
_BEGINNING = re.compile(r"^(#(?=[#\s]|$)|[+-](?=[\s-]|$)|=(?=[=\s]|$)|\d+(?=[.)](?:\s|$))|/(?=\w))")
# What GitHub and GitLab turn into mentions, links and pictures. They look for it in the text that
# is shown, where an escape does not help; a character without width between its parts does.
_BREAK = "\u200b"
_EMOJI = r"(?:[\w+-]*[a-z_][\w+-]*|100|1234|[+-]1):"  # and no time of day: 11:00:00
_REFERENCE = re.compile(
    rf'(?<=[@#!%$~])(?=[\w"{{])|(?<=&)(?=\d)|(?<=\[)(?=\w+:[\w"])|(?<=:)(?=//|{_EMOJI})'
    r"|(?<=www)(?<![^\W_]www)(?=\.)|(?<=\bGH)(?=-\d)|(?<=\bGL)(?=-\d)|(?<=\*)(?=iteration:)"
    # GitLab: {+ added +} and [- removed -] in colours, [TOC] and [[_TOC_]] a table of contents.
    r"|(?<=[{\[])(?=[+-])|(?<=[+-])(?=[}\]])|(?<=\[)(?=_?TOC_?\])",
    re.IGNORECASE,
)
# A commit, where one has this hash. In code it is none, and can still be copied.
_COMMIT = re.compile(
    r"(?<![\w/.-])(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])([0-9a-f]{7,64})(?![\w-])", re.IGNORECASE
)
# For chat: a bracket that opens nothing, and where what is not an entity would begin one.
_BRACKET = "\u2039"
_ENTITY = re.compile(r"(?<=&)(?=[#\w])")
_MOST = 1500


def inline(text: str, most: int = _MOST, *, dollar: str = "<span>$</span>") -> str:
    """Return printable ``text`` as a part of a line: no markup, link, mention, picture or HTML.

    Args:
        most: characters; a longer one (a name of a megabyte) is cut in its middle.
        dollar: stands for a dollar sign, so that no formula begins.
    """
    parts = _COMMIT.split(_line(text, most))
    shown = "".join(
        f"`{part}`" if index % 2 else _escaped(part, dollar) for index, part in enumerate(parts)
    )
    return _BEGINNING.sub(lambda found: f"&#{ord(found[1][0])};{found[1][1:]}", shown)


def break_links(text: str, most: int = _MOST) -> str:
    """Return printable ``text`` as a line of a message that goes on to Slack and to e-mails.

    No mention, link or emoji; nobody knows which of them reads backslashes, or what it does with
    an entity, so that none is written. Asterisks and underlines are left: names have them, and
    they only make letters bold.

    Args:
        most: as of ``inline``.
    """
    text = _line(text, most)
    # Slack reads <!channel>, <@U1>, <#C1> and <address|other text>: whatever stands in brackets.
    closed = text.rfind(">") + 1
    text = text[:closed].replace("<", _BRACKET) + text[closed:]
    return _REFERENCE.sub(_BREAK, _ENTITY.sub(_BREAK, text))


def _line(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def _escaped(text: str, dollar: str) -> str:
    broken = html.escape(_REFERENCE.sub(_BREAK, text), quote=False)
    return _MARKUP.sub(r"\\\1", broken).replace("$", dollar)
