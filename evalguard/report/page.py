"""The page that a person reads in a terminal: blocks of lines, plain or with ANSI styles."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.console import Console
from rich.text import Text

from evalguard.report.plain_text import wrapped

NARROWEST = 20
_WIDEST_PROSE = 100


def page(blocks: Iterable[list[Text]], width: int, *, color: bool) -> str:
    """Return the blocks that are not empty, a blank line between them, without a final line break.

    With ``color`` the text holds ANSI styles; without, it holds no escape character at all.
    """
    lines: list[Text] = []
    for block in blocks:
        if block:
            lines += [Text(), *block] if lines else block
    return _styled(lines, width) if color else "\n".join(line.plain.rstrip() for line in lines)


def prose_width(width: int) -> int:
    """Width of running text: lines longer than about 100 cells are hard to read."""
    return min(width, _WIDEST_PROSE)


def prose(text: str, width: int, *, style: str = "") -> list[Text]:
    """Return running text as lines; none for an empty one."""
    return [Text(line, style=style) for line in wrapped(text, prose_width(width))] if text else []


def _styled(lines: list[Text], width: int) -> str:
    """Return ``lines`` with ANSI styles, whatever the terminal and environment of this process."""
    console = Console(
        file=StringIO(),
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
        no_color=False,
        legacy_windows=False,
        highlight=False,
        width=width,
        height=25,
    )
    with console.capture() as captured:
        for line in lines:
            console.print(line, soft_wrap=True)
    return captured.get().rstrip("\n")
