"""A section of a model card, metadata and a badge, of finished runs; no model is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evalguard.comparison.stored_run import TRACE_FILE, rebuild_report
from evalguard.core.checksum import checksum_fault
from evalguard.core.compare_report import CheckpointSize, CompareReport
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import Figure
from evalguard.core.findings import without_quotes
from evalguard.core.gate_state import Key
from evalguard.errors import StoreError, UsageError
from evalguard.page import rounding
from evalguard.page.safe_text import inline, printable
from evalguard.page.table import Table
from evalguard.page.terminal import code_block, foldout, join_paragraphs
from evalguard.report.compare_document import COMPARE_SCHEMA
from evalguard.report.distribution_texts import share_text
from evalguard.report.metric_labels import (
    drift_cells,
    format_percent,
    full_label,
    has_no_sigma,
    shown_interval,
)
from evalguard.several.badge import draw_badge
from evalguard.several.card_conditions import (
    conditions_line,
    find_run_differences,
    list_tasks,
    partly_asked_text,
    stops_early,
    task_conditions,
)
from evalguard.several.ladder import (
    LadderRow,
    bits_cell,
    kl_cell,
    kl_interval_cell,
    ladder_rows,
    ranked_metrics,
    recovery_cell,
    size_cell,
    tail_cell,
    tail_interval_cell,
)
from evalguard.several.model_index import render_model_index
from evalguard.several.several_report import SCHEMA as SEVERAL_SCHEMA
from evalguard.several.several_report import NoVerdict, SeveralReport, state_of
from evalguard.several.several_words import (
    candidate_name,
    grouped_findings,
    shared_gate_rule,
    verdict_texts,
)
from evalguard.several.size_plot import draw_kl_plot, draw_recovery_plot, size_plot_file
from evalguard.store.atomic_files import check_output, safe_name, write_output
from evalguard.store.run_folder import NIGHT_RESULT, holds_result, read_document

_NONE = "–"
_MOST_METRICS = 6
_MOST_FINDINGS = 8
_SAME = 1e-6  # relative: rounding of a base that was scored twice
# That a quantised model has another dtype, and that a loss has no single document.
_OF_COURSE = frozenset({"sides_differ", "loss_is_spread"})
_LONGEST_NAME, _LONGEST_SENTENCE = 200, 600
_ESTIMATED = "estimated from a reference file of the base"


@dataclass(slots=True)
class _Notes:
    """What cells refer to by a number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The number of a note, as it stands in a cell; the same text has one."""
        if text not in self.texts:
            self.texts.append(text)
        return f"({self.texts.index(text) + 1})"


def card_section(report: SeveralReport, *, plot: str = "") -> str:
    """Return the section; texts of models, tasks and files stay text.

    Args:
        report: candidates that were asked alike, at least one with a verdict.
        plot: name of the picture beside it; "" where there is none.
    """
    reports, notes = report.reports, _Notes()
    rows, keys = ladder_rows(report.candidates), ranked_metrics(report)
    labels = {
        comparison.key: full_label(comparison)
        for each in reports
        for comparison in each.comparisons
    }
    shown = keys[:_MOST_METRICS]
    headings = ["model", "size", "bits per weight", "mean KL", "99.9% KL", "same top token"]
    headings += [*(labels[key] for key in shown), "verdict"]
    name = f"{printable(report.base)} (base)"
    size = _size_cells(reports[0].base.size, notes)
    cells = [[name, *size, "", "", "", *_base_cells(reports, shown, notes), ""]]
    mixed = len({_is_estimated(row.outcome) for row in rows if not row.unknown}) > 1
    cells += [_row(row, shown, notes, mixed=mixed) for row in rows]
    table = Table(
        headings=[inline(heading, _LONGEST_NAME) for heading in headings],
        rows=cells,
        right=range(1, len(headings) - 1),
    )
    folded = _more_metrics(rows, keys[_MOST_METRICS:], labels, reports, notes)
    listed = [f"{at}. {inline(note, _LONGEST_SENTENCE)}" for at, note in enumerate(notes.texts, 1)]
    line = conditions_line(reports)
    tasks = foldout("the tasks", code_block(task_conditions(reports[0])))
    paragraphs = join_paragraphs(
        f"## Evaluation against {inline(printable(report.base), _LONGEST_NAME)}",
        table.markdown(),
        f"![What is lost, by size]({quote(plot)})" if plot else "",
        inline(_legend(report)),
        "\n".join(listed),
        "\n".join(_verdicts(report)),
        folded,
        code_block([line]),
        tasks if "|tasks:" in line else "",
    )
    return f"{paragraphs}\n"


def draw_card_plot(report: SeveralReport) -> str:
    """Return an SVG file of KL by size, or of recovery where no KL is known; "" without sizes."""
    return size_plot_file(draw_kl_plot(report) or draw_recovery_plot(report)[0])


def _row(row: LadderRow, keys: Sequence[Key], notes: _Notes, *, mixed: bool) -> list[str]:
    """Cells of a candidate; ``mixed``: KL of some candidates is estimated, and of some exact."""
    name_parts = [printable(row.name)]
    run = row.outcome
    if isinstance(run, CompareReport) and stops_early(run):
        name_parts.append(
            notes.mark(
                f"stopped when the verdict was clear, after {partly_asked_text(run)}: its figures "
                "are those of the documents that were asked"
            )
        )
    size = _size_cells(row.size, notes)
    if row.unknown:
        kl = [f"{_NONE} {notes.mark(f'no KL: {printable(row.unknown)}')}"] * 3
    else:
        how = f" {notes.mark(f'KL is {_ESTIMATED}')}" if mixed and _is_estimated(run) else ""
        mean, tail, top = row.kl, row.kl_tail, row.same_top1
        kl = [
            _figure_cell(mean, kl_cell(mean), kl_interval_cell(mean), notes) + how,
            _figure_cell(tail, tail_cell(tail), tail_interval_cell(tail), notes) + how,
            _figure_cell(top, share_text(top), _share_interval(top), notes),
        ]
    metrics = [_metric_cell(row, key, notes) for key in keys]
    return [" ".join(name_parts), *size, *kl, *metrics, _verdict(row)]


def _is_estimated(one: CompareReport | NoVerdict) -> bool:
    known = [] if isinstance(one, NoVerdict) else [d for d in one.distributions if not d.failure]
    return not all(distribution.exact for distribution in known)


def _size_cells(size: CheckpointSize | None, notes: _Notes) -> tuple[str, str]:
    if size is None:
        return (f"{_NONE} {notes.mark('the size is not known: this run did not read it')}",) * 2
    unknown = ""
    if size.shown_bytes is None or size.bits_per_weight is None:
        why = size.reason or "the files do not say it"
        unknown = f"{_NONE} {notes.mark(f'the size is not known: {printable(why)}')}"
    where = "" if size.loaded_bytes is None else "in memory, "
    words = f"{where}loaded as {printable(size.loaded_as)}"
    loaded = f" {notes.mark(words)}" if size.loaded_as else ""
    stored = replace(size, loaded_as="")  # the note says what is loaded
    return (
        unknown if size.shown_bytes is None else size_cell(stored) + loaded,
        unknown if size.bits_per_weight is None else bits_cell(stored) + loaded,
    )


def _figure_cell(figure: Figure, value: str, interval: str, notes: _Notes) -> str:
    if figure.value is None:
        return f"{_NONE} {notes.mark('no number came out')}"
    return f"{value} {interval or notes.mark('without an interval: the run has none')}"


def _share_interval(figure: Figure) -> str:
    if figure.interval is None:
        return ""
    error = None if figure.stderr is None else 100.0 * figure.stderr
    low, high = (rounding.round_to_error(100.0 * end, error) for end in figure.interval)
    return f"[{low}, {high}]"


def _comparison(row: LadderRow, key: Key) -> Comparison | None:
    if not isinstance(row.outcome, CompareReport):
        return None
    return next(
        (comparison for comparison in row.outcome.comparisons if comparison.key == key), None
    )


def _metric_cell(row: LadderRow, key: Key, notes: _Notes) -> str:
    """The value, with recovery and sigma."""
    report, comparison = row.outcome, _comparison(row, key)
    if not isinstance(report, CompareReport):
        return f"{_NONE} {notes.mark(f'no verdict: {printable(report.reason)}')}"
    if comparison is None:
        left_out = [skipped for skipped in report.not_compared if skipped.task == key[0]]
        why = next(
            (skipped.reason for skipped in left_out if skipped.metric in ("", key[2])),
            "not compared",
        )
        return f"{_NONE} {notes.mark(f'{printable(key[0])} {printable(key[2])}: {printable(why)}')}"
    if comparison.candidate is None or math.isnan(comparison.candidate):
        return f"{_NONE} {notes.mark(f'{full_label(comparison)}: {printable(comparison.reason)}')}"
    value = rounding.round_to_error(comparison.candidate, comparison.candidate_stderr)
    interval = shown_interval(comparison)
    sigma, low, high = drift_cells(report, comparison)
    if interval is not None and low:
        sigma += f" [{low}, {high}]"
        if comparison.confidence != report.gate.confidence:  # of a run that stopped early
            sigma += f" {notes.mark(f'an interval at {format_percent(comparison.confidence)}')}"
    elif comparison.sigma is None or has_no_sigma(comparison):
        sigma += f" {notes.mark(f'{full_label(comparison)}: sigma has no size')}"
    else:
        sigma += f" {notes.mark(f'{full_label(comparison)}: sigma has no interval')}"
    return f"{value} ({_recovery(comparison, notes)}, {sigma})"


def _recovery(found: Comparison, notes: _Notes) -> str:
    if found.recovery is not None:
        return recovery_cell(found)
    why = (
        "nobody says which way is better"
        if not found.directed
        else "a ratio to the base's value says nothing"
    )
    return f"{_NONE} {notes.mark(f'{full_label(found)}: no recovery, {why}')}"


def _base_cells(reports: Sequence[CompareReport], keys: Sequence[Key], notes: _Notes) -> list[str]:
    """The base's values, with their standard errors, of the runs that asked all they were to."""
    whole = [compared for compared in reports if not stops_early(compared)] or list(reports)
    return [_base_cell([c for run in whole for c in run.comparisons if c.key == key], notes)
            for key in keys]  # fmt: skip


def _base_cell(found: Sequence[Comparison], notes: _Notes) -> str:
    known = [
        comparison
        for comparison in found
        if comparison.base is not None and not math.isnan(comparison.base)
    ]
    if not known:
        why = found[0].reason if found else "not compared"
        return f"{_NONE} {notes.mark(f'the base: {printable(why)}')}"
    values = sorted(comparison.base for comparison in known if comparison.base is not None)
    text = rounding.format_with_stderr(known[0].base, known[0].base_stderr)
    if math.isclose(values[0], values[-1], rel_tol=_SAME):
        return text
    ends = " to ".join(rounding.round_to_error(value, known[0].base_stderr) for value in
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
    headings = ["metric", "base", *(inline(printable(row.name), _LONGEST_NAME) for row in rows)]
    base = _base_cells(reports, keys, notes)
    cells = [
        [labels[key], of_base, *(_metric_cell(row, key, notes) for row in rows)]
        for key, of_base in zip(keys, base, strict=True)
    ]
    table = Table(headings=headings, rows=cells, right=range(1, len(headings)))
    return foldout(f"{len(keys)} more metrics", table.markdown())


def _legend(report: SeveralReport) -> str:
    """What the columns hold, how much was asked, and the gate's rule where all have the same."""
    reports = report.reports
    confidence = format_percent(reports[0].gate.confidence)
    known = [row for row in ladder_rows(report.candidates) if not row.unknown]
    how = f", {_ESTIMATED}" if known and all(_is_estimated(row.outcome) for row in known) else ""
    texts = [
        f"KL(base || model) in nats a token{how}, with {confidence} intervals{_of_tasks(reports)}",
        "metrics as value (recovery, sigma): recovery is what is kept of the base's value, above "
        "100% is better; sigma is the drift in standard errors of the base, above 0 is worse, "
        f"with its paired {confidence} interval",
        "sizes as stored",
    ]
    rule = shared_gate_rule(report)
    texts += [f"gate: {rule}"] if rule else []
    part = next((text for text in map(partly_asked_text, _whole(reports)) if text), "")
    texts += [f"not all documents were asked: {part}"] if part else []
    tasks = [task for each in reports for task in list_tasks(each)]
    shots = sorted({task.num_fewshot for task in tasks if task.num_fewshot})
    if shots:
        seeds = sorted({task.fewshot_seed for task in tasks if task.fewshot_seed is not None})
        drawn = f", drawn with seed {', '.join(map(str, seeds))}" if seeds else ""
        texts.append(f"few-shot examples: {', '.join(map(str, shots))}{drawn}")
    return f"{'. '.join(text[0].upper() + text[1:] for text in texts)}."


def _of_tasks(reports: Sequence[CompareReport]) -> str:
    """What the columns of KL are over, where there are several tasks."""
    tasks = {
        distribution.task
        for each in reports
        for distribution in each.distributions
        if not distribution.failure
    }
    if len(tasks) < 2:
        return ""
    return f", over the tokens of all {len(tasks)} tasks (99.9%: of the task where it is largest)"


def _whole(reports: Sequence[CompareReport]) -> Iterator[CompareReport]:
    return (compared for compared in reports if not stops_early(compared))


def _verdicts(report: SeveralReport) -> Iterator[str]:
    """Why a row did not pass, and what every reader has to see of any."""
    shared = bool(shared_gate_rule(report))
    verdicts: list[tuple[str, str]] = []
    for outcome in report.candidates:
        name = candidate_name(outcome)
        if state_of(outcome) != "passed" or not shared:
            verdicts += [(name, text) for text in verdict_texts(outcome, shared_gate=shared)]
        if isinstance(outcome, CompareReport):
            waived = [" ".join(filter(None, each.key[::2])) for each in outcome.gate.accepted]
            verdicts += [(name, f"{printable(each)} is accepted by a waiver") for each in waived]
    findings = [*_findings(report, of_course=False), *_findings(report, of_course=True)]
    verdicts += findings[:_MOST_FINDINGS]
    for name, text in verdicts:
        yield f"- **{inline(name, _LONGEST_NAME)}**: {inline(text, _LONGEST_SENTENCE)}"
    if len(findings) > _MOST_FINDINGS:
        yield f"- and {len(findings) - _MOST_FINDINGS} more findings, in the reports of the runs"


def _findings(report: SeveralReport, *, of_course: bool) -> list[tuple[str, str]]:
    """The findings that go without saying in a ladder, or all others, which stand first."""
    candidates = [
        replace(
            outcome,
            findings=tuple(f for f in outcome.findings if (f.kind in _OF_COURSE) == of_course),
        )
        if isinstance(outcome, CompareReport)
        else outcome
        for outcome in report.candidates
    ]
    return grouped_findings(replace(report, candidates=tuple(candidates)))


_HINT = (
    "give run folders of `evalguard compare`, or the FILE.json that it wrote with -o for several "
    "candidates"
)
_MOST_SAID = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Candidates of one base that were asked alike, ready to be published.

    ``notes``: which runs were left out, a line each.
    """

    report: SeveralReport
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Return the section, without a picture: that is a file beside one."""
        return card_section(self.report)

    def write(self, paths: Sequence[Path]) -> tuple[Path, ...]:
        """Write files, each in the form that its name says, and return their paths.

        A .md file has a picture beside it; metadata and badges are one of each candidate.

        Raises:
            UsageError: before any is written: a name says no form, or two files have one name.
            StoreError: one cannot be written.
        """
        texts: dict[Path, str] = {}
        for path in dict.fromkeys(paths):
            for file, text in self._texts(path).items():
                if file in texts:
                    raise UsageError(
                        f"-o {file}: another file of this card has this name",
                        hint="give one of them another name",
                    )
                texts[file] = text
        for path in texts:
            check_output(path)
        for path, text in texts.items():
            write_output(path, text)
        return tuple(texts)

    def _texts(self, path: Path) -> dict[Path, str]:
        """The files that a name asks for."""
        suffix = path.suffix.lower()
        if suffix == ".md":
            plot = draw_card_plot(self.report)
            picture = path.with_name(f"{path.stem}-size.svg")
            if not plot:
                return {path: card_section(self.report)}
            return {path: card_section(self.report, plot=picture.name), picture: plot}
        one_of: Mapping[str, Callable[[CompareReport], str]] = {
            ".svg": draw_badge, ".yaml": render_model_index, ".yml": render_model_index,
        }  # fmt: skip
        if suffix not in one_of:
            raise UsageError(
                f"{path}: the suffix {suffix!r} says no form"
                if suffix
                else f"{path} has no suffix",
                hint="FILE.md is a section of a model card, FILE.yaml its model-index, FILE.svg a "
                "badge",
            )
        render = one_of[suffix]
        reports = self.report.reports
        if len(self.report.candidates) == 1:
            return {path: render(reports[0])}
        named = [
            (f"{path.stem}-{safe_name(candidate_name(compared))}", compared) for compared in reports
        ]
        return {
            path.with_name(f"{name}{path.suffix}"): render(compared) for name, compared in named
        }


def read_model_card(paths: Sequence[Path]) -> ModelCard:
    """Read finished runs, in the order given; of a candidate that was compared again the last.

    Args:
        paths: run folders of ``compare``, their result.json, or JSON of several candidates. A
            folder of traces or nights, which lie beside them, is left out, with a note.

    Raises:
        UsageError: one is none of these; no candidate has a verdict; or two do not fit into one
            table: another base, other tasks or documents, two candidates of one name.
        StoreError: one is damaged.
    """
    beside = [path for path in paths if _is_of_another_command(path.expanduser())]
    runs = [path for path in paths if path not in beside]
    read = [(path, outcome) for path in runs for outcome in _read_outcomes(path.expanduser())]
    outcomes, notes = _without_earlier(read)
    notes += tuple(printable(f"{path} is left out: it holds no comparison") for path in beside)
    reports = [(path, outcome) for path, outcome in outcomes if isinstance(outcome, CompareReport)]
    if not reports:
        raise UsageError("no candidate of these runs has a verdict", hint=_HINT)
    (first, of_first), *rest = reports
    for path, compared in rest:
        differing = list(find_run_differences(of_first, compared))
        if differing:
            unsaid = len(differing) - _MOST_SAID
            differences = "; ".join(map(printable, differing[:_MOST_SAID]))
            raise UsageError(
                f"{path} and {first} do not belong into one table: {differences}"
                + (f"; and {unsaid} more" if unsaid > 0 else ""),
                hint="compare all candidates with one base, and one command line",
            )
    _check_candidates(outcomes)
    candidates = tuple(without_quotes(outcome) for _, outcome in outcomes)  # a card is published
    report = SeveralReport(base=of_first.base.name, candidates=candidates)
    return ModelCard(report=report, notes=notes)


def _is_of_another_command(path: Path) -> bool:
    """Whether a folder is that of a trace alone, or one of nights: what ``reports/*`` holds too."""
    nights = (NIGHT_RESULT, f"*/{NIGHT_RESULT}")
    traced = any(next(path.glob(pattern), None) is not None for pattern in (TRACE_FILE, *nights))
    return path.is_dir() and not holds_result(path) and traced


_Outcome = tuple[Path, CompareReport | NoVerdict]


def _without_earlier(read: Sequence[_Outcome]) -> tuple[list[_Outcome], tuple[str, ...]]:
    """Return the last run of each candidate, in the order given, and which were left out.

    Runs are of one candidate where base, name and place are the same, whatever is there by now.
    """
    latest: dict[tuple[str, ...], str] = {}
    for _, outcome in read:
        if isinstance(outcome, CompareReport):
            key = _candidate_key(outcome)
            latest[key] = max(outcome.created, latest.get(key, ""))
    earlier = [
        (path, outcome)
        for path, outcome in read
        if isinstance(outcome, CompareReport) and outcome.created < latest[_candidate_key(outcome)]
    ]
    notes = (
        f"{path} is left out: {candidate_name(outcome)} was compared again, at "
        f"{latest[_candidate_key(outcome)]}"
        for path, outcome in earlier
    )
    return [pair for pair in read if pair not in earlier], tuple(map(printable, notes))


def _candidate_key(one: CompareReport) -> tuple[str, ...]:
    candidate = one.candidate
    return one.base.name, candidate.name, candidate.folder, candidate.model


def _read_outcomes(path: Path) -> list[CompareReport | NoVerdict]:
    document = read_document(path, schemas=(COMPARE_SCHEMA, SEVERAL_SCHEMA), hint=_HINT)
    if document["schema"] == COMPARE_SCHEMA:
        return [rebuild_report(path, document)]
    candidates = document.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        raise StoreError(f"{path} is damaged: candidates is no list of them", hint=_HINT)
    return [_read_candidate(path, number, candidate) for number, candidate in enumerate(candidates)]


def _read_candidate(path: Path, number: int, told: Any) -> CompareReport | NoVerdict:
    where = f"{path}: candidates[{number}]"
    if not isinstance(told, Mapping):
        raise StoreError(f"{where} is damaged: it is no object", hint=_HINT)
    if "error" in told:
        texts = [told.get(key, "") for key in ("candidate", "error", "hint")]
        if not all(isinstance(text, str) for text in texts):
            raise StoreError(f"{where} is damaged: its error is no text", hint=_HINT)
        name, reason, hint = texts
        return NoVerdict(name=name, reason=reason, hint=hint)
    fault = checksum_fault(told)
    if fault:
        raise StoreError(
            f"{where} is not as evalguard wrote it: {fault}",
            hint="take the file from where it was made, or compare again; do not edit it",
        )
    return rebuild_report(path, told)


def _check_candidates(found: Sequence[tuple[Path, CompareReport | NoVerdict]]) -> None:
    """Refuse two rows that nobody could tell apart."""
    names: dict[str, Path] = {}
    for path, outcome in found:
        name = candidate_name(outcome)
        if name in names:
            raise UsageError(
                f"{names[name]} and {path} both are of a candidate that is called {name}",
                hint="leave one out, or name them in a guard file and compare again",
            )
        names[name] = path
