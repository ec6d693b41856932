"""Text that is safe to print: no control characters, and never wider than its place.

For GitHub, GitLab, W&B and Slack alike: what one of them reads as markup, none is given.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable

from rich.cells import cell_len

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
    return _BEGINNING.sub(lambda match: f"&#{ord(match[1][0])};{match[1][1:]}", shown)


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


# Cc: control and escape characters; Cf: invisible and direction-changing ones; Cs: lone surrogates,
# which cannot be encoded; Co, Cn: characters whose width nobody knows; Zl, Zp: line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MARKS = frozenset({"Mn", "Me"})
_MOST_MARKS = 2
ELLIPSIS = "…"
_INTERVAL, _JOINT = re.compile(r"\[[^\[\] ]+, [^\[\] ]+\]"), "\ue000"


def printable(text: str) -> str:
    """Return ``text`` without anything that could act on a terminal.

    White space becomes one blank each, unsafe characters "?", and a pile of combining marks is cut
    to two, because names come from files that somebody else wrote.
    """
    return _OTHER.sub(lambda match: _printable(match[0]), text)


# All but the printable characters of ASCII, which are most of most texts.
_OTHER = re.compile(r"[^ -~]+")


def _printable(text: str) -> str:
    shown: list[str] = []
    marks = 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in _MARKS else 0
        if character.isspace():
            shown.append(" ")
        elif category in _UNSAFE:
            shown.append("?")
        elif marks <= _MOST_MARKS:
            shown.append(character)
    return "".join(shown)


def fit_text(text: str, cells: int) -> str:
    """Cut ``text`` to ``cells`` terminal cells with an ellipsis in the middle.

    Both ends stay: task names differ at their ends ("mmlu_high_school_physics"), and paths too.
    """
    if cell_len(text) <= cells:
        return text
    if cells <= 1:
        return ELLIPSIS[:cells]
    tail = _last(text, (cells - 1) // 2)
    return _first(text, cells - 1 - cell_len(tail)) + ELLIPSIS + tail


def is_wider(text: str, cells: int) -> bool:
    """Whether ``text`` is to be broken for ``cells``: it has more of them, or of characters."""
    return len(text) > cells or cell_len(text) > cells


def pad_text(text: str, cells: int, *, right: bool = False) -> str:
    """Fit ``text`` into exactly ``cells`` terminal cells, flush left or right."""
    text = fit_text(text, cells)
    blanks = " " * (cells - cell_len(text))
    return blanks + text if right else text + blanks


def wrap_text(text: str, cells: int, *, first: str = "", rest: str = "") -> list[str]:
    """Break ``text`` into lines of at most ``cells`` cells, with prefixes of equal width.

    A word that is longer than a line is broken inside, a path behind the name of a folder.
    """
    room = max(cells - max(cell_len(first), cell_len(rest)), 1)
    lines: list[str] = []
    line = ""
    for word in text.split():
        start = 0
        while is_wider(rest_of_it := word[start : start + room + 1], room):
            space = room - cell_len(line) - 1 if line else room
            head = _head(rest_of_it, space) if space > room // 2 else ""
            lines.append(f"{line} {head}".strip())
            line, start = "", start + len(head)
        joined = f"{line} {rest_of_it}".strip()
        if cell_len(joined) > room:
            lines.append(line)
            joined = rest_of_it
        line = joined
    if line or not lines:
        lines.append(line)
    return [(rest if number else first) + line for number, line in enumerate(lines)]


def wrap_keeping_intervals(text: str, cells: int, *, first: str = "", rest: str = "") -> list[str]:
    """Break ``text`` as ``wrap_text`` does, but not inside an interval, "[0.85, 1.61]"."""
    joined = _INTERVAL.sub(lambda match: match[0].replace(" ", _JOINT), text)
    return [line.replace(_JOINT, " ") for line in wrap_text(joined, cells, first=first, rest=rest)]


def pack_lines(pieces: Iterable[str], cells: int, *, gap: str, indent: str = "") -> list[str]:
    """Put pieces side by side on as few lines of at most ``cells`` cells as hold them.

    A piece is broken only where it is longer than a line.
    """
    lines: list[str] = []
    for piece in pieces:
        joined = f"{lines[-1]}{gap}{piece}" if lines else ""
        if lines and cell_len(joined) <= cells:
            lines[-1] = joined
        else:
            lines += wrap_text(piece, cells, first=indent, rest=indent)
    return lines


def _head(word: str, cells: int) -> str:
    """What of a long word stands in ``cells``: whole folders of a path, if they fill a third."""
    head = _first(word, cells)
    folders = head[: head.rfind("/") + 1]
    return folders if cell_len(folders) > cells // 3 else head


def _first(text: str, cells: int) -> str:
    """Longest head of ``text`` that fits into ``cells``; at least one character."""
    end = min(len(text), cells)
    while end > 1 and cell_len(text[:end]) > cells:
        end -= 1
    return text[:end] if cell_len(text[:end]) <= cells else "?" * min(cells, 1)


def _last(text: str, cells: int) -> str:
    """Longest tail of ``text`` that fits into ``cells``."""
    start = max(len(text) - cells, 0)
    while start < len(text) and cell_len(text[start:]) > cells:
        start += 1
    return text[start:]
