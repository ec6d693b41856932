"""Several candidates in one report: a row for each, the steps of a chain, and its formats."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from markupsafe import Markup
from rich.text import Text

import evalguard
from evalguard import tools
from evalguard.core.compare_report import CompareReport
from evalguard.core.findings import without_quotes
from evalguard.core.gate_state import GateState
from evalguard.core.option_words import Format
from evalguard.page.html_page import html_page
from evalguard.page.safe_text import (
    ELLIPSIS,
    fit_text,
    inline,
    printable,
    wrap_keeping_intervals,
    wrap_text,
)
from evalguard.page.terminal import (
    NARROWEST,
    command_lines,
    join_paragraphs,
    next_lines,
    render_page,
    wrap_prose,
)
from evalguard.report.compare_document import compare_document as comparison_document
from evalguard.report.compare_terminal import render_terminal as render_one
from evalguard.report.compare_view import build_report_view
from evalguard.report.first_screen import cause_line
from evalguard.report.meaning import publish_step
from evalguard.report.metric_labels import STATE_STYLE
from evalguard.report.record_documents import write_record
from evalguard.several.ladder import dash_reasons, ladder_legend, ladder_table, metric_tables
from evalguard.several.several_report import (
    SCHEMA,
    KlSplit,
    NoVerdict,
    SeveralReport,
    Step,
    state_of,
)
from evalguard.several.several_words import (
    candidate_name,
    grouped_findings,
    several_answer,
    several_headline,
    several_rule,
    shared_gate_rule,
    split_texts,
    step_name,
    steps_table,
    verdict_texts,
)
from evalguard.several.size_plot import draw_kl_plot, draw_recovery_plot


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTexts:
    """A candidate's verdict and cause, and the folder of its own page."""

    name: str
    state: GateState
    texts: tuple[str, ...]
    folder: str


def render_ladder_page(report: SeveralReport) -> str:
    """Return the page."""
    return html_page(
        "several/ladder.html",
        headline=several_answer(report),
        rule=several_rule(report),
        state=report.state,
        table=ladder_table(report, joined=True),
        legend=ladder_legend(report),
        plots=_plots(report),
        splits=split_texts(report),
        steps=steps_table(report) if report.steps else None,
        base=printable(report.base),
        candidates=[_texts(report, outcome) for outcome in report.candidates],
        notes=grouped_findings(report),
        remarks=[printable(note) for note in report.notes],
        version=evalguard.__version__,
    )


def _texts(report: SeveralReport, one: CompareReport | NoVerdict) -> CandidateTexts:
    folder = "" if isinstance(one, NoVerdict) else printable(one.run_folder or "")
    return CandidateTexts(
        name=candidate_name(one),
        state=state_of(one),
        texts=tuple(verdict_texts(one, shared_gate=bool(shared_gate_rule(report)))),
        folder=folder,
    )


def _plots(report: SeveralReport) -> list[tuple[Markup, str]]:
    """KL by size, and recovery of the metric that drifts most; each with what it shows."""
    recovery, label = draw_recovery_plot(report)
    plots = [
        (draw_kl_plot(report), "Mean KL"),
        (recovery, f"Recovery of {label}; the dashed line is the base"),
    ]
    return [(plot, caption) for plot, caption in plots if plot]


_WIDTH = 80
_SCREEN = 24
# What the first screen has room for.
_MOST_VERDICTS, _MOST_NOTES, _MOST_SPLITS, _MOST_STEPS, _MOST_NAMES = 3, 3, 3, 4, 3
_LEAST_ROWS, _MOST_LEGEND = 6, 3
_CARD = "evalguard card"
_NOT = {True: "that does not pass", False: "that do not pass"}
_GRAVEST: tuple[GateState, ...] = ("regressed", "failed", "undecided", "passed")


def render_several(report: SeveralReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    With ``verbose`` a table of each metric, and every candidate's own report with everything it has
    to say, follow.
    """
    width = max(width, NARROWEST)
    blocks = [
        _head(report, width),
        _ladder(report, width),
        [*_splits(report, width, verbose=verbose), *_steps(report, width, verbose=verbose)],
        _verdicts(report, width, verbose=verbose),
        *([table.lines(width) for table in metric_tables(report)] if verbose else []),
        _next_lines(report, width),
    ]
    if not verbose and _height(blocks) > _SCREEN:
        blocks[-1] = _next_lines(report, width, with_card=False)
    if not verbose and _height(blocks) > _SCREEN:
        blocks = _folded(report, width)
    text = render_page(blocks, width, color=color)
    if verbose:
        wholes = [*report.reports, *(step.report for step in report.steps)]
        text = "\n\n\n".join(
            [
                text,
                *(
                    render_one(compared, width=width, color=color, verbose=True)
                    for compared in wholes
                ),
            ]
        )
    return text


def _height(blocks: Sequence[Sequence[Text]]) -> int:
    """Lines of a page with these blocks, a blank line between them."""
    return sum(len(block) + 1 for block in blocks if block) - 1


def _folded(report: SeveralReport, width: int) -> list[list[Text]]:
    """The first screen of more than fits it: beside the table what is gravest, a line each, notes
    as far as they fit whole, and how much else there is. A table that is too long itself shows the
    gravest rows."""
    head = _head(report, width, most=_MOST_NAMES)
    after = _next_lines(report, width, folded=True, with_card=False)
    legend = _short_legend(report, width)
    # beside the table: its headings, blank lines, a line of what is gravest and one of what is left
    room = _SCREEN - _height([head, legend, after]) - 4
    table = [*_gravest_rows(report, width, max(room, _LEAST_ROWS)), *legend]
    room = max(_SCREEN - _height([head, table, after]) - 2, 1)  # a blank line, and what is left
    verdicts, short_notes = _short_verdicts(report), _short_notes(report)
    lines, unsaid, notes = (
        [line for verdict in verdicts for line in _whole(*verdict, width)],
        0,
        len(short_notes),
    )
    if len(lines) > room:  # a line for each, which says that it goes on
        lines = [Text(_one_line(name, text, width)) for name, text in verdicts[:room]]
        unsaid = len(verdicts) - len(lines)
    for note in short_notes:
        whole = _whole(*note, width)
        if len(lines) + len(whole) > room:
            break
        lines += whole
        notes -= 1
    counts = [f"{unsaid} more {_NOT[unsaid == 1]}"] if unsaid else []
    counts += [f"{notes} note{'' if notes == 1 else 's'}"] if notes else []
    steps = len(report.steps)
    counts += [f"{steps} step{'' if steps == 1 else 's'}"] if steps else []
    lines += wrap_prose(f"and {', '.join(counts)} (-v)", width) if counts else []
    return [head, table, lines, after]


def _whole(name: str, text: str, width: int) -> list[Text]:
    return [Text(line) for line in wrap_keeping_intervals(text, width, first=name, rest="  ")]


def _short_legend(report: SeveralReport, width: int) -> list[Text]:
    texts = " ".join(f"{text}." for text in ladder_legend(report, width))
    lines = wrap_prose(texts, width, style="dim")
    if len(lines) > _MOST_LEGEND:
        lines = lines[:_MOST_LEGEND]
        end = f" {ELLIPSIS} (-v)"
        lines[-1] = Text(fit_text(lines[-1].plain, width - len(end)) + end, style="dim")
    return lines


def _gravest_rows(report: SeveralReport, width: int, room: int) -> list[Text]:
    """The table in so many lines below its headings: of more, the base and the gravest candidates
    in the order of all, and how many more there are."""
    headings, base, *rows = ladder_table(report).lines(width)
    if len(rows) < room:
        return [headings, base, *rows]
    states = [state_of(outcome) for outcome in report.candidates]
    ranked = sorted(range(len(rows)), key=lambda index: _GRAVEST.index(states[index]))
    shown, hidden = sorted(ranked[: room - 2]), ranked[room - 2 :]
    passed = sum(states[index] == "passed" for index in hidden)
    held = len(hidden) - passed
    counts = [f"{held} more {_NOT[held == 1]}"] if held else []
    counts += [f"{passed}{'' if counts else ' more'} that passed"] if passed else []
    summary = wrap_prose(f"and {', '.join(counts)} (-v)", width)
    return [headings, base, *(rows[index] for index in shown), *summary]


def _short_verdicts(report: SeveralReport) -> list[tuple[str, str]]:
    """Each verdict that is no pass: the one that decided, those without a number, and the others by
    how grave they are."""
    shared = bool(shared_gate_rule(report))
    held = [outcome for outcome in report.candidates if state_of(outcome) != "passed"]
    held.sort(key=lambda outcome: _GRAVEST.index(state_of(outcome)))
    first, rest = held[:1], held[1:]
    rest.sort(key=lambda outcome: not isinstance(outcome, NoVerdict))
    texts = [(outcome, verdict_texts(outcome, shared_gate=shared)) for outcome in (*first, *rest)]
    return [(f"{candidate_name(outcome)}  ", sentences[0]) for outcome, sentences in texts]


def _short_notes(report: SeveralReport) -> list[tuple[str, str]]:
    """What else there is to say, causes and what the engine does before all."""
    causes = [
        (compared, cause_line(compared))
        for compared in report.reports
        if state_of(compared) != "passed"
    ]
    of_steps = [cause_line(step.report, step_name(step.names)) for step in report.steps]
    return [
        *(("", text) for text in of_steps if text),
        *((f"{candidate_name(compared)}  ", text) for compared, text in causes if text),
        *(("", text) for text in split_texts(report, most=_MOST_SPLITS)),
        *(("", f"{text}.") for text in dash_reasons(report)),
        *((f"Note ({names}): ", text) for names, text in grouped_findings(report)),
        *(("", printable(note)) for note in report.notes),
    ]


def _one_line(name: str, text: str, width: int) -> str:
    """A text on one line, which says that it goes on."""
    whole = wrap_keeping_intervals(text, width, first=name)
    if len(whole) == 1:
        return whole[0]
    return f"{wrap_keeping_intervals(text, width - 2, first=name)[0]} {ELLIPSIS}"


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
            comparison_document(outcome)
            if isinstance(outcome, CompareReport)
            else {"candidate": outcome.name, "error": outcome.reason, "hint": outcome.hint}
            for outcome in report.candidates
        ],
        "steps": [_step_document(step) for step in report.steps],
        "kl_splits": [_split_document(split) for split in report.kl_splits],
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
                "task": drift.task,
                "filter": drift.filter,
                "metric": drift.metric,
                "sigma": drift.sigma,
                "sigma_interval": None if drift.interval is None else list(drift.interval),
                "p_value": drift.p_value,
                "n_used": drift.n,
            }
            for drift in step.drifts
        ],
        "comparison": comparison_document(step.report),
    }


def _split_document(split: KlSplit) -> dict[str, object]:
    return {
        "candidate": split.candidate,
        "parts": [
            {
                "base": part.step[0],
                "candidate": part.step[1],
                "kind": part.kind,
                "kl": write_record(part.kl),
                "share": write_record(part.share),
            }
            for part in split.parts
        ],
    }


def _head(report: SeveralReport, width: int, *, most: int | None = None) -> list[Text]:
    headline = several_headline(report, most=most)
    lines = [Text(line, style="bold") for line in wrap_text(headline, width)]
    lines[0].stylize(STATE_STYLE[report.state], 0, len(report.state) + 1)
    return lines


def _ladder(report: SeveralReport, width: int) -> list[Text]:
    if not report.candidates:
        return []
    lines = ladder_table(report).lines(width)
    texts = [f"{text}." for text in ladder_legend(report)]
    return [*lines, *(line for text in texts for line in wrap_prose(text, width, style="dim"))]


def _verdicts(report: SeveralReport, width: int, *, verbose: bool) -> list[Text]:
    """The verdicts that are no pass with their causes, and what every reader must see beside."""
    shared = bool(shared_gate_rule(report))
    held = [outcome for outcome in report.candidates if verbose or state_of(outcome) != "passed"]
    held.sort(key=lambda outcome: _GRAVEST.index(state_of(outcome)))
    most = len(held) if verbose else _MOST_VERDICTS
    known = [outcome for outcome in held if isinstance(outcome, NoVerdict)]  # nothing else says why
    shown = [
        *known,
        *[outcome for outcome in held if outcome not in known][: max(most - len(known), 0)],
    ]
    lines: list[Text] = []
    for outcome in shown:
        first, *rest = verdict_texts(outcome, shared_gate=shared)
        head = f"{candidate_name(outcome)}  "
        for line in wrap_keeping_intervals(first, width, first=head, rest="  "):
            lines.append(Text(line))
        for text in rest:
            lines += [Text(line) for line in wrap_text(text, width, first="  ", rest="  ")]
    hidden = len(held) - len(shown)
    if hidden:
        lines += wrap_prose(f"and {hidden} more {_NOT[hidden == 1]} (-v)", width)
    notes = grouped_findings(report)
    few = notes if verbose else notes[:_MOST_NOTES]
    for names, text in few:
        lines += [Text(line) for line in wrap_text(f"Note ({names}): {text}", width, rest="  ")]
    if len(notes) > len(few):
        notes_left = len(notes) - len(few)
        lines += wrap_prose(
            f"and {notes_left} more note{'' if notes_left == 1 else 's'} (-v)", width
        )
    return lines


def _splits(report: SeveralReport, width: int, *, verbose: bool) -> list[Text]:
    return [
        Text(line)
        for text in split_texts(report, most=None if verbose else _MOST_SPLITS)
        for line in wrap_keeping_intervals(text, width, first="", rest="  ")
    ]


def _steps(report: SeveralReport, width: int, *, verbose: bool) -> list[Text]:
    """What each step adds to the drift of the metrics that drift most, and its cause."""
    lines: list[Text] = []
    if report.steps:
        table = steps_table(report)
        if verbose or len(table.rows) <= _MOST_STEPS:
            heading = f"Steps, in standard errors of {printable(report.base)}:"
            lines += [Text(line, style="bold") for line in wrap_text(heading, width)]
            lines += table.lines(width)
        else:
            lines += wrap_prose(f"{len(table.rows)} steps, each with its drift: -v", width)
        for step in report.steps:
            cause = cause_line(step.report, step_name(step.names))
            lines += [Text(line) for line in wrap_text(cause, width, rest="  ")] if cause else []
    for note in report.notes:
        lines += wrap_prose(printable(note), width)
    return lines


def _next_lines(
    report: SeveralReport, width: int, *, folded: bool = False, with_card: bool = True
) -> list[Text]:
    """What to do next about the gravest candidate, what makes a card of all, and where runs are.

    Args:
        with_card: whether the command for the card may take its lines.
    """
    gravest = next(
        (compared for compared in report.reports if compared.gate.state == report.state), None
    )
    shown = gravest or next(iter(report.reports), None)
    lines: list[Text] = []
    command, names_card = "", False
    if gravest is not None:
        view = build_report_view(gravest)
        step, command = view.next_step, view.next_command
        if (step, command) == publish_step(gravest):  # a card of one; that of all stands below
            step, command = "nothing to do", ""
        if with_card and report.state == "passed" and not command:
            card = _card_step(report)
            names_card = card is not None
            step, command = card or (step, command)
        lines += next_lines(step, command, width)
    if shown is None or shown.run_folder is None:
        return lines
    text = "More: the same command with -v"
    if not names_card:
        text += f". A card of all runs: `{_CARD} RUN...`"
    lines += wrap_prose(text, width, style="dim")
    if not folded:
        lines += wrap_prose("One run, each in its folder:", width, style="dim")
        folder = shlex.quote(printable(shown.run_folder))
        lines += command_lines(f"evalguard report {folder} -v", width)
    return lines


def _card_step(report: SeveralReport) -> tuple[str, str] | None:
    """What publishes a ladder that passed; None where nothing in it is quantised, or a run is not
    kept."""
    folders = [compared.run_folder for compared in report.reports]
    if not any(map(publish_step, report.reports)) or None in folders:
        return None
    named = " ".join(shlex.quote(printable(str(folder))) for folder in folders)
    return "to publish them with these figures", f"{_CARD} {named}"


def _text(report: SeveralReport) -> str:
    return render_several(report, width=_WIDTH, color=False, verbose=True) + "\n"


def _json(report: SeveralReport) -> str:
    return json.dumps(several_document(report), indent=2, allow_nan=False) + "\n"


def _markdown(report: SeveralReport) -> str:
    """The table, the steps and the verdicts; every candidate's whole page is in its run folder."""
    report = without_quotes(report)
    table = ladder_table(report, joined=True)
    table = replace(table, headings=[inline(heading, 200) for heading in table.headings])
    parts = [f"### {inline(several_headline(report), 600)}", table.markdown()]
    parts.append(" ".join(f"{inline(text, 600)}." for text in ladder_legend(report)))
    parts += [f"**{inline(text, 600)}**" for text in split_texts(report)]
    if report.steps:
        steps = steps_table(report)
        steps = replace(steps, headings=[inline(heading, 200) for heading in steps.headings])
        parts += [f"Steps, in standard errors of {inline(printable(report.base), 200)}:"]
        parts += [steps.markdown()]
    for outcome in report.candidates:
        sentences = ". ".join(verdict_texts(outcome, shared_gate=bool(shared_gate_rule(report))))
        parts.append(f"- **{inline(candidate_name(outcome), 200)}**: {inline(sentences, 1200)}")
    notes = [
        f"- {inline(names, 300)}: {inline(text, 900)}" for names, text in grouped_findings(report)
    ]
    parts += ["Notes:", "\n".join(notes)] if notes else []
    parts += [inline(printable(note), 600) for note in report.notes]
    return join_paragraphs(*parts) + "\n"


def _junit(report: SeveralReport) -> str:
    """All candidates' suites in one file, each named after its candidate."""
    report = without_quotes(report)
    root = ElementTree.Element("testsuites", name=printable(f"candidates of {report.base}"))
    for outcome in report.candidates:
        if isinstance(outcome, NoVerdict):
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=candidate_name(outcome),
                tests="1",
                failures="0",
                errors="1",
                skipped="0",
            )
            case = ElementTree.SubElement(
                suite, "testcase", name="verdict", classname=f"evalguard.{candidate_name(outcome)}"
            )
            ElementTree.SubElement(case, "error", message=printable(outcome.reason), type="failed")
            continue
        for suite in ElementTree.fromstring(
            tools.fetch("render_junit")(build_report_view(outcome))
        ):
            suite.set("name", f"{candidate_name(outcome)}: {suite.get('name')}")
            root.append(suite)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _annotations(report: SeveralReport) -> str:
    report = without_quotes(report)
    return "".join(
        tools.fetch("render_annotations")(build_report_view(outcome))
        if isinstance(outcome, CompareReport)
        else tools.fetch("annotation_command")(
            "error", f"{candidate_name(outcome)}: no verdict", printable(outcome.reason)
        )
        + "\n"
        for outcome in report.candidates
    )


def _html(report: SeveralReport) -> str:

    return render_ladder_page(report)


SEVERAL_FORMATS: dict[Format, Callable[[SeveralReport], str]] = {
    "text": _text,
    "json": _json,
    "markdown": _markdown,
    "html": _html,
    "junit": _junit,
    "annotations": _annotations,
}
