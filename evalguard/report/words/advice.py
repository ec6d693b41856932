"""What to do next, and what an undecided metric lacks: every view says it in these words."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from evalguard.core.comparison import Comparison
from evalguard.core.figure_names import is_figure
from evalguard.core.reports.compare_report import CompareReport, RunIdentity
from evalguard.core.reports.findings import Finding, FindingValue
from evalguard.core.verdict import Margin
from evalguard.report.words import rounding
from evalguard.report.words.metric_labels import margin_text
from evalguard.report.words.plain_text import printable

SCORE_MORE = "score more documents: a higher --limit, or a larger task"
ASK_MORE = "ask more: a higher --limit, more requests, or a larger task"


def undecided_text(comparison: Comparison) -> str:
    """Say which kind of undecided it is, and which drift such a run would have shown."""
    lacks = comparison.undecided
    if lacks is None:
        return "undecided"
    kind = {
        "above_margin": "above the margin, chance not excluded",
        "too_few_documents": "too few documents to exclude a drift above the margin",
    }[lacks.kind]
    shown = _detectable_text(comparison)
    return f"{kind}; such a run fails {shown} or more in 80% of cases" if shown else kind


def differing_answers(report: CompareReport, comparison: Comparison) -> Finding | None:
    """The finding that answers to a figure's task are not all the base's; None of any other."""
    of_figure = is_figure(comparison.filter, comparison.metric)
    return next((f for f in other_answers(report) if of_figure and f.task == comparison.task), None)


def other_answers(report: CompareReport) -> list[Finding]:
    """The findings that answers are not all the base's, with their numbers; one a task."""
    found = [one for one in report.findings if one.kind == "answers_differ"]
    return [f for f in found if all(isinstance(f.values.get(name), int) for name in _COUNTED)]


_COUNTED = ("documents", "same", "calling", "same_calls")


def same_answers_text(finding: Finding) -> str:
    """How many answers a finding counts as the base's, and calls, where tools are called."""
    told = finding.values
    calls = f"{told['same_calls']:,} of {told['calling']:,} calls and " if told["calling"] else ""
    return f"{calls}{told['same']:,} of {told['documents']:,} answers are the base's"


def hold_answers_step(finding: Finding) -> str:
    """The option that holds a finding's answers to the base's; their calls, where these differ."""
    calls = finding.values["same_calls"] != finding.values["calling"]
    figure = "same_call" if calls else "same_answer"
    return f"to hold them to the base's: --gate-metric {printable(finding.task)}/{figure}=0.9"


def _detectable_text(comparison: Comparison) -> str:
    """The smallest drift that such a run shows, in the unit of the margin."""
    lacks = comparison.undecided
    if lacks is None:
        return ""
    unit = Margin.parse(comparison.margin_text or "1").unit
    change, base = lacks.detectable_change, comparison.base
    if unit == "points" and change is not None:
        return f"{100.0 * change:.2g}pp"
    if unit == "relative" and change is not None and base:
        return f"{100.0 * change / abs(base):.2g}%"
    return "" if lacks.detectable_sigma is None else f"{lacks.detectable_sigma:.2g} sigma"


def decide_step(comparison: Comparison) -> str:
    """Say what would decide it, as an order without a full stop."""
    lacks, used = comparison.undecided, rounding.format_count(comparison.n_used)
    of_answers = is_figure(comparison.filter, comparison.metric)
    if lacks is None:
        return ASK_MORE if of_answers else SCORE_MORE
    needed = lacks.needed_n or lacks.fixed_margin_n
    if needed is None and comparison.planned_scatter is None:
        return ASK_MORE if of_answers else SCORE_MORE
    if needed is None:
        wider = f": --margin {lacks.decidable_margin}" if lacks.decidable_margin else ""
        return f"more documents do not decide at this margin; a wider one does{wider}"
    at = ""
    if lacks.needed_n is None:
        own = margin_text(comparison.margin or 0.0)
        at = f" with --margin {lacks.fixed_margin} ({own} sigma now; sigma shrinks as they grow)"
    total = comparison.n_total
    if not 0 < total < needed:
        return f"score about {rounding.format_estimate(needed)} documents, not {used}{at}"
    every = "" if comparison.n_used == total else f"score all {rounding.format_count(total)}: "
    wider = f"--margin {lacks.decidable_margin} is the smallest that they decide, or "
    return (
        f"{every}{printable(comparison.task)} has {rounding.format_count(total)} documents, about "
        f"{rounding.format_estimate(needed)} are needed{at}; "
        f"{wider if lacks.decidable_margin else ''}"
        f"{'add requests, or take a larger task' if of_answers else 'take a larger task'}"
    )


def tensors_command(base: RunIdentity, candidate: RunIdentity, *options: str) -> str:
    """Return the command that compares the files of two models; "" where one has no folder."""
    if not base.folder or not candidate.folder:
        return ""
    folders = (shlex.quote(printable(side.folder)) for side in (base, candidate))
    return " ".join(("evalguard tensors", *options, *folders))


def other_classes(report: CompareReport) -> tuple[str, str] | None:
    """The classes that base and candidate were loaded as, where they are two; else None."""
    named = _side_values(report).get("code.class")
    if not isinstance(named, tuple) or len(named) != 2:
        return None
    base, candidate = named
    return None if not base or not candidate else (printable(str(base)), printable(str(candidate)))


def own_code(report: CompareReport) -> str:
    """The candidate's class, where code that a checkpoint brings computes; "" where none does."""
    named = _side_values(report).get("code.remote_class")
    return printable(str(named[1])) if isinstance(named, tuple) and len(named) == 2 else ""


def reads_other_tokens(report: CompareReport) -> bool:
    """Whether the rules of the two tokenizers differ, so that a trace would be refused."""
    return "tokenizer.rules" in _side_values(report)


def differs_in(report: CompareReport, part: str) -> bool:
    """Whether the sides hold something else in their "configs", "tokenizer", "code"."""
    return any(name.startswith(f"{part}.") for name in _side_values(report))


def _side_values(report: CompareReport) -> Mapping[str, FindingValue]:
    found = (one.values for one in report.findings if one.kind == "sides_differ")
    return next(found, {})


def gives_no_number(report: CompareReport) -> bool:
    """Whether the candidate's scores of some document are nan or infinite, and the base's not."""
    wrong = ("not a number", "infinity", "minus infinity")
    return any(
        one.side == "candidate" and one.candidate_is in wrong for one in report.broken_documents
    )


def margin_below(comparison: Comparison) -> str:
    """A margin at which a real drift that is within its own is searched; "" where it is not real.

    Half of it, so that what makes most of it stands out.
    """
    sigma, interval = comparison.sigma, comparison.sigma_interval
    if sigma is None or interval is None or interval[0] <= 0.0 or not math.isfinite(sigma):
        return ""
    return f"{sigma / 2:.2g}"
