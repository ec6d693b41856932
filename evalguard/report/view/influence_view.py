"""InfluenceView: how a drift spreads over documents."""

from __future__ import annotations

from dataclasses import dataclass

from evalguard.core.comparison import Comparison
from evalguard.core.influential_documents import InfluentialDocument
from evalguard.report.words import rounding
from evalguard.report.words.plain_text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstDocument:
    """A document that moves a drift most; ``sigma`` is its part, as text and as ``number``."""

    task: str
    doc_id: int
    sigma: str
    number: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceView:
    """How a drift spreads over documents.

    Attributes:
        text: all of it; ``carried`` without the names of documents.
        moved: documents whose score differs at all; ``half`` the fewest that make up half of all
            change; ``removed`` the most influential 1%, without which sigma is ``without``.
        worst: the largest contributions, largest first.
    """

    text: str
    carried: str
    moved: str
    half: str
    removed: str
    without: str
    worst: tuple[WorstDocument, ...]


def influence_view(comparison: Comparison, margin: float) -> InfluenceView | None:
    """Return how a metric's drift spreads; None where that is not known."""
    found = comparison.influence
    if found is None:
        return None
    without, _, _ = rounding.format_sigma_interval(found.sigma_without, None, margin=margin)
    half, removed = rounding.format_count(found.half), rounding.format_count(found.removed)
    worst = tuple(map(_worst_document, found.documents))
    own = printable(comparison.task)
    shown = ", ".join(
        f"{'' if one.task == own else f'{one.task} '}{one.doc_id} ({one.sigma} sigma)"
        for one in worst
    )
    top = "the top one" if found.removed == 1 else f"the top {removed}"
    noun = "document" if len(worst) == 1 else "documents"
    carried = (
        f"half of the change comes from {half} of {rounding.format_count(comparison.n_used)}; "
        f"without {top}, "
        f"sigma is {without}."
    )
    return InfluenceView(
        text=f"{carried} Largest: {noun} {shown}.",
        carried=carried,
        moved=rounding.format_count(found.moved),
        half=half,
        removed=removed,
        without=without,
        worst=worst,
    )


def _worst_document(document: InfluentialDocument) -> WorstDocument:
    return WorstDocument(
        task=printable(document.task),
        doc_id=document.doc_id,
        sigma=f"{document.contribution:+.2g}",
        number=document.contribution,
    )
