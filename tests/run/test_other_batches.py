"""Two models that were not scored in the same batches: the report says so."""

from __future__ import annotations

from dataclasses import replace

from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Value
from evalguard.engine.fairness import note_batch_differences

ALIKE: dict[str, Value] = {
    "batch_size": None, "token_budget": 1024, "scorer": "fast", "shares_prefixes": True,
}  # fmt: skip
MODEL = ModelDescription(model_type="hf", computation=ALIKE)


def but(**changes: Value) -> ModelDescription:
    return replace(MODEL, computation={**ALIKE, **changes})


def test_a_smaller_budget_of_one_model_is_said_with_both() -> None:
    (note,) = note_batch_differences(MODEL, but(token_budget=256))
    assert "(padded tokens per pass: 1,024 and 256)" in note


def test_every_difference_is_named() -> None:
    (note,) = note_batch_differences(
        MODEL, but(shares_prefixes=False, batch_size=8, token_budget=None)
    )
    assert "sequences per pass: not fixed and 8" in note
    assert "padded tokens per pass: 1,024 and not fixed" in note
    assert "shared prefixes: yes and no" in note


def test_equal_batches_and_what_no_model_shows_are_no_difference() -> None:
    assert note_batch_differences(MODEL, MODEL) == ()
    assert note_batch_differences(MODEL, but(scorer="full logits")) == ()
    assert note_batch_differences(MODEL, but(scorer=None, token_budget=None)) == ()
    assert note_batch_differences(None, MODEL) == ()
