"""The report that a person reads in a terminal."""

from __future__ import annotations

import shlex

from rich.cells import cell_len
from rich.text import Text

from evalguard.compare_report import CompareReport, RunIdentity
from evalguard.comparison import Comparison
from evalguard.report import rounding
from evalguard.report.accepted import accepted_lines
from evalguard.report.across_tasks import across_text
from evalguard.report.answers import answer_lines
from evalguard.report.bisect_meaning import guilty_text, whole_meaning
from evalguard.report.bisect_table import bisect_lines, fix_lines
from evalguard.report.distribution_table import distribution_lines
from evalguard.report.floor_words import floor_line
from evalguard.report.influence import influence_text
from evalguard.report.limits import limit_line, limit_tally
from evalguard.report.page import NARROWEST, page, prose, prose_width
from evalguard.report.plain_text import fitted, padded, printable, wrapped
from evalguard.report.resources import resources_text
from evalguard.report.sentence import Meaning
from evalguard.report.stopping import stopping_texts
from evalguard.report.subtasks import shown
from evalguard.report.table import table
from evalguard.report.wording import STATE_STYLE, margin_text, metric_label, tallies

_MOST_LABELS = 3
_SHOWN_DIGEST = 8
_LEGEND = "sigma: drift in standard errors of the base; above 0 the candidate is worse."


def render(report: CompareReport, *, width: int, color: bool) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    Nothing that comes from a file or a model (names, reasons, caveats) can act on the terminal.
    With ``color`` the text holds ANSI styles; without, it holds no escape character at all.
    """
    width = max(width, NARROWEST)
    blocks = [
        sides(report.base, report.candidate, width),
        _table(report, width),
        _distributions(report, width),
        _across(report, width),
        _answers(report, width),
        _stopping(report, width),
        _verdict(report, width),
        _influence(report, width),
        _caveats(report, width),
        _left_out(report, width),
        _saved(report, width),
        bisect_lines(report, width),
        fix_lines(report, width),
        # Last, where the eye is when the command ends.
        _meaning(whole_meaning(report), width),
    ]
    return page(blocks, width, color=color)


def sides(base: RunIdentity, candidate: RunIdentity, width: int) -> list[Text]:
    """Return a line for the base and one for the candidate: name, description, digest."""
    both = (("base", base), ("candidate", candidate))
    name_width = min(max(cell_len(printable(side.name)) for _, side in both), width // 3)
    lines = []
    for role, side in both:
        head = f"{role:<9}  {padded(printable(side.name), name_width)}"
        room = width - cell_len(head) - 2
        lines.append(Text.assemble((fitted(head, width), "bold"), (about(side, room), "dim")))
    return lines


def about(side: RunIdentity, room: int) -> str:
    """Return what stands behind a model's name, in at most ``room`` cells and two blanks."""
    digest = printable(side.digest)[:_SHOWN_DIGEST]
    parts = [printable(side.description), f"digest {digest}" if digest else ""]
    text = ", ".join(part for part in parts if part)
    return f"  {fitted(text, room)}" if text and room > 0 else ""


def _table(report: CompareReport, width: int) -> list[Text]:
    visible, left_out = shown(report.comparisons)
    lines = table(visible, width=width, margin=report.gate.margin)
    for text in left_out:
        lines += prose(text, width, style="dim")
    if lines:
        lines += prose(_LEGEND, width, style="dim")
    return lines


def _distributions(report: CompareReport, width: int) -> list[Text]:
    return [Text(line) for line in distribution_lines(report, width, prose_width(width))]


def _answers(report: CompareReport, width: int) -> list[Text]:
    sentences = answer_lines(report)
    return [Text(line) for one in sentences for line in wrapped(one, prose_width(width))]


def _across(report: CompareReport, width: int) -> list[Text]:
    return [Text(line) for line in wrapped(across_text(report), prose_width(width)) if line]


def _influence(report: CompareReport, width: int) -> list[Text]:
    return [Text(line) for line in wrapped(influence_text(report), prose_width(width)) if line]


def _stopping(report: CompareReport, width: int) -> list[Text]:
    texts = stopping_texts(report)
    room = prose_width(width)
    return [Text(line) for text in texts for line in wrapped(text, room, rest="    ")]


def _verdict(report: CompareReport, width: int) -> list[Text]:
    gate = report.gate
    word = gate.state.upper()
    facts = (
        f"{tallies(report)}{limit_tally(gate.limits)}; "
        f"exit code {report.exit_code}{guilty_text(report)}. "
        f"Gate: margin {margin_text(gate.margin)} sigma, fail on {printable(gate.fail_on)}"
        f"{_false_alarm(gate.family_false_alarm)}."
    )
    lines = prose(f"{word}: {facts}", width)
    lines[0].stylize(STATE_STYLE[gate.state], 0, len(word) + 1)
    for text in accepted_lines(gate):
        lines += [Text(line) for line in wrapped(text, prose_width(width), first="  ", rest="    ")]
    for limit in gate.limits:
        broken = wrapped(limit_line(limit), prose_width(width), first="  ", rest="    ")
        lines += [Text(line, style=STATE_STYLE[limit.state]) for line in broken]
    beside = wrapped(floor_line(report), prose_width(width))
    return lines + [Text(line) for line in beside if line]


def _false_alarm(chance: float | None) -> str:
    text = rounding.p_value(chance)
    if text == "-":
        return ""
    bound = f"below {text[2:]}" if text.startswith("<") else f"at most about {text.lstrip('> ')}"
    return f"; an unchanged candidate would fail it with probability {bound}"


def _meaning(said: Meaning, width: int) -> list[Text]:
    step = f"Next, {said.next_step}:" if said.command else f"Next: {said.next_step}."
    lines = [*wrapped(said.sentence, prose_width(width)), *wrapped(step, prose_width(width))]
    return [Text(line, style="bold") for line in lines] + _command(said.command, width)


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
        words = [shlex.quote(word) for word in shlex.split(command)]
    except ValueError:
        words = command.split()
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and not word.startswith("-"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def _pieces(line: str, width: int) -> list[str]:
    return [line] if cell_len(line) <= width else wrapped(line, width, first="  ", rest="  ")


def _caveats(report: CompareReport, width: int) -> list[Text]:
    """Number every caveat and note once, with the metrics that it belongs to."""
    places: dict[str, list[Comparison]] = {}
    visible, _ = shown(report.comparisons)
    for comparison in visible:
        for caveat in dict.fromkeys(comparison.caveats):
            places.setdefault(printable(caveat).strip(), []).append(comparison)
    whole = len(visible)
    items = [
        text if len(at) == whole > 1 else f"{_places(at)}: {text}" for text, at in places.items()
    ]
    items += [note for note in dict.fromkeys(map(printable, report.notes)) if note not in places]
    if not items:
        return []
    lines = [Text("Caveats", style="dim")]
    for number, item in enumerate(items, start=1):
        head = f"{number:>2}. "
        broken = wrapped(item, prose_width(width), first=head, rest=" " * len(head))
        lines += [Text(line, style="dim") for line in broken]
    return lines


def _places(comparisons: list[Comparison]) -> str:
    """Return "lastword perplexity, acc; choice acc": each task once, and not too many metrics."""
    tasks: dict[str, list[str]] = {}
    for comparison in comparisons[:_MOST_LABELS]:
        tasks.setdefault(printable(comparison.task), []).append(metric_label(comparison))
    shown = "; ".join(f"{task} {', '.join(metrics)}" for task, metrics in tasks.items())
    more = len(comparisons) - _MOST_LABELS
    return shown + (f" and {more} more" if more > 0 else "")


def _left_out(report: CompareReport, width: int) -> list[Text]:
    lines: list[Text] = []
    for left_out in report.not_compared:
        name = printable(f"{left_out.task} {left_out.metric}".strip())
        if left_out.filter not in ("", "none"):
            name += printable(f" ({left_out.filter})")
        text = f"Not compared: {name}: {printable(left_out.reason)}"
        lines += [Text(line, style="dim") for line in wrapped(text, prose_width(width), rest="  ")]
    return lines


def _saved(report: CompareReport, width: int) -> list[Text]:
    texts = [resources_text(report.resources)]
    if report.run_folder is not None:
        texts.append(f"Saved in {printable(report.run_folder)}")
    return [
        Text(line, style="dim")
        for text in texts
        if text
        for line in wrapped(text, prose_width(width), rest="  ")
    ]
