"""Several candidates in one report: a line and a column for each, the steps of a chain, and its
formats.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

from rich.cells import cell_len
from rich.text import Text

from evalguard.core.comparison import Comparison
from evalguard.core.gate_state import GateState, Key
from evalguard.core.markdown_text import inline
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.report_formats import Format
from evalguard.core.reports.several_report import (
    SCHEMA,
    NoVerdict,
    SeveralReport,
    Step,
    StepDrift,
    state_of,
)
from evalguard.report.compare_terminal import render_terminal as render_one
from evalguard.report.contract.compare_document import compare_document as comparison_document
from evalguard.report.github_annotations import annotation_command
from evalguard.report.github_annotations import render_annotations as annotated
from evalguard.report.junit import render_junit
from evalguard.report.markdown_blocks import join_paragraphs
from evalguard.report.table import Table
from evalguard.report.terminal_page import NARROWEST, command_lines, render_page, wrap_prose
from evalguard.report.view.report_view import build_report_view
from evalguard.report.view.screen import (
    cause_line,
    finding_lines,
    gate_rule_text,
    spread_of_tasks,
    verdict_text,
)
from evalguard.report.words import rounding
from evalguard.report.words.metric_labels import (
    STATE_STYLE,
    full_label,
    metric_label,
    metric_margin,
    shown_interval,
)
from evalguard.report.words.plain_text import (
    fit_text,
    pad_text,
    printable,
    wrap_keeping_intervals,
    wrap_text,
)

_WIDTH, _GAP, _INDENT = 80, 2, 2
_MOST_ROWS = 10
_LEAST_LABEL = 12
_RowLabel = tuple[str, str]  # task, metric
_CandidateColumn = tuple[str, list[str]]
_KL, _TOP = "mean KL", "same top token"
_MARK: dict[GateState | None, str] = {"regressed": " !", "undecided": " ?", "failed": " x"}
_LEGEND = "! fails the gate, ? undecided, x no number; sigma with its paired interval"


def render_several(report: SeveralReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    With ``verbose`` every candidate's own report follows, with everything it has to say.
    """
    width = max(width, NARROWEST)
    blocks = [
        [*_head(report, width), *_candidates(report, width)],
        _table(report, width),
        _steps(report, width),
        _next_lines(report, width),
    ]
    text = render_page(blocks, width, color=color)
    if verbose:
        wholes = [*report.reports, *(step.report for step in report.steps)]
        text = "\n\n\n".join(
            [text, *(render_one(one, width=width, color=color, verbose=True) for one in wholes)]
        )
    return text


def several_document(report: SeveralReport) -> dict[str, object]:
    """Return the JSON contract (schema ``evalguard.compare-several/1``) as plain data.

    ``candidates`` holds a whole ``evalguard.compare/1`` document each, or the name of a candidate
    without a verdict with its ``error`` and ``hint``.
    """
    return {
        "schema": SCHEMA,
        "base": report.base,
        "state": report.state,
        "candidates": [
            comparison_document(one)
            if isinstance(one, CompareReport)
            else {"candidate": one.name, "error": one.reason, "hint": one.hint}
            for one in report.candidates
        ],
        "steps": [_step_document(step) for step in report.steps],
        "notes": list(report.notes),
        "exit_code": report.exit_code,
    }


def _step_document(step: Step) -> dict[str, object]:
    base, candidate = step.names
    return {
        "base": base,
        "candidate": candidate,
        "drifts": [
            {
                "task": one.task,
                "filter": one.filter,
                "metric": one.metric,
                "sigma": one.sigma,
                "sigma_interval": None if one.interval is None else list(one.interval),
                "p_value": one.p_value,
                "n_used": one.n,
            }
            for one in step.drifts
        ],
        "comparison": comparison_document(step.report),
    }


def several_headline(report: SeveralReport) -> str:
    """Say the gravest state, whose it is, the gate where all have the same, and the exit code."""
    names = [_name(one) for one in report.candidates if state_of(one) == report.state]
    total = len(report.candidates)
    of = f"{', '.join(names)} ({len(names)} of {total} candidates)"
    who = f"all {total} candidates" if len(names) == total else of
    gate = f"; {_gate(report)}" if _gate(report) else ""
    said = f"{report.state.upper()}: {who} against {printable(report.base)}"
    return f"{said}{gate}; exit code {report.exit_code}"


def _gate(report: SeveralReport) -> str:
    """The gate's rule, where it is the same for all; else "", and each line says its own."""
    rules = {gate_rule_text(one) for one in report.reports}
    return rules.pop() if len(rules) == 1 else ""


def _name(one: CompareReport | NoVerdict) -> str:
    return printable(one.name if isinstance(one, NoVerdict) else one.candidate.name)


def _head(report: SeveralReport, width: int) -> list[Text]:
    lines = [Text(line, style="bold") for line in wrap_text(several_headline(report), width)]
    lines[0].stylize(STATE_STYLE[report.state], 0, len(report.state) + 1)
    return lines


def _candidates(report: SeveralReport, width: int) -> list[Text]:
    """The verdict of each, and its cause."""
    room = min(max(cell_len(_name(one)) for one in report.candidates), width // 3)
    rest = " " * (room + _GAP)
    lines = []
    for one in report.candidates:
        head = pad_text(_name(one), room) + " " * _GAP
        first, *others = _verdict_texts(one, shared_gate=bool(_gate(report)))
        broken = [
            Text(line) for line in wrap_keeping_intervals(first, width, first=head, rest=rest)
        ]
        broken[0].stylize(STATE_STYLE[state_of(one)], len(head), len(head) + len(state_of(one)))
        lines += broken
        for text in others:
            lines += [Text(line) for line in wrap_text(text, width, first=rest, rest=rest)]
    return lines


def _verdict_texts(one: CompareReport | NoVerdict, *, shared_gate: bool) -> list[str]:
    """The verdict and its cause, a text each."""
    if isinstance(one, NoVerdict):
        hint = f" ({printable(one.hint)})" if one.hint else ""
        return [f"FAILED: no verdict: {printable(one.reason)}{hint}"]
    gate = "" if shared_gate else f"; {gate_rule_text(one)}"
    found = [f"Note: {text}" for text in finding_lines(one)]
    return [f"{verdict_text(one)}{gate}", *filter(None, [cause_line(one)]), *found]


def _rows(report: SeveralReport) -> list[Key]:
    """The metrics of all candidates, those that drift most in any of them first."""
    worst: dict[Key, tuple[int, float]] = {}
    for one in report.reports:
        for comparison in one.comparisons:
            sigma = comparison.sigma
            known = sigma if sigma is not None and sigma == sigma else float("-inf")
            rank = (comparison.key in one.gate.gated, known)
            worst[comparison.key] = max(worst.get(comparison.key, rank), rank)
    return sorted(worst, key=lambda key: worst[key], reverse=True)


def _labels(report: SeveralReport) -> dict[Key, Comparison]:
    return {c.key: c for one in reversed(report.reports) for c in reversed(one.comparisons)}


def _table(report: SeveralReport, width: int) -> list[Text]:
    rows, known = _rows(report), _labels(report)
    shown = rows[:_MOST_ROWS]
    if not shown:
        return []
    base = ("base", [rounding.round_to_error(known[k].base, known[k].base_stderr) for k in shown])
    columns = [
        (printable(one.candidate.name), [_cell(one, key) for key in shown])
        for one in report.reports
    ]
    labels = [_label(known[key]) for key in shown]
    spread = {printable(one.candidate.name): spread_of_tasks(one) for one in report.reports}
    if any(spread.values()):
        labels += [("", _KL), ("", _TOP)]
        base[1].extend(["", ""])
        columns = [(name, [*cells, *(spread[name] or ("-", "-"))]) for name, cells in columns]
    lines = _columns(labels, [base], columns, width)
    more = len(rows) - len(shown)
    texts = [f"and {more} more metrics (-v)" if more else "", _LEGEND]
    return [*lines, *(line for text in texts for line in wrap_prose(text, width, style="dim"))]


def _label(comparison: Comparison) -> _RowLabel:
    return printable(comparison.task), metric_label(comparison)


def _cell(report: CompareReport, key: Key) -> str:
    found = next((one for one in report.comparisons if one.key == key), None)
    if found is None:
        return "-"
    gate = report.gate
    states: dict[GateState, Sequence[Key]] = {
        "regressed": gate.regressed, "failed": gate.failed, "undecided": gate.undecided,
    }  # fmt: skip
    state = next((state for state, keys in states.items() if key in keys), None)
    margin = metric_margin(report, found)
    return _sigma(found.sigma, shown_interval(found), margin) + _MARK.get(state, "")


def _sigma(sigma: float | None, interval: tuple[float, float] | None, margin: float) -> str:
    value, low, high = rounding.format_sigma_interval(sigma, interval, margin=margin)
    return f"{value} [{low}, {high}]" if interval is not None else value


def _steps(report: SeveralReport, width: int) -> list[Text]:
    """What each step adds, of the metrics that drift most, in standard errors of the base."""
    lines: list[Text] = []
    known = _labels(report)
    if report.steps:
        shown = [key for key in _rows(report) if any(_drift(s, key) for s in report.steps)]
        shown = shown[:_MOST_ROWS]
        lines += [
            Text(line, style="bold")
            for line in wrap_text(f"Steps, in standard errors of {printable(report.base)}:", width)
        ]
        columns = [
            (_step_name(pair), [_step_cell(report, pair, k) for k in shown])
            for pair in _all_steps(report)
        ]
        lines += _columns([_label(known[key]) for key in shown], [], columns, width)
        for step in report.steps:
            cause = cause_line(step.report, _step_name(step.names))
            if cause:
                lines += [
                    Text(line)
                    for line in wrap_text(
                        cause,
                        width,
                        rest="  ",
                    )
                ]
    for note in report.notes:
        lines += wrap_prose(printable(note), width)
    return lines


def _all_steps(report: SeveralReport) -> list[tuple[str, str]]:
    """Every step on the way to a candidate, once, from the base on."""
    chained = {name for step in report.steps for name in step.names}
    paths = [report.path(one.candidate.name) for one in report.reports]
    return list(dict.fromkeys(pair for path in paths for pair in path if pair[1] in chained))


def _step_name(pair: tuple[str, str]) -> str:
    return printable(f"{pair[0]} -> {pair[1]}")


def _step_cell(report: SeveralReport, pair: tuple[str, str], key: Key) -> str:
    step = next((step for step in report.steps if step.names == pair), None)
    if step is None:
        first = next(one for one in report.reports if one.candidate.name == pair[1])
        return _cell(first, key).rstrip(" !?x")
    drift = _drift(step, key)
    return "-" if drift is None else _sigma(drift.sigma, drift.interval, 0.0)


def _drift(step: Step, key: Key) -> StepDrift | None:
    return next((one for one in step.drifts if one.key == key), None)


def _columns(
    labels: Sequence[_RowLabel],
    fixed: Sequence[_CandidateColumn],
    columns: Sequence[_CandidateColumn],
    width: int,
) -> list[Text]:
    """Return a table; columns that do not fit side by side follow in a table of their own.

    Each row has its task in front where that fits, else tasks are headings.
    """
    beside = sum(_column_width(one) + _GAP for one in (*fixed, *columns))
    whole = max(cell_len(_flat_label(label)) for label in labels)
    flat = _INDENT + whole + beside <= width
    longest = whole if flat else max(cell_len(metric) for _, metric in labels) + _INDENT
    label = longest if flat else min(longest, max(width - _INDENT - beside, _LEAST_LABEL))
    room = width - _INDENT - label - sum(_column_width(one) + _GAP for one in fixed)
    lines = []
    for group in _side_by_side(columns, room):
        shown = [*fixed, *group]
        header = [" " * label, *(pad_text(column[0], _column_width(column)) for column in shown)]
        lines.append(_row(header, style="dim"))
        task = ""
        for number in sorted(range(len(labels)), key=_row_order(labels, flat)):
            if not flat and labels[number][0] not in ("", task):
                task = labels[number][0]
                lines.append(Text(" " * _INDENT + fit_text(task, width - _INDENT)))
            text = _flat_label(labels[number]) if flat else _indented_label(labels[number])
            cells = [pad_text(column[1][number], _column_width(column)) for column in shown]
            lines.append(_row([pad_text(text, label), *cells]))
    return lines


def _flat_label(label: _RowLabel) -> str:
    return " ".join(filter(None, label))


def _indented_label(label: _RowLabel) -> str:
    return f"{' ' * _INDENT if label[0] else ''}{label[1]}"


def _row_order(labels: Sequence[_RowLabel], flat: bool) -> Callable[[int], int]:
    """Sort rows of one task together where tasks are headings, the worst task first."""
    first = {task: place for place, (task, _) in reversed(list(enumerate(labels)))}
    return (lambda number: number) if flat else (lambda number: first[labels[number][0]])


def _row(cells: Sequence[str], style: str = "") -> Text:
    return Text((" " * _INDENT + (" " * _GAP).join(cells)).rstrip(), style=style)


def _side_by_side(columns: Sequence[_CandidateColumn], room: int) -> list[list[_CandidateColumn]]:
    groups: list[list[_CandidateColumn]] = [[]]
    left = room
    for column in columns:
        if groups[-1] and _column_width(column) + _GAP > left:
            groups.append([])
            left = room
        groups[-1].append(column)
        left -= _column_width(column) + _GAP
    return groups


def _column_width(column: _CandidateColumn) -> int:
    return max(map(cell_len, (column[0], *column[1])))


def _next_lines(report: SeveralReport, width: int) -> list[Text]:
    """What to do next about the gravest candidate, and where every run is."""
    lines: list[Text] = []
    gravest = next((one for one in report.reports if one.gate.state == report.state), None)
    if gravest is not None:
        view = build_report_view(gravest)
        step = f"Next, {view.next_step}" + (":" if view.next_command else ".")
        lines += [*wrap_prose(step, width, style="bold"), *command_lines(view.next_command, width)]
    runs = [*report.reports, *(step.report for step in report.steps)]
    folders = [printable(one.run_folder) for one in runs if one.run_folder is not None]
    if folders:
        lines += [Text("More: the same command with -v, or of one run:", style="dim")]
        for folder in folders:
            lines += command_lines(f"evalguard report {shlex.quote(folder)} -v", width)
    return lines


def _text(report: SeveralReport) -> str:
    return render_several(report, width=_WIDTH, color=False, verbose=True) + "\n"


def _json(report: SeveralReport) -> str:
    return json.dumps(several_document(report), indent=2, allow_nan=False) + "\n"


def _markdown(report: SeveralReport) -> str:
    """The verdicts, the table and the steps; every candidate's whole page is in its run folder."""
    rows, known = _rows(report), _labels(report)
    parts = [f"### {inline(several_headline(report), 600)}"]
    for one in report.candidates:
        said = ". ".join(_verdict_texts(one, shared_gate=bool(_gate(report))))
        parts.append(f"- **{inline(_name(one), 200)}**: {inline(said, 1200)}")
    header = ["metric", *(inline(_name(one), 200) for one in report.reports)]
    body = [[full_label(known[k]), *(_cell(one, k) for one in report.reports)] for k in rows]
    parts += (
        [Table(headings=header, rows=body, right=range(1, len(header))).markdown()] if body else []
    )
    if report.steps:
        pairs = _all_steps(report)
        header = ["step", *(inline(_step_name(pair), 200) for pair in pairs)]
        body = [[full_label(known[k]), *(_step_cell(report, p, k) for p in pairs)] for k in rows]
        parts.append(Table(headings=header, rows=body, right=range(1, len(header))).markdown())
    parts += [inline(printable(note), 600) for note in report.notes]
    return join_paragraphs(*parts) + "\n"


def _junit(report: SeveralReport) -> str:
    """All candidates' suites in one file, each named after its candidate."""
    root = ElementTree.Element("testsuites", name=printable(f"candidates of {report.base}"))
    for one in report.candidates:
        if isinstance(one, NoVerdict):
            suite = ElementTree.SubElement(
                root, "testsuite", name=_name(one), tests="1", failures="0", errors="1", skipped="0"
            )
            case = ElementTree.SubElement(
                suite, "testcase", name="verdict", classname=f"evalguard.{_name(one)}"
            )
            ElementTree.SubElement(case, "error", message=printable(one.reason), type="failed")
            continue
        for suite in ElementTree.fromstring(render_junit(build_report_view(one))):
            suite.set("name", f"{_name(one)}: {suite.get('name')}")
            root.append(suite)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _annotations(report: SeveralReport) -> str:
    return "".join(
        annotated(build_report_view(one))
        if isinstance(one, CompareReport)
        else annotation_command("error", f"{_name(one)}: no verdict", printable(one.reason)) + "\n"
        for one in report.candidates
    )


SEVERAL_FORMATS: dict[Format, Callable[[SeveralReport], str]] = {
    "text": _text,
    "json": _json,
    "markdown": _markdown,
    "junit": _junit,
    "annotations": _annotations,
}
