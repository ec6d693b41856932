"""Activations that were recorded elsewhere are traced by forcing the base to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from traced_models import Recording, changed, make_llama
from transformers.models.llama import modeling_llama
from wrong_scales import DOCUMENTS, HALF, scale_attention

from evalguard.core.trace_points import ModelRounding
from evalguard.core.weight_precision import round_weights
from evalguard.errors import EvaluationError, UsageError
from evalguard.tracing.measure.benign_twins import rounded_as
from evalguard.tracing.measure.forced_trace import record_activations, trace_models


@pytest.mark.parametrize("dtype", HALF)
def test_recorded_activations_are_traced_by_forcing_the_base(dtype: torch.dtype) -> None:
    base = make_llama()
    candidate = changed(base, scale_attention(1, 1.2), dtype)
    rounding = ModelRounding(precision=str(dtype).removeprefix("torch."))
    recording = Recording.of(candidate, DOCUMENTS, rounding=rounding)
    trace = trace_models(base, recording, DOCUMENTS)
    assert [s.point for s in trace.suspects] == ["model.layers.1.self_attn.o_proj:in"]
    healthy = Recording.of(changed(base, lambda m: None, dtype), DOCUMENTS, rounding=rounding)
    assert trace_models(base, healthy, DOCUMENTS).suspects == ()


@pytest.mark.parametrize("dtype", HALF)
def test_the_precision_of_a_recording_is_found_where_it_is_not_stated(dtype: torch.dtype) -> None:
    base = make_llama()
    trace = trace_models(
        base, Recording.of(changed(base, lambda m: None, dtype), DOCUMENTS), DOCUMENTS
    )
    assert trace.twin is not None
    assert trace.twin.weights == str(dtype).removeprefix("torch.")
    assert trace.suspects == ()


def round_to_int8(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            values = round_weights(module.weight.data.numpy(), "int8 in groups of 32")
            module.weight.data = torch.from_numpy(np.array(values))


@pytest.mark.parametrize("precision", ["", "quantised", "int8 in groups of 32"])
def test_quantised_weights_of_a_recording_are_a_floor_where_they_are_declared(
    precision: str,
) -> None:
    base = make_llama(intermediate_size=64)

    recording = Recording.of(
        changed(base, round_to_int8), DOCUMENTS, rounding=ModelRounding(precision=precision)
    )
    trace = trace_models(base, recording, DOCUMENTS)
    assert trace.twin is not None
    assert trace.twin.seen == "int8 in groups of 32"
    assert bool(trace.suspects) == (precision == "")
    assert trace.twin.weights == ("int8 in groups of 32" if precision else "float32")


def test_of_a_file_of_several_types_what_is_coarser_everywhere_is_no_location() -> None:
    """As in a q6_K whose rows are no multiple of 256, so that most of it is q8_0."""
    base = make_llama(intermediate_size=64)

    def traced(*coarse: str) -> Any:
        def change(model: Any) -> None:
            round_to_int8(model)
            for name in coarse:
                weight = model.get_submodule(name).weight
                values = round_weights(base.get_submodule(name).weight.detach().numpy(), FOUR_BITS)
                weight.data = torch.from_numpy(np.array(values))

        recording = Recording.of(
            changed(base, change), DOCUMENTS, rounding=ModelRounding(precision="quantised")
        )
        return trace_models(base, recording, DOCUMENTS)

    layers = range(base.config.num_hidden_layers)
    assert traced(*(f"model.layers.{n}.mlp.down_proj" for n in layers)).suspects == ()
    (one,) = traced("model.layers.1.mlp.down_proj").suspects
    assert one.module == "model.layers.1.mlp.down_proj"


def test_inputs_that_an_engine_rounds_are_part_of_the_floor_where_it_says_so() -> None:
    """As ggml does, which multiplies blocks of int8 with blocks of int8."""
    base = make_llama(intermediate_size=64)
    with rounded_as(base, EIGHT_BITS, inputs=EIGHT_BITS) as engine:
        recording = Recording.of(engine, DOCUMENTS, rounding=ModelRounding(precision=EIGHT_BITS))
    assert all("forward" not in vars(module) for module in base.modules())

    def largest(**told: str) -> float:
        rounding = replace(recording.rounding, **told)
        trace = trace_models(base, replace(recording, rounding=rounding), DOCUMENTS)
        return max(one.local_ratio or 0.0 for one in trace.layers if one.point.endswith("proj:out"))

    assert largest(inputs=EIGHT_BITS) == pytest.approx(1.0, abs=0.01)
    assert largest() > 1.2


EIGHT_BITS = "int8 in groups of 32"
FOUR_BITS = "int4 in groups of 32"


@pytest.mark.parametrize("precision", ["float32", "int8 in groups of 32"])
def test_what_an_engine_keeps_in_float16_is_a_floor_where_it_says_so(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values, whatever the weights are, as in llama.cpp's cache."""
    base = make_llama(intermediate_size=64)
    base.set_attn_implementation("eager")
    changes = [] if precision == "float32" else [round_to_int8]

    def traced(computes_in: str, *more: Any) -> Any:
        candidate = changed(base, lambda model: [one(model) for one in (*changes, *more)])
        plain = modeling_llama.repeat_kv
        with monkeypatch.context() as engine:
            engine.setattr(
                modeling_llama, "repeat_kv", lambda kept, n: plain(kept.half().float(), n)
            )
            recording = Recording.of(
                candidate,
                DOCUMENTS,
                rounding=ModelRounding(precision=precision, computes_in=computes_in),
            )
        return trace_models(base, recording, DOCUMENTS)

    assert {one.point.rpartition(".")[2] for one in traced("").suspects} == {"o_proj:in"}
    healthy = traced("float16")
    assert healthy.suspects == ()
    assert (healthy.twin.weights, healthy.twin.dtype) == (precision, "float16")
    (fault,) = traced("float16", scale_attention(1, 1.2)).suspects
    assert fault.point == "model.layers.1.self_attn.o_proj:in"


def test_a_candidate_can_be_recorded_and_closed_before_the_base_is_loaded() -> None:
    candidate = changed(make_llama(), scale_attention(1, 1.2), torch.bfloat16)
    with record_activations(candidate, DOCUMENTS, memory=4096) as recording:
        del candidate
        trace = trace_models(make_llama(), recording, DOCUMENTS)
    assert [s.module for s in trace.suspects] == ["model.layers.1.self_attn"]


def test_between_sparse_recordings_the_container_of_what_ran_is_blamed() -> None:
    base = make_llama()
    candidate = changed(base, scale_attention(1, 1.2))
    recording = Recording.of(
        candidate,
        DOCUMENTS,
        rounding=ModelRounding(precision="float32"),
        keep=lambda name: name.endswith(("layernorm:out", "v_proj:out", "o_proj:out")),
    )
    (suspect,) = trace_models(base, recording, DOCUMENTS).suspects
    assert suspect.module == "model.layers.1.self_attn"
    assert suspect.point == "model.layers.1.self_attn.o_proj:out"
    assert "between model.layers.1.self_attn.v_proj:out and" in suspect.operation


def test_a_recording_that_has_nothing_of_the_base_or_no_known_precision_is_refused() -> None:
    base = make_llama()
    with pytest.raises(EvaluationError, match="no recorded activation"):
        trace_models(base, Recording(values=[{"a.b:out": np.zeros(3)}] * 2), DOCUMENTS)
    with pytest.raises(UsageError, match="bfloat61"):
        trace_models(base, Recording(ModelRounding(precision="bfloat61")), DOCUMENTS)
    with pytest.raises(UsageError, match="compute in; did you mean 'float16'"):
        trace_models(base, Recording(ModelRounding(computes_in="flot16")), DOCUMENTS)
