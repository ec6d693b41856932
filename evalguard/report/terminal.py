"""The report that a person reads in a terminal: the view, laid out for the width there is."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.cells import cell_len
from rich.text import Text

from evalguard.compare_report import CompareReport
from evalguard.report.bisect_table import bisect_lines, fix_lines
from evalguard.report.distribution_table import distribution_lines
from evalguard.report.page import NARROWEST, page, prose, prose_width
from evalguard.report.plain_text import fitted, is_wider, packed, padded, wrapped
from evalguard.report.table import table
from evalguard.report.view import ReportView, SideView, report_view
from evalguard.report.wording import STATE_STYLE
from evalguard.shell_words import shell_words

_LEAST_ABOUT, _MOST_ABOUT = 24, 240  # cells
_QUOTE = shlex.quote("'")[1:-1]  # how a quote stands in quotes


def render(report: CompareReport, *, width: int, color: bool) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    Nothing that comes from a file or a model (names, reasons, caveats) can act on the terminal.
    With ``color`` the text holds ANSI styles; without, it holds no escape character at all.
    """
    width = max(width, NARROWEST)
    view = report_view(report)
    blocks = [
        sides(view.base, view.candidate, width),
        _table(view, width),
        [Text(line) for line in distribution_lines(view, width, prose_width(width))],
        _plain([view.across], width),
        _plain(view.answers, width),
        _plain(view.stopping, width, rest="    "),
        _verdict(view, width),
        _plain([view.influence], width),
        _caveats(view, width),
        _plain(view.left_out, width, rest="  ", style="dim"),
        _saved(view, width),
        bisect_lines(view, width),
        fix_lines(view, width),
        # Last, where the eye is when the command ends.
        _meaning(view, width),
    ]
    return page(blocks, width, color=color)


def sides(base: SideView, candidate: SideView, width: int) -> list[Text]:
    """Return a line for the base and one for the candidate: name, description, digest."""
    both = (("base", base), ("candidate", candidate))
    name_width = min(max(cell_len(side.name) for _, side in both), width // 3)
    lines = []
    for role, side in both:
        lines += model_lines(f"{role:<9}  {padded(side.name, name_width)}", side, width)
    return lines


def model_lines(head: str, side: SideView, width: int) -> list[Text]:
    """Return a model's line: ``head``, and what stands behind it, on further lines if need be."""
    head = fitted(head, width)
    room = width - cell_len(head) - 2
    parts = fitted(side.about, _MOST_ABOUT).replace(", ", ",\n").split("\n")
    if not side.about:
        return [Text(head, style="bold")]
    if room < _LEAST_ABOUT:
        return [Text(head, style="bold"), *_dim(packed(parts, width, gap=" ", indent="  "))]
    first, *rest = packed(parts, room, gap=" ")
    beside = " " * (cell_len(head) + 2)
    top = Text.assemble((head, "bold"), (f"  {first}", "dim"))
    return [top, *_dim([beside + line for line in rest])]


def _dim(lines: Iterable[str]) -> list[Text]:
    return [Text(line, style="dim") for line in lines]


def _table(view: ReportView, width: int) -> list[Text]:
    lines = table(view, width=width)
    for text in (*view.hidden, view.legend):
        lines += prose(text, width, style="dim")
    return lines


def _plain(texts: Iterable[str], width: int, *, rest: str = "", style: str = "") -> list[Text]:
    """Return paragraphs as lines; none for an empty one."""
    return [
        Text(line, style=style)
        for text in texts
        if text
        for line in wrapped(text, prose_width(width), rest=rest)
    ]


def _verdict(view: ReportView, width: int) -> list[Text]:
    lines = prose(view.verdict, width)
    lines[0].stylize(STATE_STYLE[view.state], 0, len(view.state) + 1)
    for text in view.accepted:
        lines += [Text(line) for line in wrapped(text, prose_width(width), first="  ", rest="    ")]
    for limit in view.limits:
        broken = wrapped(limit.line, prose_width(width), first="  ", rest="    ")
        lines += [Text(line, style=STATE_STYLE[limit.state]) for line in broken]
    return lines + _plain([view.floor], width)


def _meaning(view: ReportView, width: int) -> list[Text]:
    command = view.next_command
    step = f"Next, {view.next_step}:" if command else f"Next: {view.next_step}."
    return _plain([view.sentence, step], width, style="bold") + _command(command, width)


def _command(command: str, width: int) -> list[Text]:
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


def _caveats(view: ReportView, width: int) -> list[Text]:
    lines = [Text("Caveats", style="dim")] if view.caveats else []
    for caveat in view.caveats:
        head = f"{caveat.number:>2}. "
        broken = wrapped(caveat.line, prose_width(width), first=head, rest=" " * len(head))
        lines += [Text(line, style="dim") for line in broken]
    return lines


def _saved(view: ReportView, width: int) -> list[Text]:
    saved = f"Saved in {view.run_folder}" if view.run_folder else ""
    lines = _plain([view.resources, saved], width, rest="  ", style="dim")
    for tracked in view.tracked:
        lines += _plain([tracked.text], width, rest="  ") + _command(tracked.command, width)
    return lines
