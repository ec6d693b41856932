"""Which documents carry a drift: for the JSON document and for people."""

from __future__ import annotations

from typing import Any

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.influence import Influence, InfluentialDocument
from evalguard.report import rounding
from evalguard.report.plain_text import printable
from evalguard.report.wording import full_label, subject


def influence_document(influence: Influence | None) -> dict[str, Any] | None:
    """Return an influence as JSON values; None where there is none."""
    if influence is None:
        return None
    return {
        "documents": [
            {
                "task": document.task,
                "doc_id": document.doc_id,
                "contribution": document.contribution,
                "share": document.share,
            }
            for document in influence.documents
        ],
        "moved": influence.moved,
        "half": influence.half,
        "removed": influence.removed,
        "sigma_without": influence.sigma_without,
    }


def influence_text(report: CompareReport) -> str:
    """Return what carries the drift that the report is about, "" if that is no regression."""
    worst = subject(report)
    if worst is None or worst.outcome != "regressed" or worst.influence is None:
        return ""
    found = worst.influence
    without, _, _ = rounding.sigma_with_interval(
        found.sigma_without, None, margin=report.gate.margin
    )
    top = "the top one" if found.removed == 1 else f"the top {rounding.count(found.removed)}"
    shown = ", ".join(_document(document, worst) for document in found.documents)
    noun = "document" if len(found.documents) == 1 else "documents"
    return (
        f"Documents that carry {full_label(worst)}: {rounding.count(found.half)} of "
        f"{rounding.count(worst.n_used)} make up half of all change; without {top}, sigma is "
        f"{without}. Largest: {noun} {shown}."
    )


def _document(document: InfluentialDocument, worst: Comparison) -> str:
    task = "" if document.task == worst.task else f"{printable(document.task)} "
    return f"{task}{document.doc_id} ({document.contribution:+.2g} sigma)"
