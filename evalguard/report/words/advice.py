"""What to do next, and what an undecided metric lacks: every view says it in these words."""

from __future__ import annotations

import shlex

from evalguard.core.comparison import Comparison, Margin
from evalguard.core.reports.compare import RunIdentity
from evalguard.report.words import rounding
from evalguard.report.words.labels import margin_text
from evalguard.report.words.plain_text import printable

SCORE_MORE = "score more documents: a higher --limit, or a larger task"


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
    if lacks is None:
        return SCORE_MORE
    needed = lacks.needed_n or lacks.fixed_margin_n
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
        f"{wider if lacks.decidable_margin else ''}take a larger task"
    )


def tensors_command(base: RunIdentity, candidate: RunIdentity, *options: str) -> str:
    """Return the command that compares the files of two models; "" where one has no folder."""
    if not base.folder or not candidate.folder:
        return ""
    folders = (shlex.quote(printable(side.folder)) for side in (base, candidate))
    return " ".join(("evalguard tensors", *options, *folders))
