"""A page of text in a terminal: blocks of lines, plain or with ANSI styles, and in Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from evalguard.core.repeat_command import shell_words
from evalguard.page.safe_text import inline, is_wider, wrap_text


def code_block(lines: Sequence[str], language: str = "") -> str:
    """Return printable lines as a block of code that nothing in them can end."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def foldout(title: str, body: str) -> str:
    """Return a body that opens at a click."""
    return f"<details><summary>{inline(title)}</summary>\n\n{body}\n\n</details>"


def join_paragraphs(*parts: str) -> str:
    """Join what there is with an empty line between."""
    return "\n\n".join(part for part in parts if part)


def paragraph_bytes(text: str) -> int:
    """Bytes of a paragraph in a file."""
    return len(text.encode("utf-8", "replace")) + 2


NARROWEST = 20
_WIDEST_PROSE = 100
_QUOTE = shlex.quote("'")[1:-1]  # how a quote stands in quotes


def render_page(blocks: Iterable[list[Text]], width: int, *, color: bool) -> str:
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


def wrap_prose(text: str, width: int, *, style: str = "") -> list[Text]:
    """Return running text as lines; none for an empty one."""
    return [Text(line, style=style) for line in wrap_text(text, prose_width(width))] if text else []


def command_lines(command: str, width: int) -> list[Text]:
    """Break a command so that it can be copied: continued lines end in a backslash."""
    if not command:
        return []
    lines: list[str] = []
    for word in _words(command):
        joined = f"{lines[-1]} {word}" if lines else f"  {word}"
        if lines and cell_len(joined) > width - 2:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1:] = [joined]
    return [Text(line, style="cyan") for whole in lines for line in _pieces(whole, width)]


def next_lines(step: str, command: str, width: int) -> list[Text]:
    """Return what to do next, and the command that does it; "" where there is none."""
    heading = f"Next, {step}:" if command else f"Next: {step}."
    return [*wrap_prose(heading, width, style="bold"), *command_lines(command, width)]


def more_lines(run_folder: str, held: str, width: int) -> list[Text]:
    """Return the command that shows the rest of a finished run, with what is ``held`` there."""
    heading = f"More ({held}): " if held else "More: "
    if not run_folder:
        return wrap_prose(f"{heading}the same command with -v", width, style="dim")
    command = f"evalguard report {shlex.quote(run_folder)} -v"
    if not is_wider(heading + command, width):
        return [Text(heading + command, style="dim")]
    return [*wrap_prose(heading.rstrip(), width, style="dim"), *command_lines(command, width)]


def _words(command: str) -> list[str]:
    """Split a command at its blanks, an option together with its value."""
    try:
        words = [shlex.quote(word) for word in shell_words(command)]
    except ValueError:
        words = command.split()
    joined: list[str] = []
    for word in words:
        bare = joined and joined[-1].startswith("--") and " " not in joined[-1]
        if bare and not word.startswith("-"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def _pieces(line: str, width: int) -> list[str]:
    """Break a line that is too wide where a shell joins it again: a backslash, then column 0.

    In single quotes a backslash is a character like others, so they are closed and opened again.
    """
    pieces = []
    quote, start = "", 0
    while is_wider(rest := f"{quote}{line[start : start + width + 1]}", width):
        end = _end(rest, width - 2)
        start += end - len(quote)
        opened = rest[:end].replace(_QUOTE, "").count("'") % 2
        quote = "'" * opened
        pieces.append(f"{rest[:end]}{quote}\\")
    return [*pieces, rest]


def _end(line: str, room: int) -> int:
    """Where to break: behind an option, else a folder's name, else inside; beside no quote."""
    fits = [end for end in range(1, len(line)) if cell_len(line[:end]) <= room]
    option = line.find(" ", line.find("--")) + 1 if line.lstrip().startswith("--") else 0
    if option in fits:
        return option
    plain = [end for end in fits if not {*line[end - 1 : end + 1]} & {*"'\""}]
    folders = [end for end in plain if line[end - 1] == "/" and end > room // 3]
    return max(folders or plain or fits)


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
