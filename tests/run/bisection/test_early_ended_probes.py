"""Texts of a search end where they have told what is asked, in models that can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from evalguard.answers.document_figures import DocumentAnswers
from evalguard.bisect.oracle.probe_answers import EarlyEnds
from evalguard.core.scorer import Request
from evalguard.core.settings import Variant
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.engine.sources import ModelSource

SOURCE = ModelSource(name="port", variant=Variant(name="port", model="hf", model_args={}))


def written(*ids: int) -> DocumentAnswers:
    n = len(ids)
    tokens = GeneratedTokens(
        ids=np.array(ids, np.int32), margins=np.zeros(n, np.float32), others=np.zeros(n, np.int32)
    )
    return DocumentAnswers(texts=["text"], tokens=[tokens])


def ended(ends: EarlyEnds | None) -> list[Any]:
    """``end_at`` of a request of document 0, and of one of document 1."""
    assert ends is not None
    asked = [
        Request(
            task="t", doc_id=doc, index=0, kind="generate_until",
            arguments=("context", {"until": ["\n"]}),
        )
        for doc in (0, 1)
    ]  # fmt: skip
    found = [cast(Any, ends.ended(one).arguments[-1]) for one in asked]
    assert all(one["until"] == ["\n"] for one in found)
    return [one.get("end_at") for one in found]


def test_a_text_for_loops_ends_at_its_first_loop() -> None:
    assert ended(EarlyEnds.for_figure("loops", SOURCE, {})) == [{"loop": True}] * 2


def test_a_text_for_first_differences_ends_at_the_first_token_that_is_not_the_bases() -> None:
    found = ended(EarlyEnds.for_figure("first_difference_beyond_ties", SOURCE, {1: written(5, 7)}))
    assert found == [None, {"other_than": [5, 7]}]


@pytest.mark.parametrize("figure", ["cut", "tokens", "valid_json", "empty"])
def test_other_figures_need_whole_texts(figure: str) -> None:
    assert EarlyEnds.for_figure(figure, SOURCE, {1: written(5)}) is None


def test_models_that_cannot_end_a_text_early_write_whole_ones() -> None:
    served = replace(SOURCE, variant=replace(SOURCE.variant, model="local-chat-completions"))
    assert EarlyEnds.for_figure("loops", served, {}) is None
