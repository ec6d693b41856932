"""What the scored tokens of a run say, where a tokenizer is at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evalguard.models.arguments import HF_TYPES
from evalguard.models.token_texts import token_texts
from evalguard.run.scoring.divergences import TaskDivergences
from evalguard.run.sources import ModelSource, Source


def name_tokens(
    sources: Sequence[Source], divergences: Iterable[TaskDivergences]
) -> Mapping[int, str]:
    """Return the text of every scored token id; {} where no tokenizer is at hand.

    Distributions are compared of models with one vocabulary, so that either side's will do.
    """
    found = [
        one.token_ids
        for task in divergences
        for document in task.documents
        for one in document.requests
    ]
    if not found:
        return {}
    ids = np.unique(np.concatenate(found)).tolist()
    for source in sources:
        if isinstance(source, ModelSource) and source.variant.model in HF_TYPES:
            texts = token_texts(source.variant.model_args, ids)
            if texts:
                return texts
    return {}
