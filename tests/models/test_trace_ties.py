"""A head that is tied where the base's is not, or the other way round, is a likely why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from traced_faults import DOCUMENTS, differing
from traced_models import changed, make_llama

from evalguard.tracing.measure.forced_trace import trace_models


def untie(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.lm_head.weight = nn.Parameter(make(model.lm_head.weight.data.clone()))

    return change


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda w: w, set()),
        (lambda w: w + 0.05 * torch.randn_like(w), {"tied_embeddings"}),
        (lambda w: torch.randn_like(w) * 0.1, {"tied_embeddings"}),
        (lambda w: w * 2.0, {"tied_embeddings"}),
        (lambda w: w.roll(1, 0), {"tied_embeddings"}),
    ],
    ids=["a copy", "an earlier one", "never trained", "scaled", "shifted"],
)
def test_a_head_that_is_not_the_embedding_where_the_bases_is_is_a_likely_why(
    make: Any, names: set[str]
) -> None:
    base = make_llama(tie_word_embeddings=True)
    candidate = changed(base, untie(make))
    assert set(differing(base, candidate)) == names
    found = trace_models(base, candidate, DOCUMENTS)
    assert [one.module for one in found.suspects] == (["lm_head"] if names else [])


def test_a_head_that_is_tied_where_the_bases_is_not_is_one_too() -> None:
    base = make_llama(tie_word_embeddings=False)

    def tie(model: Any) -> None:
        model.lm_head.weight = model.model.embed_tokens.weight

    candidate = changed(base, tie)
    assert set(differing(base, candidate)) == {"tied_embeddings"}
    found = trace_models(base, candidate, DOCUMENTS)
    assert [one.module for one in found.suspects] == ["lm_head"]
