"""``evalguard tensors`` for people: words, terminal, page, and the files that are written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from evalguard.core.amounts import size_text
from evalguard.core.tensor_structure import Fault, Likeness
from evalguard.errors import StoreError, UsageError
from evalguard.page.html_page import html_page
from evalguard.page.rounding import format_count
from evalguard.page.safe_text import fit_text, printable, wrap_text
from evalguard.page.terminal import NARROWEST, prose_width, render_page, wrap_prose
from evalguard.report.hyperparameter_texts import difference_text
from evalguard.store.atomic_files import check_output, write_output
from evalguard.tensors.damaged_rows import ROW_FAULTS
from evalguard.tensors.tensors_report import (
    STATES,
    GreatestDifference,
    InvariantResult,
    ScaleFaultKind,
    SideCounts,
    TensorDelta,
    TensorSource,
    TensorsReport,
    TensorState,
    tensors_document,
)
from evalguard.tensors.tolerances import TOLERANCES


def render_tolerances(*, width: int, color: bool) -> str:
    """Return the table of tolerances with its reasons."""
    width = max(width, NARROWEST)
    lines: list[Text] = []
    for row in TOLERANCES:
        where = " ".join(part for part in (row.platform, row.operation) if part)
        limit = (
            f"rtol {row.rtol:g}, atol {row.atol:g}" if row.snr is None else f"SNR {row.snr:g} dB"
        )
        lines.append(Text(f"{row.dtype}{', ' if where else ''}{where}: {limit}", style="bold"))
        lines += [
            Text(line) for line in wrap_text(row.reason, prose_width(width), first="  ", rest="  ")
        ]
    return render_page([lines], width, color=color)


_MOST_DIFFERENCES = 4
STATE_WORDS: dict[TensorState, str] = {
    "unreadable": "unreadable",
    "shape": "of another shape",
    "beyond": "beyond tolerance",
    "rotated": "in another basis",
    "rescaled": "rescaled by channel",
    "within": "within tolerance",
    "equal": "equal in another dtype or layout",
    "identical": "bit-identical",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaGroup:
    """Tensors of one state whose differences look alike, the worst first."""

    state: TensorState
    likeness: Likeness | None
    deltas: tuple[TensorDelta, ...]

    @property
    def words(self) -> str:
        """What they are, as a heading."""
        count = len(self.deltas)
        head = f"{_tensors(count)} {STATE_WORDS[self.state]}"
        if self.likeness is None:
            unknown = self.state == "beyond"
            return f"{head}, like nothing known" if unknown else head
        verb = "looks" if count == 1 else "look"
        description = self.likeness.name if self.differs else likeness_text(self.likeness)
        return f"{head}, {verb} like {description}"

    @property
    def differs(self) -> bool:
        """Whether one thing was done to other rows in each tensor."""
        return len({delta.likeness and delta.likeness.detail for delta in self.deltas}) > 1


def _tensors(count: int) -> str:
    return f"{format_count(count)} tensor{'s' if count != 1 else ''}"


def likeness_text(likeness: Likeness | None) -> str:
    """Return a likeness for people; "" for none."""
    return "" if likeness is None else printable(likeness.words)


def untrained_text(result: InvariantResult) -> str:
    """Say how much an invariant leaves out; "" for nothing."""
    if not result.untrained:
        return ""
    noun = "elements" if result.holds else "more"
    return f"; {format_count(result.untrained)} {noun} are in rows that were never trained"


def answer_text(report: TensorsReport) -> str:
    """Return the answer in a sentence."""
    code = report.exit_code
    pairs = _tensors(len(report.deltas))
    if report.invariants:
        broken = [result for result in report.invariants if not result.holds]
        if not broken:
            names = ", ".join(result.name for result in report.invariants)
            text = f"HOLDS: {names} in {pairs}{''.join(map(untrained_text, report.invariants))}"
        else:
            text = "BROKEN: " + "; ".join(
                f"{check.name}: {format_count(check.violations)} of {format_count(check.elements)} "
                f"elements ({format_share(check.share)})"
                f"{untrained_text(check)}"
                for check in broken
            )
    elif report.passed and not report.count("unreadable"):
        same = report.count("identical") == len(report.deltas)
        text = f"{'IDENTICAL' if same else 'EQUAL within tolerance'}: {_counts_text(report)}"
    elif report.passed or not report.differs:
        text = f"NOT KNOWN: {_counts_text(report)}"
    else:
        text = f"DIFFERENT: {_counts_text(report)}"
    return f"{text}; exit code {code}"


def _counts_text(report: TensorsReport) -> str:
    """Return "6 of 20 tensors beyond tolerance, 1 of another shape"."""
    total = len(report.deltas)
    counts = {state: count for state in STATES if (count := report.count(state))}
    parts = [f"{format_count(count)} {STATE_WORDS[state]}" for state, count in counts.items()]
    state, count = next(iter(counts.items()))
    whole = f"{format_count(count)} of"
    if count == total:
        whole = "all" if total > 1 else "the"
    parts[0] = f"{whole} {_tensors(total)} {STATE_WORDS[state]}"
    if report.missing and all(delta.passed for delta in report.deltas):
        # what makes them differ comes first
        parts[0] = f"{whole} {_tensors(total)} of both {STATE_WORDS[state]}"
        return ", ".join([f"{_tensors(len(report.missing))} missing on one side", *parts])
    if report.missing:
        parts.insert(1, f"{format_count(len(report.missing))} missing on one side")
    return ", ".join(parts)


def configuration_lines(report: TensorsReport) -> list[str]:
    """Say where the configurations differ, which no tensor shows; [] where they do not."""
    differences = report.configuration
    if not differences:
        return []
    shown = "; ".join(map(difference_text, differences[:_MOST_DIFFERENCES]))
    hidden = len(differences) - _MOST_DIFFERENCES
    rest = f"; and {format_count(hidden)} more" if hidden > 0 else ""
    return [f"Note: the configurations differ, which no tensor shows: {shown}{rest}"]


_SCALE_FAULTS: dict[ScaleFaultKind, str] = {
    "missing": "missing, and its config asks for them",
    "not finite": "NaN or infinite",
    "negative": "negative",
    "zero": "zero",
    "never calibrated": "all exactly 1.0: never calibrated",
}


def scale_lines(report: TensorsReport) -> Iterator[str]:
    """Yield what is wrong with the candidate's scales that the base has not."""
    for fault in report.scale_faults:
        count = len(fault.names)
        scales = f"{format_count(count)} scale{'s' if count > 1 else ''}"
        yield (
            f"In the candidate, {scales} of activations or caches: {_SCALE_FAULTS[fault.fault]} "
            f"({list_names(fault.names, 2)})"
        )


# What is said of these is of one tensor alone: rows, places, shares.
_OF_ONE: tuple[Fault, ...] = (*ROW_FAULTS, "swapped", "shifted", "pruned", "not finite")


def group_deltas(report: TensorsReport) -> list[DeltaGroup]:
    """Return all pairs in groups, the gravest first; identical ones are one group."""
    groups: dict[tuple[object, ...], list[TensorDelta]] = {}
    for delta in report.deltas:
        like = delta.likeness
        # a factor is 1.02 here and 1.01 there
        words = "" if like is None else f"{like.kind} {like.name}"
        if like is not None and like.fault not in _OF_ONE:
            words += f" {like.detail}"
        groups.setdefault((delta.state, words), []).append(delta)
    made = [
        DeltaGroup(
            state=rest[0].state,
            likeness=rest[0].likeness,
            deltas=tuple(sorted(rest, key=_gravity, reverse=True)),
        )
        for rest in groups.values()
    ]
    return sorted(made, key=_group_order)


def _group_order(group: DeltaGroup) -> tuple[int, int, float]:
    kinds = {"structure": 0, None: 1, "precision": 2}
    kind = group.likeness.kind if group.likeness else None
    return STATES.index(group.state), kinds[kind], -_gravity(group.deltas[0])


def _gravity(delta: TensorDelta) -> float:
    return delta.relative_l2 or 0.0


def figures_text(delta: TensorDelta, *, with_detail: bool = False) -> str:
    """Return a pair's figures in the terms of assert_close; first what was done to its rows."""
    if delta.fault:
        return printable(delta.fault)
    if delta.state == "identical":
        return f"{delta.base.dtype} {list(delta.base.shape)}"
    parts = []
    if with_detail and delta.likeness is not None and delta.likeness.detail:
        parts.append(printable(delta.likeness.detail))
    if delta.beyond_format and not delta.passed:
        parts.append(
            f"{format_count(delta.beyond_format)} elements in "
            f"{format_count(delta.beyond_blocks)} blocks of 32 are beyond the greatest error of "
            f"{delta.tolerance.dtype}"
        )
    if delta.mismatched and delta.tolerance.snr is None:
        parts.append(
            f"mismatched {format_count(delta.mismatched)} of {format_count(delta.elements)} "
            f"({format_share(delta.mismatched_share)})"
        )
    absolute = delta.mismatched_absolute or delta.greatest_absolute
    relative = delta.mismatched_relative or delta.greatest_relative
    if absolute is not None:
        parts.append(f"greatest absolute {greatest_text(absolute)}{_allowed(delta, 'atol')}")
    if relative is not None:
        parts.append(f"greatest relative {greatest_text(relative)}{_allowed(delta, 'rtol')}")
    if delta.snr is not None:
        least = delta.tolerance.snr
        allowed = "" if least is None else f" (at least {least:g} allowed)"
        parts.append(f"SNR {delta.snr:.1f} dB{allowed}")
    if delta.sign_disagreements:
        parts.append(f"{format_count(delta.sign_disagreements)} signs disagree")
    if delta.zero_on_one_side:
        parts.append(f"{format_count(delta.zero_on_one_side)} zero on one side")
    if delta.layout:
        parts.append(delta.layout)
    return ", ".join(parts) or f"{delta.base.dtype} and {delta.candidate.dtype}"


def _allowed(delta: TensorDelta, name: str) -> str:
    if delta.tolerance.snr is not None:
        return ""
    return f" (up to {getattr(delta.tolerance, name):g} allowed)"


def greatest_text(found: GreatestDifference) -> str:
    """Return "0.00057 at (3, 4)"."""
    index = ", ".join(map(str, found.index))
    return f"{found.value:.3g} at ({index}{',' if len(found.index) == 1 else ''})"


def format_share(share: float) -> str:
    """Return a share in percent that is 0% and 100% only where it is."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share < 5e-5:
        return f"{100 * share:.1e}%"
    return "over 99.99%" if share > 0.99995 else f"{share:.2%}"


def source_text(source: TensorSource) -> str:
    """Return one line about a side."""
    count = len(source.files)
    files = f", {count} files" if count > 1 else ""
    model = f", {source.architecture}" if source.architecture else ""
    return printable(
        f"{source.name} ({source.kind}{files}{model}, {source.tensors:,} tensors, "
        f"{size_text(source.nbytes)})"
    )


def missing_lines(report: TensorsReport, most: int) -> Iterator[str]:
    """Yield what is on one side only."""
    for side, names in (("base", report.base_only), ("candidate", report.candidate_only)):
        missing = [name for name in names if name not in report.tied]
        if missing:
            yield f"Only in the {side}: {list_names(missing, most)}"
    if report.tied:
        pairs = [f"{name} (= {partner})" for name, partner in report.tied.items()]
        listed = list_names(pairs, most)
        yield f"Stored on one side only, and equal to another tensor there: {listed}"


def duplicate_lines(report: TensorsReport, most: int) -> Iterator[str]:
    """Yield groups of tensors that are the same."""
    for group in report.duplicates[:most]:
        yield f"The same tensor in the {group.side}: {list_names(group.names, 4)}"
    if len(report.duplicates) > most:
        yield f"and {len(report.duplicates) - most} more groups of equal tensors"


def list_repairs(report: TensorsReport) -> list[list[str]]:
    """Return rules of a name map that would undo faults of layout, one of each kind, in YAML."""
    repairs: dict[str, list[str]] = {}
    for delta in report.deltas:
        like = delta.likeness
        if like is not None and like.rule and not delta.passed:
            names = (f'- base: "{delta.name}"', f'  cand: "{delta.candidate_name}"')
            repairs.setdefault(like.rule, [*names, *f"  {like.rule}".splitlines()])
    return list(repairs.values())


def list_names(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(printable(name) for name in names[:most])
    rest = len(names) - most
    return f"{shown} and {rest:,} more" if rest > 0 else shown


# States in the words of a gate, whose colours the page has.
_TONES: dict[TensorState, str] = {
    "unreadable": "failed", "shape": "regressed", "beyond": "regressed",
    "rotated": "failed", "rescaled": "failed", "within": "unchanged",
    "equal": "unchanged", "identical": "unchanged",
}  # fmt: skip
_COLUMNS = (
    "Tensor", "State", "Looks like", "Mismatched", "Greatest absolute", "Greatest relative",
    "SNR dB", "Relative L2", "Signs disagree", "Zeros base", "Zeros candidate", "NaN, inf",
    "Dtypes", "Shape",
)  # fmt: skip
_TEXT_COLUMNS = frozenset({"Tensor", "State", "Looks like", "Dtypes", "Shape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCell:
    """A cell: its text, and what it is sorted by."""

    text: str
    key: str


def render_tensors_page(report: TensorsReport) -> str:
    """Return the page."""
    tone = {0: "passed", 3: "failed"}.get(report.exit_code, "regressed")
    return html_page(
        "tensors/tensors.html",
        scripts=("sortable.js",),
        answer=printable(answer_text(report)),
        tone=tone,
        groups=[
            (group.words, list_names([delta.name for delta in group.deltas], 3))
            for group in group_deltas(report)
        ],
        columns=[(name, name not in _TEXT_COLUMNS) for name in _COLUMNS],
        rows=[
            (_TONES[delta.state], printable(delta.name), list(_cells(delta)))
            for group in group_deltas(report)
            for delta in group.deltas
        ],
        invariants=[
            (result.name, result.words, format_count(result.violations), format_share(result.share))
            for result in report.invariants
        ],
        lines=[
            *scale_lines(report),
            *configuration_lines(report),
            *missing_lines(report, 200),
            *duplicate_lines(report, 200),
            *(f"Caveat: {printable(caveat)}" for caveat in report.caveats),
        ],
        rules=[printable(line) for repair in list_repairs(report) for line in repair],
        facts=[
            ("Base", source_text(report.base)),
            ("Candidate", source_text(report.candidate)),
            ("Command", printable(report.command) or "from Python"),
            ("Made", report.created),
        ],
        version=report.version,
    )


def _cells(delta: TensorDelta) -> Iterator[PageCell]:
    absolute = delta.mismatched_absolute or delta.greatest_absolute
    relative = delta.mismatched_relative or delta.greatest_relative
    yield PageCell(text=STATE_WORDS[delta.state], key=str(STATES.index(delta.state)))
    yield _text_cell(likeness_text(delta.likeness) or printable(delta.fault))
    if delta.state in ("unreadable", "shape"):  # nothing was counted
        yield from (_number_cell(None, "") for _ in range(9))
        yield from _dtype_cells(delta)
        return
    mismatched = f"{format_count(delta.mismatched)} ({format_share(delta.mismatched_share)})"
    yield _number_cell(delta.mismatched_share, mismatched)
    yield _greatest_cell(absolute)
    yield _greatest_cell(relative)
    yield _number_cell(delta.snr, "" if delta.snr is None else f"{delta.snr:.1f}")
    l2 = delta.relative_l2
    yield _number_cell(l2, "" if l2 is None else f"{l2:.2g}")
    yield _number_cell(delta.sign_disagreements, format_count(delta.sign_disagreements))
    for side in (delta.base, delta.candidate):
        share = side.zeros / delta.elements if delta.elements else 0.0
        yield _number_cell(share, format_share(share))
    yield _number_cell(_broken(delta.base) + _broken(delta.candidate), _broken_text(delta))
    yield from _dtype_cells(delta)


def _dtype_cells(delta: TensorDelta) -> Iterator[PageCell]:
    for kind in ("dtype", "shape"):
        both = dict.fromkeys(str(getattr(side, kind)) for side in (delta.base, delta.candidate))
        yield _text_cell(", ".join(both))


def _broken(side: SideCounts) -> int:
    return side.nans + side.infs


def _broken_text(delta: TensorDelta) -> str:
    sides = [_broken(delta.base), _broken(delta.candidate)]
    return " / ".join(map(format_count, sides)) if any(sides) else "0"


def _greatest_cell(found: GreatestDifference | None) -> PageCell:
    return (
        _number_cell(0.0, "0") if found is None else _number_cell(found.value, greatest_text(found))
    )


def _number_cell(value: float | None, text: str) -> PageCell:
    if value is None or math.isnan(value):
        return PageCell(text=text, key="")
    return PageCell(text=text, key=repr(float(value)).replace("inf", "Infinity"))


def _text_cell(text: str) -> PageCell:
    return PageCell(text=text, key=text)


_MOST_GROUPS, _MOST_RULES, _MOST_NAMES = 6, 2, 4


def render_tensors(report: TensorsReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    The answer, what the differences look like with the worst tensor of each kind, and what is
    missing; with ``verbose`` every tensor that is not identical. No name can act on the terminal.
    """
    width = max(width, NARROWEST)
    groups = [group for group in group_deltas(report) if group.state != "identical"]
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
        _wrapped([f"Caveat: {printable(caveat)}" for caveat in report.caveats], width),
    ]
    if not verbose and groups:
        hidden = len(groups) - most
        suffix = (
            f"; {hidden} more kind{'s' if hidden > 1 else ''} of difference" if hidden > 0 else ""
        )
        blocks.append(wrap_prose(f"Every tensor: -v, --json, or -o FILE.html{suffix}", width))
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
    for result in report.invariants:
        lines += wrap_prose(
            f"{result.name}: {result.words}. Broken by {format_count(result.violations)} of "
            f"{format_count(result.elements)} elements ({format_share(result.share)})"
            f"{untrained_text(result)}.",
            width,
        )
        worst = sorted(result.tensors, key=lambda each: -each.violations)
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
    return [
        *lines,
        *(Text(f"  {printable(line)}", style="cyan") for rule in shown for line in rule),
    ]


def _wrapped(texts: object, width: int, rest: str = "  ") -> list[Text]:
    listed: Sequence[str] = list(texts)  # type: ignore[call-overload]
    return [
        Text(line) for text in listed for line in wrap_text(text, prose_width(width), rest=rest)
    ]


_SUFFIXES = {".html": "html", ".htm": "html", ".json": "json", ".txt": "txt"}


def check_outputs(paths: Sequence[Path]) -> None:
    """Refuse files that cannot be written, or whose form is not known, before anything is read.

    Raises:
        UsageError: one of them.
    """
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"-o {path}: the form is not known by its suffix", hint="use .html, .json or .txt"
            )
        check_output(path)


def write_outputs(report: TensorsReport, paths: Sequence[Path]) -> tuple[str, ...]:
    """Write the report to files; return what could not be written."""
    problems = []
    for path in paths:
        try:
            form = _SUFFIXES[path.suffix.lower()]
            write_output(path, render_report(report, form, verbose=True) + "\n")
        except StoreError as error:
            problems.append(str(error))
    return tuple(problems)


def render_report(
    report: TensorsReport, form: str, *, width: int = 80, color: bool = False, verbose: bool = False
) -> str:
    """Return a report as "html", "json" or "txt"."""
    if form == "html":
        return render_tensors_page(report)
    if form == "json":
        return json.dumps(tensors_document(report), indent=2, allow_nan=False)
    return render_tensors(report, width=width, color=color, verbose=verbose)


def render_tolerance_table(*, width: int, color: bool) -> str:
    """Return the table of tolerances with its reasons."""
    return render_tolerances(width=width, color=color)
