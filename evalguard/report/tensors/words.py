"""Compared tensors in words, for the terminal and the page alike: answer, groups, figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalguard.core.amounts import size_text
from evalguard.core.reports.tensors_report import (
    STATES,
    GreatestDifference,
    InvariantResult,
    Likeness,
    ScaleFaultKind,
    TensorDelta,
    TensorSource,
    TensorsReport,
    TensorState,
)
from evalguard.core.tensors.rows import ROW_FAULTS
from evalguard.core.tensors.structure import Fault
from evalguard.report.trace.hyperparameter_words import difference_text
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count

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
        told = self.likeness.name if self.differs else likeness_text(self.likeness)
        return f"{head}, {verb} like {told}"

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
    more = "elements" if result.holds else "more"
    return f"; {format_count(result.untrained)} {more} are in rows that were never trained"


def answer_text(report: TensorsReport) -> str:
    """Return the answer in a sentence."""
    code = report.exit_code
    pairs = _tensors(len(report.deltas))
    if report.invariants:
        broken = [one for one in report.invariants if not one.holds]
        if not broken:
            names = ", ".join(one.name for one in report.invariants)
            text = f"HOLDS: {names} in {pairs}{''.join(map(untrained_text, report.invariants))}"
        else:
            text = "BROKEN: " + "; ".join(
                f"{one.name}: {format_count(one.violations)} of {format_count(one.elements)} "
                f"elements ({format_share(one.share)})"
                f"{untrained_text(one)}"
                for one in broken
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
    found = report.configuration
    if not found:
        return []
    shown = "; ".join(map(difference_text, found[:_MOST_DIFFERENCES]))
    more = len(found) - _MOST_DIFFERENCES
    rest = f"; and {format_count(more)} more" if more > 0 else ""
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
    for one in report.scale_faults:
        count = len(one.names)
        scales = f"{format_count(count)} scale{'s' if count > 1 else ''}"
        yield (
            f"In the candidate, {scales} of activations or caches: {_SCALE_FAULTS[one.fault]} "
            f"({list_names(one.names, 2)})"
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
        pairs = [f"{name} (= {other})" for name, other in report.tied.items()]
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
    found: dict[str, list[str]] = {}
    for delta in report.deltas:
        like = delta.likeness
        if like is not None and like.rule and not delta.passed:
            names = (f'- base: "{delta.name}"', f'  cand: "{delta.candidate_name}"')
            found.setdefault(like.rule, [*names, *f"  {like.rule}".splitlines()])
    return list(found.values())


def list_names(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(printable(name) for name in names[:most])
    rest = len(names) - most
    return f"{shown} and {rest:,} more" if rest > 0 else shown
