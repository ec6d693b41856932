"""A nan is told with the tensor that holds it, or with the module that computes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from traced_faults import DOCUMENTS, after, differing
from traced_models import changed, make_llama

from evalguard.core.trace_record import Trace
from evalguard.tracing.measure.forced_trace import trace_models


def plant_nan(name: str, *at: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.get_parameter(name)[at] = math.nan

    return change


def first_nan(trace: Trace) -> tuple[str, int, int | None, tuple[str, ...]]:
    (origin,) = trace.nonfinite
    assert origin.side == "candidate"
    return origin.point, origin.sequence, origin.position, origin.weights


@pytest.mark.parametrize(
    ("name", "at", "point"),
    [
        ("model.layers.1.mlp.down_proj.weight", (3, 4), "model.layers.1.mlp.down_proj:out"),
        ("model.layers.0.self_attn.q_proj.weight", (0,), "model.layers.0.self_attn.q_proj:out"),
        ("model.norm.weight", (2,), "model.norm:out"),
        ("lm_head.weight", (5,), "lm_head:out"),
    ],
)
def test_a_nan_in_the_weights_is_told_with_its_tensor(
    name: str, at: tuple[int, ...], point: str
) -> None:
    base = make_llama()
    found = trace_models(base, changed(base, plant_nan(name, *at)), DOCUMENTS)
    assert first_nan(found) == (point, 0, 0, (name,))
    assert [one.module for one in found.suspects] == [name.removesuffix(".weight")]
    assert "nan or infinite" in found.suspects[0].operation


def test_a_row_of_the_embedding_is_a_nan_where_its_token_stands() -> None:
    base = make_llama()
    token = int(DOCUMENTS[1]["input_ids"][0, 5])
    first = {int(one): at for at, one in reversed([*enumerate(DOCUMENTS[1]["input_ids"][0])])}
    found = trace_models(
        base, changed(base, plant_nan("model.embed_tokens.weight", token)), DOCUMENTS[1:]
    )
    point, sequence, position, weights = first_nan(found)
    assert (point, sequence, position) == ("model.embed_tokens:out", 0, first[token])
    assert weights == ("model.embed_tokens.weight",)


def test_a_nan_that_no_document_reads_is_found_in_the_weights_all_the_same() -> None:
    base = make_llama()
    read = {int(one) for each in DOCUMENTS for one in each["input_ids"][0]}
    unread = next(token for token in range(64) if token not in read)
    candidate = changed(base, plant_nan("model.embed_tokens.weight", unread))
    found = trace_models(base, candidate, DOCUMENTS)
    assert not found.nonfinite
    assert [one.module for one in found.suspects] == ["model.embed_tokens"]
    assert "weight holds nan or infinite values" in found.suspects[0].operation


def test_a_nan_that_is_computed_is_told_from_one_that_is_held() -> None:
    base = make_llama()

    def at_the_third(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 3:] = math.nan
        return x

    candidate = changed(base, after("model.layers.1.mlp.act_fn", at_the_third))
    found = trace_models(base, candidate, DOCUMENTS)
    assert first_nan(found) == ("model.layers.1.mlp.act_fn:out", 0, 3, ())
    assert [one.module for one in found.suspects] == ["model.layers.1.mlp.act_fn"]


def test_another_class_is_told() -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    base = make_llama()
    candidate = GraniteForCausalLM(GraniteConfig(**{
        key: value for key, value in base.config.to_dict().items() if key in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads",
        )
    }, embedding_multiplier=12.0, logits_scaling=6.0)).eval()  # fmt: skip
    candidate.load_state_dict(base.state_dict())
    told = differing(candidate, base)["architecture"]
    assert (told.base, told.candidate) == ("GraniteForCausalLM", "LlamaForCausalLM")
    found = trace_models(candidate, base, DOCUMENTS)
    assert found.first is not None
    assert found.first.relation is not None
    assert found.first.relation.value == pytest.approx(1 / 12, rel=1e-5)
