"""A rounding of weights is a floor where it is declared or stored so, and else an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed_layers import pack
from torch import nn
from traced_models import changed, make_llama, make_sequences
from transformers import LlamaForCausalLM

from evalguard.core.grid import find_grid
from evalguard.core.precision_vote import round_float8, round_integer, round_mantissa
from evalguard.core.trace_record import Trace
from evalguard.core.weight_precision import round_weights
from evalguard.tracing.measure.forced_trace import trace_models
from evalguard.tracing.measure.weight_rounding import read_declared

DOCUMENTS = make_sequences()
Round = Callable[[Any], Any]
ROUNDINGS: Mapping[str, tuple[Round, str]] = {
    "3 bits by row": (partial(round_integer, bits=3), "3 bits (per row)"),
    "3 bits by tensor": (partial(round_integer, bits=3, group=-1), "3 bits (per tensor)"),
    "3 bits, asymmetric": (partial(round_integer, bits=3, symmetric=False), "3 bits (per row)"),
    "3 bits of mantissa": (partial(round_mantissa, bits=3), "3 bits of mantissa"),
    "2 bits": (partial(round_integer, bits=2), "2 bits (per row)"),
    "fp8": (round_float8, "3 bits of mantissa"),
    "int4": (partial(round_weights, name="int4 in groups of 32"), "int4 in groups of 32"),
    "int8": (partial(round_weights, name="int8 per channel"), "int8 per channel"),
    "bfloat16": (partial(round_weights, name="bfloat16"), "bfloat16"),
    "float16": (partial(round_weights, name="float16"), "float16"),
}


def rounded(rule: Round) -> Callable[[Any], None]:
    """Round all linear layers, and leave them in their dtype."""

    def change(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                values = np.array(rule(module.weight.data.float().numpy()), dtype=np.float32)
                module.weight.data = torch.from_numpy(values).to(module.weight.dtype)

    return change


def trace(rule: str, dtype: torch.dtype | None = None, **said: Any) -> Trace:
    base = make_llama()
    return trace_models(base, changed(base, rounded(ROUNDINGS[rule][0]), dtype), DOCUMENTS, **said)


@pytest.mark.parametrize("rule", ROUNDINGS)
def test_a_rounding_that_nobody_declared_is_located_and_named(rule: str) -> None:
    found = trace(rule)
    assert found.first is not None
    assert found.first.module == "model.layers.0.self_attn.q_proj"
    assert {one.fault for one in found.suspects} == {"weights"}
    assert f"looks rounded to {ROUNDINGS[rule][1]}" in found.first.operation
    assert found.twin is not None
    assert found.twin.weights == "float32"
    assert found.twin.seen.startswith(ROUNDINGS[rule][1])
    assert sum(found.twin.undeclared.values()) == 15
    assert not found.twin.declared


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("3 bits by row", {"weights": "int3"}),
        ("3 bits by tensor", {"gptq": {"bits": 3}}),
        ("2 bits", {"scheme": "2-bit"}),
        ("int4", {"build.config": "Int4WeightOnlyConfig"}),
        ("int8", {"int8_linears": True}),
        ("int8", {"quantise": "yes"}),
        ("bfloat16", {"dtype": "bfloat16"}),
        ("float16", {"convert": "fp16"}),
    ],
)
def test_the_same_rounding_declared_is_the_floor(rule: str, said: dict[str, Any]) -> None:
    found = trace(rule, said=said)
    assert found.suspects == ()
    assert found.twin is not None
    assert not found.twin.undeclared


@pytest.mark.parametrize("rule", ["int8", "int4"])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_coarser_rounding_than_the_declared_one_is_an_error(rule: str, bits: int) -> None:
    found = trace(rule, said={"bits": bits})
    assert bool(found.suspects) == (rule == "int4" and bits == 8)


def shift_steps(where: str) -> Callable[[Any], None]:
    """Round linear layers of a name to 4 bits, a step too low, as wrong zero points do."""

    def change(model: Any) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and where in name:
                exact = module.weight.data.float().numpy()
                steps = np.ptp(exact, axis=1, keepdims=True) / 15
                module.weight.data = torch.from_numpy((np.rint(exact / steps) - 1) * steps)

    return change


@pytest.mark.parametrize("where", ["k_proj", ""])
@pytest.mark.parametrize("said", [{}, {"bits": 4}])
def test_zero_points_that_are_off_are_no_rounding_that_could_be_declared(
    where: str, said: dict[str, Any]
) -> None:
    base = make_llama()
    found = trace_models(base, changed(base, shift_steps(where)), DOCUMENTS, said=said)
    assert found.first is not None
    assert "zero points that are off (values shifted by one step down" in found.first.operation
    assert found.twin is not None
    assert not found.twin.undeclared
    layers = {one.module for one in found.suspects if one.fault == "weights"}
    assert {name for name in layers if "k_proj" in name} == {
        name for name, _ in base.named_modules() if name.endswith("k_proj")
    }


def test_what_a_config_says_is_declared() -> None:
    base = make_llama()
    candidate = changed(base, rounded(ROUNDINGS["int8"][0]))
    candidate.config.quantization_config = {"quant_method": "fake", "bits": 8}
    found = trace_models(base, candidate, DOCUMENTS)
    assert found.suspects == ()
    assert found.twin is not None
    assert found.twin.declared == "quantization_config (fake)"
    candidate = changed(base, rounded(ROUNDINGS["int4"][0]))
    candidate.config.quantization_config = {"quant_method": "fake", "load_in_8bit": True}
    assert trace_models(base, candidate, DOCUMENTS).suspects


def test_what_is_stored_quantised_needs_no_declaration() -> None:
    base = make_llama()
    found = trace_models(base, changed(base, pack), DOCUMENTS)
    assert found.suspects == ()
    assert found.twin is not None
    assert (found.twin.seen, found.twin.declared) == (
        "int8 per channel",
        "the weights are stored so",
    )


def test_16_bits_in_the_files_are_declared_whatever_they_are_loaded_in(tmp_path: Path) -> None:
    base = make_llama()
    changed(base, lambda _m: None).bfloat16().save_pretrained(tmp_path)
    port = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert trace_models(base, port, DOCUMENTS).suspects == ()
    assert "bfloat16" in read_declared(port, {}).dtypes


def test_weights_that_are_no_rounding_of_the_bases_are_located_too() -> None:
    base, other = make_llama(), make_llama(seed=1)
    found = trace_models(base, other, DOCUMENTS)
    assert found.first is not None
    assert found.first.fault == "weights"
    assert "differs by" in found.first.operation


def fold(model: Any) -> None:
    """Compute every matrix anew."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data / 3.0 * 3.0


def test_what_was_computed_anew_to_the_last_bit_is_no_error() -> None:
    base = make_llama()
    assert trace_models(base, changed(base, fold), DOCUMENTS).suspects == ()


DAMAGES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rolled": lambda weight: weight.roll(1, 0),
    "scaled by 2%": lambda weight: weight * 1.02,
    "a row zeroed": lambda weight: weight * (torch.arange(len(weight)) != 3)[:, None],
}


@pytest.mark.parametrize(
    ("every", "damage"), [*(("computed anew", one) for one in DAMAGES), ("2 bits", "rolled")]
)
def test_a_fault_among_weights_of_no_class_is_located(every: str, damage: str) -> None:
    base, anew = make_llama(), every == "computed anew"

    def change(model: Any) -> None:
        (fold if anew else rounded(partial(round_integer, bits=2)))(model)
        weight = model.model.layers[1].self_attn.k_proj.weight
        weight.data = DAMAGES[damage](weight.data)

    found = trace_models(
        base, changed(base, change), DOCUMENTS, said={} if anew else {"weights": {"bits": 2}}
    )
    assert found.first is not None
    assert found.first.module == "model.layers.1.self_attn.k_proj"


@pytest.mark.parametrize(
    ("said", "source", "bits"),
    [
        ({"kv-cache-dtype": "fp8"}, "", 0),
        ({"file": "model-Q4_K_M.gguf"}, "file: model-Q4_K_M.gguf", 4),
        ({"format": "w8a16"}, "format: w8a16", 8),
        ({"folder": "/models/int8/orig"}, "", 0),
        ({"layers": 8}, "", 0),
        ({"int8": False}, "", 0),
        ({"weights": "nf4"}, "weights: nf4", 4),
    ],
)
def test_settings_declare_bits_in_the_words_of_the_field(
    said: dict[str, Any], source: str, bits: int
) -> None:
    found = read_declared(nn.Linear(1, 1), said)
    assert (found.source, found.bits) == (source, bits)


@pytest.mark.parametrize("shape", [(32, 32), (48, 32), (64, 256)])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_grid_is_told_by_the_weights_alone(shape: tuple[int, int], bits: int) -> None:
    plain = np.random.default_rng(bits).standard_normal(shape).astype(np.float32)
    assert find_grid(plain) is None
    for group in (0, -1, 32):
        grid = find_grid(round_integer(plain, bits, group=group))
        assert grid is not None
        assert grid.bits == bits
