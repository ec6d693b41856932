"""What a fault is made of is told: one number, rotary positions, a tie, a nan, a class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from traced_models import changed, make_llama, make_sequences

from evalguard.core.reports.trace_report import HyperparameterDelta, Trace
from evalguard.core.tracing.hyperparameters import compare_hyperparameters
from evalguard.core.tracing.sums import ErrorSums
from evalguard.models.tracing.model_trace import trace_models
from evalguard.models.tracing.read_hyperparameters import read_model
from evalguard.models.tracing.rotary import read_rotary, rope_base

DOCUMENTS = make_sequences()


def after(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """Put a function behind a module, as code that multiplies what it should not."""

    def change(model: Any) -> None:
        module = model.get_submodule(name)
        own = module.forward
        module.forward = lambda *given, **options: function(own(*given, **options))

    return change


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("module", "function", "says"),
    [
        ("lm_head", lambda x: x * 6.0, "output is 6.00 times the base's, cosine 1.000000"),
        ("model.embed_tokens", lambda x: x * 12.0, "output is 12.00 times the base's, cosine 1"),
        ("lm_head", lambda x: x / 6.0, "output is 0.16667 times the base's, cosine 1.0"),
        ("model.norm", lambda x: x * 1.02, "output is 1.02 times the base's"),
        ("model.layers.1.mlp.down_proj", lambda x: -x, "output is the base's with the other sign"),
        ("model.layers.1.mlp.up_proj", lambda x: x + 0.25, "output is the base's plus 0.25"),
        ("model.layers.0.self_attn.o_proj", lambda x: x * 0.0, "output is zero"),
    ],
)
def test_one_number_that_is_the_whole_error_is_told(
    module: str, function: Any, says: str, dtype: torch.dtype
) -> None:
    base = make_llama()
    found = trace_models(base, changed(base, after(module, function), dtype), DOCUMENTS)
    assert found.first is not None
    assert found.first.module == module
    if dtype is torch.float32:  # the other one rounds the number, too
        assert says in found.first.operation
    assert found.first.relation is not None


@pytest.mark.parametrize(
    "function",
    [
        torch.tanh,
        lambda x: x * torch.linspace(0.5, 2.0, x.shape[-1]),
        lambda x: x.roll(1, -1),
        lambda x: x + torch.linspace(0.5, 2.0, x.shape[-1]),
        lambda x: x.abs(),
    ],
)
def test_what_is_no_constant_is_not_called_one(function: Any) -> None:
    base = make_llama()
    found = trace_models(base, changed(base, after("lm_head", function)), DOCUMENTS)
    assert found.first is not None
    assert found.first.relation is None
    assert "computes something else" in found.first.operation


def test_factors_and_offsets_are_read_off_the_sums() -> None:
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    for made, kind, value in (
        (values * 3, "factor", 3.0), (values * -1, "factor", -1.0),
        (values * 1.001, "factor", 1.001), (values + 2, "offset", 2.0),
        (values - 0.01, "offset", -0.01),
    ):  # fmt: skip
        sums = ErrorSums()
        sums.add(values, made.astype(np.float32))
        relation = sums.relation()
        assert relation is not None
        assert relation.kind == kind
        assert relation.value == pytest.approx(value, rel=1e-3)


# Rotary positions.


def inverse(base: float, n: int = 4) -> torch.Tensor:
    return base ** (-torch.arange(n, dtype=torch.float64) / n)


def differing(base: Any, candidate: Any) -> dict[str, HyperparameterDelta]:
    found = compare_hyperparameters(read_model(base), read_model(candidate))
    return {one.name: one for one in found if one.verdict == "differs"}


def set_frequencies(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        rotary = model.model.rotary_emb
        rotary.inv_freq = make(rotary.inv_freq)

    return change


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda f: inverse(50_000.0, len(f)).to(f.dtype), "rope_theta"),
        (lambda f: f / 8.0, "rope_frequencies"),
        (lambda f: torch.where(f < 0.05, f / 8.0, f), "rope_frequencies"),
        (lambda f: f.bfloat16().float(), "rope_frequencies"),
        (lambda f: f.flip(0), "rope_frequencies"),
    ],
    ids=["another base", "linear scaling", "long ones scaled", "rounded", "reversed"],
)
def test_frequencies_that_differ_are_named_and_located(make: Any, name: str) -> None:
    base = make_llama()
    candidate = changed(base, set_frequencies(make))
    assert set(differing(base, candidate)) == {name}
    found = trace_models(base, candidate, DOCUMENTS)
    assert found.first is not None
    assert found.first.module == "model.rotary_emb"


def test_frequencies_that_other_kernels_computed_are_equal() -> None:
    base = make_llama()
    other = changed(base, set_frequencies(lambda f: f * (1 + 1e-7)))
    assert not differing(base, other)


def test_fewer_frequencies_are_another_number_of_rotated_dimensions() -> None:
    base = make_llama()
    found = differing(base, changed(base, set_frequencies(lambda f: inverse(1e4, 2))))
    assert (found["rope_dimensions"].base, found["rope_dimensions"].candidate) == (8, 4)


class Tables(nn.Module):
    """Rotary positions as tables, in the ways of other code."""

    def __init__(self, key: str, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer(key, table)


def angles(base: float) -> torch.Tensor:
    return torch.outer(torch.arange(16, dtype=torch.float64), inverse(base))


@pytest.mark.parametrize(
    ("key", "make"),
    [
        ("inv_freq", inverse),
        ("sliding_attention_inv_freq", inverse),
        ("sin_cached", lambda base: torch.cat([angles(base).sin()] * 2, -1)[None, None]),
        ("sin", lambda base: angles(base).sin().repeat_interleave(2, -1)),
        ("freqs_cis", lambda base: torch.polar(torch.ones_like(angles(base)), angles(base))),
        (
            "embed_positions",
            lambda base: torch.cat([angles(base).sin(), angles(base).cos()], -1),
        ),
    ],
)
def test_the_base_is_read_off_whatever_a_module_holds(key: str, make: Any) -> None:
    told = {
        one.name.partition(" ")[0]: one.value for one in read_rotary("r", Tables(key, make(1e4)))
    }
    assert told["rope_theta"] == 10_000.0
    base, other = Tables(key, make(1e4)), Tables(key, make(5e5))
    (name,) = (one for one in differing(base, other))
    assert name.startswith("rope_theta")


def test_neighbours_and_halves_are_two_layouts() -> None:
    halves = Tables("sin", torch.cat([angles(1e4).sin()] * 2, -1))
    pairs = Tables("sin", angles(1e4).sin().repeat_interleave(2, -1))
    assert differing(halves, pairs)["rope_interleaved"].candidate is True


def test_each_kind_of_attention_has_its_own_base() -> None:
    module, other = Tables("inv_freq", inverse(1e4)), Tables("inv_freq", inverse(1e4))
    module.register_buffer("sliding_attention_inv_freq", inverse(1e4))
    other.register_buffer("sliding_attention_inv_freq", inverse(1e6))
    assert set(differing(module, other)) == {"rope_theta (sliding_attention)"}
    assert rope_base(np.array([1.0])) is None


# Ties.


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


# nan.


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
