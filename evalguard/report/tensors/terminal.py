"""Compared tensors in a terminal: the answer first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from evalguard.core.reports.tensors_report import TensorsReport
from evalguard.report.tensors.words import (
    DeltaGroup,
    answer_text,
    configuration_lines,
    duplicate_lines,
    figures_text,
    format_share,
    group_deltas,
    list_repairs,
    missing_lines,
    scale_lines,
    source_text,
    untrained_text,
)
from evalguard.report.terminal_page import (
    NARROWEST,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.report.words.plain_text import fit_text, printable, wrap_text
from evalguard.report.words.rounding import format_count

_MOST_GROUPS, _MOST_RULES, _MOST_NAMES = 6, 2, 4


def render_tensors(report: TensorsReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    The answer, what the differences look like with the worst tensor of each kind, and what is
    missing; with ``verbose`` every tensor that is not identical. No name can act on the terminal.
    """
    width = max(width, NARROWEST)
    groups = [one for one in group_deltas(report) if one.state != "identical"]
    most = 10**9 if verbose else _MOST_GROUPS
    style = "bold green" if report.exit_code == 0 else "bold red"
    blocks = [
        [
            *wrap_prose(answer_text(report), width, style=style),
            *_wrapped(scale_lines(report), width),
            *_wrapped(configuration_lines(report), width),
        ],
        _wrapped(
            [
                f"base {source_text(report.base)}",
                f"candidate {source_text(report.candidate)}",
            ],
            width,
            rest="  ",
        ),
        _invariant_lines(report, width, most),
        *(_group_lines(group, width, verbose) for group in groups[:most]),
        _wrapped(missing_lines(report, 10**9 if verbose else _MOST_NAMES), width),
        _wrapped(duplicate_lines(report, 10**9 if verbose else 2), width),
        _rule_lines(report, width, verbose),
        _wrapped([f"Caveat: {printable(one)}" for one in report.caveats], width),
    ]
    if not verbose and groups:
        left = len(groups) - most
        more = f"; {left} more kind{'s' if left > 1 else ''} of difference" if left > 0 else ""
        blocks.append(wrap_prose(f"Every tensor: -v, --json, or -o FILE.html{more}", width))
    return render_page(blocks, width, color=color)


def _group_lines(group: DeltaGroup, width: int, verbose: bool) -> list[Text]:
    lines = wrap_prose(group.words, width, style="bold")
    if group.state == "equal" and not verbose:
        return lines
    for delta in group.deltas if verbose else group.deltas[:1]:
        name = printable(delta.name)
        if delta.candidate_name != delta.name and verbose:
            name += f" ({printable(delta.candidate_name)})"
        head = name if verbose or len(group.deltas) == 1 else f"worst {name}"
        lines.append(Text(f"  {fit_text(head, width - 2)}"))
        figures = figures_text(delta, with_detail=group.differs)
        wrapped = wrap_text(figures, prose_width(width), first="    ", rest="    ")
        lines += [Text(line, style="dim") for line in wrapped]
    return lines


def _invariant_lines(report: TensorsReport, width: int, most: int) -> list[Text]:
    lines: list[Text] = []
    for one in report.invariants:
        lines += wrap_prose(
            f"{one.name}: {one.words}. Broken by {format_count(one.violations)} of "
            f"{format_count(one.elements)} elements ({format_share(one.share)})"
            f"{untrained_text(one)}.",
            width,
        )
        worst = sorted(one.tensors, key=lambda each: -each.violations)
        for tensor in [each for each in worst if each.violations][:most]:
            share = format_share(tensor.violations / tensor.elements)
            text = f"  {share:>9}  {printable(tensor.name)}"
            lines.append(Text(fit_text(text, width)))
    return lines


def _rule_lines(report: TensorsReport, width: int, verbose: bool) -> list[Text]:
    rules = list_repairs(report)
    if not rules:
        return []
    shown = rules if verbose else rules[:_MOST_RULES]
    head = "If the layout is meant, say so in a name map (--map FILE):"
    lines = [*wrap_prose(head, width), Text("  map:")]
    # not broken: somebody copies it
    return [*lines, *(Text(f"  {printable(line)}", style="cyan") for one in shown for line in one)]


def _wrapped(texts: object, width: int, rest: str = "  ") -> list[Text]:
    listed: Sequence[str] = list(texts)  # type: ignore[call-overload]
    return [
        Text(line) for text in listed for line in wrap_text(text, prose_width(width), rest=rest)
    ]
