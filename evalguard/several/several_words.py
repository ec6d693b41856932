"""What is said of several candidates of one base, and the steps between them, in every format."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.compare_report import CompareReport
from evalguard.core.distribution_comparison import Figure
from evalguard.core.gate_state import Key
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.page.table import Table
from evalguard.report.first_screen import cause_line, finding_lines, gate_rule_text, verdict_text
from evalguard.report.metric_labels import drift_cells, full_label
from evalguard.several.ladder import ranked_metrics
from evalguard.several.several_report import NoVerdict, SeveralReport, Step, StepDrift, state_of

_LEAST_LABEL = 12


def several_headline(report: SeveralReport, *, most: int | None = None) -> str:
    """Say the answer, the gate where all candidates have the same, and the exit code."""
    return f"{several_answer(report, most=most)}; {several_rule(report)}"


def several_rule(report: SeveralReport) -> str:
    """Say the gate where all candidates have the same, and the exit code."""
    gate = shared_gate_rule(report)
    return f"{gate}; exit code {report.exit_code}" if gate else f"exit code {report.exit_code}"


def several_answer(report: SeveralReport, *, most: int | None = None) -> str:
    """Say the gravest state, and whose it is.

    Args:
        most: more names than these are counted.
    """
    names = [
        candidate_name(candidate)
        for candidate in report.candidates
        if state_of(candidate) == report.state
    ]
    total = len(report.candidates)
    of = f"{', '.join(names)} ({len(names)} of {total} candidates)"
    if most is not None and len(names) > most:
        of = f"{len(names)} of {total} candidates"
    who = f"all {total} candidates" if len(names) == total else of
    return f"{report.state.upper()}: {who} against {printable(report.base)}"


def shared_gate_rule(report: SeveralReport) -> str:
    """The gate's rule, where it is the same for all; else "", and each line says its own."""
    rules = {gate_rule_text(compared) for compared in report.reports}
    return rules.pop() if len(rules) == 1 else ""


def candidate_name(one: CompareReport | NoVerdict) -> str:
    """Return a candidate's name, printable."""
    return printable(one.name if isinstance(one, NoVerdict) else one.candidate.name)


def verdict_texts(one: CompareReport | NoVerdict, *, shared_gate: bool) -> list[str]:
    """The verdict and its cause, a text each."""
    if isinstance(one, NoVerdict):
        hint = f" ({printable(one.hint)})" if one.hint else ""
        return [f"FAILED: no verdict: {printable(one.reason)}{hint}"]
    gate = "" if shared_gate else f"; {gate_rule_text(one)}"
    return [f"{verdict_text(one)}{gate}", *filter(None, [cause_line(one)])]


def grouped_findings(report: SeveralReport) -> list[tuple[str, str]]:
    """What every reader must see, with the candidates that it is said of."""
    findings: dict[str, list[str]] = {}
    for compared in report.reports:
        for text in finding_lines(compared):
            findings.setdefault(text, []).append(candidate_name(compared))
    every = len(report.reports)
    return [
        ("all" if len(names) == every > 1 else ", ".join(names), text)
        for text, names in findings.items()
    ]


def split_texts(report: SeveralReport, *, most: int | None = None) -> list[str]:
    """Say what share of the candidates' KL is the engine, else what comes with each step.

    Args:
        most: of more candidates, those of the largest and the smallest share stand for all.
    """
    of_engine: dict[str, list[tuple[str, Figure]]] = {}
    texts = []
    for split in report.kl_splits:
        name, kinds = printable(split.candidate), [part.kind for part in split.parts]
        if kinds.count("engine") == 1 and "" not in kinds:
            engine = split.parts[kinds.index("engine")]
            of_engine.setdefault(step_name(engine.step), []).append((name, engine.share))
            continue
        shares = [f"{_share(part.share)} with {step_name(part.step)}" for part in split.parts]
        texts.append(f"Of the KL of {name} comes {', '.join(shares)}.")
    return [
        f"Of the KL, the engine ({step}) is {_share_list(shares, most)}; the rest is the "
        "quantisation."
        for step, shares in of_engine.items()
    ] + texts


def _share_list(shares: Sequence[tuple[str, Figure]], most: int | None) -> str:
    if most is None or len(shares) <= most:
        return ", ".join(f"{_share(share)} at {name}" for name, share in shares)
    ordered = sorted(shares, key=lambda named: named[1].value or 0.0)
    (lowest, least), (highest, largest) = ordered[0], ordered[-1]
    between = len(shares) - 2
    return f"{_share(largest)} at {highest} to {_share(least)} at {lowest} ({between} between)"


def _share(share: Figure) -> str:
    value, low, high = (
        None if fraction is None else 100.0 * fraction
        for fraction in (share.value, *(share.interval or (None, None)))
    )
    stderr = None if share.stderr is None else 1000.0 * share.stderr  # its first digit
    text = f"{rounding.round_to_error(value, stderr)}%"
    if low is None or high is None:
        return text
    ends = ", ".join(rounding.round_to_error(end, stderr) for end in (low, high))
    return f"{text} [{ends}]"


def steps_table(report: SeveralReport) -> Table:
    """Return what each step adds to the drift of every metric; the last columns leave first."""
    keys = [key for key in ranked_metrics(report) if any(_drift(s, key) for s in report.steps)]
    labels = {
        c.key: full_label(c) for compared in reversed(report.reports) for c in compared.comparisons
    }
    return Table(
        headings=["step", *(labels[key] for key in keys)],
        rows=[
            [step_name(pair), *(_step_cell(report, pair, key) for key in keys)]
            for pair in _all_steps(report)
        ],
        giving_way=0,
        least=_LEAST_LABEL,
    )


def _all_steps(report: SeveralReport) -> list[tuple[str, str]]:
    """Every step on the way to a candidate, once, from the base on."""
    chained = {name for step in report.steps for name in step.names}
    paths = [report.path(compared.candidate.name) for compared in report.reports]
    return list(dict.fromkeys(pair for path in paths for pair in path if pair[1] in chained))


def step_name(pair: tuple[str, str]) -> str:
    """Return a step as "before -> after"."""
    return printable(f"{pair[0]} -> {pair[1]}")


def _step_cell(report: SeveralReport, pair: tuple[str, str], key: Key) -> str:
    """Sigma of a step with its interval; of one from the base that of its own comparison."""
    step = next((step for step in report.steps if step.names == pair), None)
    if step is not None:
        drift = _drift(step, key)
        return "-" if drift is None else _sigma(drift.sigma, drift.interval, 0.0)
    first = next(compared for compared in report.reports if compared.candidate.name == pair[1])
    comparison = next((judged for judged in first.comparisons if judged.key == key), None)
    if comparison is None:
        return "-"
    value, low, high = drift_cells(first, comparison)
    return f"{value} [{low}, {high}]" if low and comparison.sigma_interval is not None else value


def _sigma(sigma: float | None, interval: tuple[float, float] | None, margin: float) -> str:
    value, low, high = rounding.format_sigma_interval(sigma, interval, margin=margin)
    return f"{value} [{low}, {high}]" if interval is not None else value


def _drift(step: Step, key: Key) -> StepDrift | None:
    return next((drift for drift in step.drifts if drift.key == key), None)
