"""Documents with a text per score, as a task that generates has them."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.answers.document_figures import DocumentAnswers
from evalguard.core.generation_comparison import GeneratedDocument


def answers(
    scores: Sequence[Sequence[float]], *, missing: Sequence[int] = (), cut: Sequence[int] = ()
) -> dict[int, DocumentAnswers]:
    """Documents with a text per score; all answers to ``missing`` and ``cut`` are that."""
    return {
        doc: DocumentAnswers(
            texts=[f"{doc} {number} {score}" for number, score in enumerate(own)],
            known=GeneratedDocument(
                ended=["length" if doc in cut else "stop"] * len(own),
                missing={"strict": [doc in missing] * len(own)},
                scores={"strict": {"exact_match": list(own)}},
            ),
        )
        for doc, own in enumerate(scores)
    }
