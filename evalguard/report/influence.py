"""Which documents carry a drift: for the JSON document."""

from __future__ import annotations

from typing import Any

from evalguard.influence import Influence


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
