"""A section of a model card in Markdown: a row a candidate, what the empty cells mean, and the
conditions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from evalguard.core.amounts import size_text
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import Figure
from evalguard.core.gate_state import Key
from evalguard.core.markdown_text import inline
from evalguard.core.reports.checkpoint_size import CheckpointSize
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.ladder import LadderRow
from evalguard.core.reports.runs_alike import stops_early
from evalguard.core.reports.several_report import NoVerdict
from evalguard.report.card.conditions_line import conditions_line, task_conditions
from evalguard.report.card.documents_asked import list_tasks, partly_asked_text
from evalguard.report.html.size_plot import PlottedModel, draw_size_plot, size_plot_file
from evalguard.report.markdown_blocks import code_block, foldout, join_paragraphs
from evalguard.report.table import Table
from evalguard.report.view.screen import finding_lines, gate_rule_text, verdict_text
from evalguard.report.words import rounding
from evalguard.report.words.metric_labels import (
    format_percent,
    full_label,
    metric_margin,
    shown_interval,
)
from evalguard.report.words.plain_text import printable
from evalguard.report.words.shown_subtasks import judged_comparisons

_NONE = "–"
_MOST_METRICS = 6
_MOST_FINDINGS = 4
_SAME = 1e-6
_LONGEST_NAME, _LONGEST_SENTENCE = 200, 600
_ESTIMATED = "KL is estimated from a reference file of the base"
_KL_AXIS = "mean KL, nats a token"


@dataclass(slots=True)
class _Notes:
    """What cells refer to by a number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The number of a note, as it stands in a cell; the same text has one."""
        if text not in self.texts:
            self.texts.append(text)
        return f"({self.texts.index(text) + 1})"


def card_section(rows: Sequence[LadderRow], *, plot: str = "") -> str:
    """Return the section; texts of models, tasks and files stay text.

    Args:
        rows: of one base, asked alike, at least one with a verdict.
        plot: name of the picture beside it; "" where there is none.
    """
    reports = [one.outcome for one in rows if isinstance(one.outcome, CompareReport)]
    base, notes = reports[0].base, _Notes()
    keys = list(dict.fromkeys(one.key for each in reports for one in judged_comparisons(each)))
    labels = {one.key: full_label(one) for each in reports for one in each.comparisons}
    shown = keys[:_MOST_METRICS]
    headings = ["model", "size", "bits per weight", "mean KL", "99.9% KL", "same top token"]
    headings += [*(labels[key] for key in shown), "verdict"]
    name = f"{printable(base.name)} (base)"
    cells = [
        [name, *_size_cells(base.size, notes), "", "", "", *_base_cells(reports, shown, notes), ""]
    ]
    cells += [_row(one, shown, notes) for one in rows]
    table = Table(
        headings=[inline(one, _LONGEST_NAME) for one in headings],
        rows=cells,
        right=range(1, len(headings) - 1),
    )
    more = _more_metrics(rows, keys[_MOST_METRICS:], labels, reports, notes)
    listed = [f"{at}. {inline(one, _LONGEST_SENTENCE)}" for at, one in enumerate(notes.texts, 1)]
    tasks = task_conditions(reports[0])
    line = conditions_line(reports)
    return (
        join_paragraphs(
            f"## Evaluation against {inline(printable(base.name), _LONGEST_NAME)}",
            table.markdown(),
            f"![What is lost, by size]({quote(plot)})" if plot else "",
            inline(_legend(reports)),
            "\n".join(listed),
            "\n".join(_verdicts(rows)),
            more,
            code_block([line]),
            foldout("the tasks", code_block(tasks)) if "|tasks:" in line else "",
        )
        + "\n"
    )


def draw_card_plot(rows: Sequence[LadderRow]) -> str:
    """Return an SVG file of KL by size, or of recovery where no KL is known; "" without sizes."""
    reports = [one.outcome for one in rows if isinstance(one.outcome, CompareReport)]
    if not any(_bytes(one) is not None for one in rows):
        return ""
    if any(one.kl.value is not None for one in rows):
        models = [_plotted(one, one.kl.value, one.kl.interval) for one in rows]
        return size_plot_file(draw_size_plot(models, name=_KL_AXIS, better="lower", base=0.0))
    judged = [key for one in reports for key in (c.key for c in judged_comparisons(one))]
    for key in dict.fromkeys(judged):
        found = [(one, _comparison(one, key)) for one in rows]
        models = [_plotted(one, None if c is None else c.recovery, None) for one, c in found]
        if any(one.drawn for one in models):
            label = next(full_label(c) for _, c in found if c is not None)
            axis = f"{label}, % of the base"
            return size_plot_file(draw_size_plot(models, name=axis, better="higher", base=100.0))
    return ""


def _plotted(
    row: LadderRow, value: float | None, interval: tuple[float, float] | None
) -> PlottedModel:
    cells = [row.name, *_size_cells(row.size, _Notes()), f"KL {_figure(row.kl)}", _verdict(row)]
    return PlottedModel(
        name=row.name,
        size=_bytes(row),
        value=value,
        interval=interval,
        row=", ".join(cells),
        state=row.state,
    )


def _bytes(row: LadderRow) -> int | None:
    return None if row.size is None else row.size.bytes


def _row(row: LadderRow, keys: Sequence[Key], notes: _Notes) -> list[str]:
    said = [printable(row.name)]
    one = row.outcome
    if isinstance(one, CompareReport) and stops_early(one):
        said.append(
            notes.mark(
                f"stopped when the verdict was clear, after {partly_asked_text(one)}: its figures "
                "are those of the documents that were asked"
            )
        )
    size = _size_cells(row.size, notes)
    if row.unknown:
        kl = [f"{_NONE} {notes.mark(f'no KL: {printable(row.unknown)}')}"] * 3
    else:
        how = f" {notes.mark(_ESTIMATED)}" if _is_estimated(one) else ""
        tail = _interval_cell(row.kl_tail, notes)
        kl = [_interval_cell(row.kl, notes) + how, tail + how, _share_cell(row.same_top1, notes)]
    metrics = [_metric_cell(row, key, notes) for key in keys]
    return [" ".join(said), *size, *kl, *metrics, _verdict(row)]


def _is_estimated(one: CompareReport | NoVerdict) -> bool:
    known = [] if isinstance(one, NoVerdict) else [d for d in one.distributions if not d.failure]
    return not all(distribution.exact for distribution in known)


def _size_cells(size: CheckpointSize | None, notes: _Notes) -> tuple[str, str]:
    if size is None:
        return (f"{_NONE} {notes.mark('the size is not known: this run did not read it')}",) * 2
    unknown = ""
    if size.bytes is None or size.bits_per_weight is None:
        why = size.reason or "the files do not say it"
        unknown = f"{_NONE} {notes.mark(f'the size is not known: {printable(why)}')}"
    loaded = f" {notes.mark(f'loaded as {printable(size.loaded_as)}')}" if size.loaded_as else ""
    stored = unknown if size.bytes is None else size_text(size.bytes) + loaded
    bits = size.bits_per_weight
    return stored, unknown if bits is None else f"{bits:.2f}"


def _interval_cell(figure: Figure, notes: _Notes) -> str:
    if figure.value is None:
        return f"{_NONE} {notes.mark('no number came out')}"
    if figure.interval is None:
        return f"{_figure(figure)} {notes.mark('without an interval: the run has none')}"
    return _figure(figure)


def _figure(figure: Figure, scale: float = 1.0, unit: str = "") -> str:
    """A value with its interval, with the digits that the interval supports."""
    if figure.value is None:
        return _NONE
    low, high = figure.interval or (math.nan, math.nan)
    half = (high - low) / 4.0 if math.isfinite(high - low) else math.nan
    error = scale * (half if half > 0.0 else figure.stderr or math.nan)
    value, *ends = (
        rounding.round_to_error(scale * one, error) for one in (figure.value, low, high)
    )
    return f"{value}{unit}" if figure.interval is None else f"{value}{unit} [{', '.join(ends)}]"


def _share_cell(figure: Figure, notes: _Notes) -> str:
    if figure.value is None:
        return f"{_NONE} {notes.mark('no number came out')}"
    return _figure(figure, 100.0, "%")


def _comparison(row: LadderRow, key: Key) -> Comparison | None:
    if not isinstance(row.outcome, CompareReport):
        return None
    return next((one for one in row.outcome.comparisons if one.key == key), None)


def _metric_cell(row: LadderRow, key: Key, notes: _Notes) -> str:
    """The value, with recovery and sigma."""
    report, found = row.outcome, _comparison(row, key)
    if not isinstance(report, CompareReport):
        return f"{_NONE} {notes.mark(f'no verdict: {printable(report.reason)}')}"
    if found is None:
        left_out = [one for one in report.not_compared if one.task == key[0]]
        why = next((one.reason for one in left_out if one.metric in ("", key[2])), "not compared")
        return f"{_NONE} {notes.mark(f'{printable(key[0])} {printable(key[2])}: {printable(why)}')}"
    if found.candidate is None or math.isnan(found.candidate):
        return f"{_NONE} {notes.mark(f'{full_label(found)}: {printable(found.reason)}')}"
    value = rounding.round_to_error(found.candidate, found.candidate_stderr)
    interval = shown_interval(found)
    margin = metric_margin(report, found)
    sigma, low, high = rounding.format_sigma_interval(found.sigma, interval, margin=margin)
    if interval is not None:
        sigma += f" [{low}, {high}]"
        if found.confidence != report.gate.confidence:  # of a run that stopped early
            sigma += f" {notes.mark(f'an interval at {format_percent(found.confidence)}')}"
    elif found.sigma is None:
        sigma += f" {notes.mark(f'{full_label(found)}: sigma has no size')}"
    else:
        sigma += f" {notes.mark(f'{full_label(found)}: sigma has no interval')}"
    return f"{value} ({_recovery(found, notes)}, {sigma})"


def _recovery(found: Comparison, notes: _Notes) -> str:
    if found.recovery is not None:
        return f"{found.recovery:.1f}%"
    why = (
        "nobody says which way is better"
        if not found.directed
        else "a ratio to the base's value says nothing"
    )
    return f"{_NONE} {notes.mark(f'{full_label(found)}: no recovery, {why}')}"


def _base_cells(reports: Sequence[CompareReport], keys: Sequence[Key], notes: _Notes) -> list[str]:
    """The base's values, with their standard errors, of the runs that asked all they were to."""
    whole = [one for one in reports if not stops_early(one)] or list(reports)
    return [_base_cell([c for one in whole for c in one.comparisons if c.key == key], notes)
            for key in keys]  # fmt: skip


def _base_cell(found: Sequence[Comparison], notes: _Notes) -> str:
    known = [one for one in found if one.base is not None and not math.isnan(one.base)]
    if not known:
        why = found[0].reason if found else "not compared"
        return f"{_NONE} {notes.mark(f'the base: {printable(why)}')}"
    values = sorted(one.base for one in known if one.base is not None)
    text = rounding.format_with_stderr(known[0].base, known[0].base_stderr)
    if math.isclose(values[0], values[-1], rel_tol=_SAME):
        return text
    ends = " to ".join(rounding.round_to_error(one, known[0].base_stderr) for one in
                       (values[0], values[-1]))  # fmt: skip
    again = f"{full_label(known[0])}: the base was scored more than once, {ends}; each row's "
    return f"{text} {notes.mark(f'{again}recovery and sigma are those of its own run')}"


def _verdict(row: LadderRow) -> str:
    return "no verdict" if row.state == "failed" else row.state


def _more_metrics(
    rows: Sequence[LadderRow],
    keys: Sequence[Key],
    labels: Mapping[Key, str],
    reports: Sequence[CompareReport],
    notes: _Notes,
) -> str:
    """The metrics for which the table has no column, a row each."""
    if not keys:
        return ""
    headings = ["metric", "base", *(inline(printable(one.name), _LONGEST_NAME) for one in rows)]
    base = _base_cells(reports, keys, notes)
    cells = [
        [labels[key], of_base, *(_metric_cell(one, key, notes) for one in rows)]
        for key, of_base in zip(keys, base, strict=True)
    ]
    table = Table(headings=headings, rows=cells, right=range(1, len(headings)))
    return foldout(f"{len(keys)} more metrics", table.markdown())


def _legend(reports: Sequence[CompareReport]) -> str:
    """What the columns hold, how much was asked, and the gate's rule where all have the same."""
    confidence = format_percent(reports[0].gate.confidence)
    texts = [
        f"KL(base || model) in nats a token, with {confidence} intervals{_of_tasks(reports)}",
        "metrics as value (recovery, sigma): recovery is what is kept of the base's value, above "
        "100% is better; sigma is the drift in standard errors of the base, above 0 is worse, "
        f"with its paired {confidence} interval",
        "sizes as stored",
    ]
    rules = {gate_rule_text(one) for one in reports}
    if len(rules) == 1:
        texts.append(f"gate: {rules.pop()}")
    part = next((one for one in map(partly_asked_text, _whole(reports)) if one), "")
    if part:
        texts.append(f"not all documents were asked: {part}")
    shots = sorted({one.num_fewshot for each in reports for one in list_tasks(each)
                    if one.num_fewshot})  # fmt: skip
    if shots:
        seeds = {one.fewshot_seed for each in reports for one in list_tasks(each)} - {None}
        drawn = f", drawn with seed {', '.join(map(str, sorted(filter(None, seeds))))}"
        texts.append(f"few-shot examples: {', '.join(map(str, shots))}{drawn if seeds else ''}")
    return f"{'. '.join(text[0].upper() + text[1:] for text in texts)}."


def _of_tasks(reports: Sequence[CompareReport]) -> str:
    """What the columns of KL are over, where there are several tasks."""
    tasks = {one.task for each in reports for one in each.distributions if not one.failure}
    if len(tasks) < 2:
        return ""
    return f", over the tokens of all {len(tasks)} tasks (99.9%: of the task where it is largest)"


def _whole(reports: Sequence[CompareReport]) -> Iterator[CompareReport]:
    return (one for one in reports if not stops_early(one))


def _verdicts(rows: Sequence[LadderRow]) -> Iterator[str]:
    """Why a row did not pass, and what every reader has to see of any."""
    reports = [one.outcome for one in rows if isinstance(one.outcome, CompareReport)]
    shared = len({gate_rule_text(one) for one in reports}) == 1
    for row in rows:
        one = row.outcome
        if not isinstance(one, CompareReport):
            said = [f"no verdict: {printable(one.reason)}"]
        else:
            said = [verdict_text(one)] if row.state != "passed" else []
            said += [f"gate: {gate_rule_text(one)}"] if not shared else []
            said += [f"{full} is accepted by a waiver" for full in _accepted(one)]
            findings = finding_lines(one)
            said += findings[:_MOST_FINDINGS]
            more = len(findings) - _MOST_FINDINGS
            said += [f"and {more} more findings in its report"] if more > 0 else []
        name = inline(printable(row.name), _LONGEST_NAME)
        yield from (f"- **{name}**: {inline(text, _LONGEST_SENTENCE)}" for text in said)


def _accepted(report: CompareReport) -> Iterator[str]:
    for one in report.gate.accepted:
        yield printable(f"{one.key[0]} {one.key[2]}")
