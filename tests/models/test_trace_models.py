"""Where a candidate introduces error is said, and where it only carries it along is not."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from packed_layers import pack
from torch import nn
from traced_models import changed, make_llama
from wrong_scales import DOCUMENTS, HALF, scale_attention

from evalguard.core.trace_record import LayerDelta, Trace
from evalguard.core.weight_precision import round_weights
from evalguard.errors import EvaluationError
from evalguard.tracing.measure.forced_trace import trace_models


def at(trace: Trace, point: str) -> LayerDelta:
    return next(layer for layer in trace.layers if layer.point == point)


def beyond(trace: Trace) -> dict[str, float]:
    assert trace.twin is not None
    limit = trace.twin.threshold
    return {
        layer.point: layer.local_ratio
        for layer in trace.layers
        if layer.local_ratio is not None and layer.local_ratio > limit
    }


@pytest.mark.parametrize("dtype", HALF)
def test_a_wrong_scale_stands_out_where_it_is_and_nowhere_else(dtype: torch.dtype) -> None:
    base = make_llama()
    trace = trace_models(base, changed(base, scale_attention(1, 1.02), dtype), DOCUMENTS)
    assert list(beyond(trace)) == ["model.layers.1.self_attn.o_proj:in"]
    assert beyond(trace)["model.layers.1.self_attn.o_proj:in"] > 100.0
    others = [
        layer.local_ratio
        for layer in trace.layers
        if layer.local_ratio is not None and layer.module != "model.layers.1.self_attn"
    ]
    assert max(others) < 1.5
    (suspect,) = trace.suspects
    assert (suspect.module, suspect.layer) == ("model.layers.1.self_attn", 1)
    assert "before o_proj" in suspect.operation
    assert trace.first == suspect


def test_attention_that_also_returns_its_weights_is_blamed_where_its_output_is_made() -> None:
    base = make_llama()
    base.set_attn_implementation("eager")
    trace = trace_models(base, changed(base, scale_attention(1, 1.2)), DOCUMENTS)
    assert at(trace, "model.layers.1.self_attn:out.1").local_ratio is not None
    (suspect,) = trace.suspects
    assert suspect.point == "model.layers.1.self_attn.o_proj:in"
    assert "before o_proj" in suspect.operation


@pytest.mark.parametrize("dtype", HALF)
def test_two_faults_are_both_found_and_the_first_is_told_from_the_largest(
    dtype: torch.dtype,
) -> None:
    base = make_llama()

    def change(model: Any) -> None:
        scale_attention(0, 1.02)(model)
        model.model.layers[1].mlp.act_fn = nn.GELU()

    trace = trace_models(base, changed(base, change, dtype), DOCUMENTS)
    assert [s.module for s in trace.suspects] == [
        "model.layers.1.mlp.act_fn",
        "model.layers.0.self_attn",
    ]
    assert trace.first is not None
    assert trace.first.module == "model.layers.0.self_attn"


def test_error_that_is_carried_along_is_accumulated_and_not_local() -> None:
    base = make_llama()
    trace = trace_models(base, changed(base, scale_attention(0, 1.2)), DOCUMENTS)
    late = at(trace, "model.layers.1.mlp.down_proj:out")
    assert late.accumulated_ratio is not None
    assert late.local_ratio is not None
    assert late.accumulated_ratio > 1000.0
    assert late.local_ratio < 1.5


@pytest.mark.parametrize("dtype", HALF)
def test_a_healthy_port_has_no_suspect(dtype: torch.dtype) -> None:
    base = make_llama()
    trace = trace_models(base, changed(base, lambda m: None, dtype), DOCUMENTS)
    assert trace.suspects == ()
    assert trace.first is None
    assert not beyond(trace)


def cast_input(name: str, *, by_hook: bool) -> Any:
    """Compute a module in bfloat16, its input cast by a hook, or by the code that calls it."""

    def change(model: Any) -> None:
        module = model.get_submodule(name).to(torch.bfloat16)
        module.register_forward_hook(lambda _module, _inputs, output: output.float())
        if by_hook:
            module.register_forward_pre_hook(lambda _module, inputs: (inputs[0].bfloat16(),))
            return
        call = type(module).__call__

        class Called(type(module)):  # type: ignore[misc]
            def __call__(self, value: torch.Tensor) -> Any:
                return call(self, value.bfloat16())

        module.__class__ = Called

    return change


@pytest.mark.parametrize("by_hook", [True, False])
@pytest.mark.parametrize("name", ["model.layers.1.input_layernorm", "model.norm"])
def test_an_input_that_is_merely_rounded_is_the_doing_of_the_module_that_it_goes_into(
    name: str, by_hook: bool
) -> None:
    base = make_llama()
    trace = trace_models(base, changed(base, cast_input(name, by_hook=by_hook)), DOCUMENTS)
    assert [suspect.module for suspect in trace.suspects] == [name]
    assert trace.first is not None
    assert trace.first.fault == "precision"
    assert "computed in bfloat16" in trace.first.operation


@pytest.mark.slow
def test_another_attention_implementation_is_healthy() -> None:
    base = make_llama()
    for dtype in HALF:
        eager = changed(base, lambda m: m.set_attn_implementation("eager"), dtype)
        trace = trace_models(base, eager, DOCUMENTS)
        assert trace.suspects == ()
        assert trace.twin is not None
        assert trace.twin.attention == ("sdpa", "eager")


@pytest.mark.parametrize("dtype", HALF[:2])
@pytest.mark.parametrize(
    ("weight", "change", "looks"),
    [
        ("self_attn.q_proj", lambda w: w.T, "transposed"),
        ("mlp.up_proj", lambda w: w.flip(0), "rows in another order"),
        ("mlp.down_proj", lambda w: w[:, torch.randperm(48)], "columns in another order"),
        ("self_attn.o_proj", lambda w: w * 1.05, "scaled by 1.05"),
        ("self_attn.v_proj", lambda w: w * 0.0, "all zeros"),
        ("mlp.up_proj", lambda w: w[[1, 0, *range(2, len(w))]], "rows 0 and 1 exchanged"),
        ("self_attn.o_proj", lambda w: w + 0.03 * w.std() * torch.randn_like(w), "differs by"),
        ("self_attn.k_proj", lambda w: w.roll(1, 1), "shifted by one along axis 1"),
    ],
)
def test_a_wrong_weight_is_named_with_what_it_looks_like(
    dtype: torch.dtype, weight: str, change: Any, looks: str
) -> None:
    base = make_llama()
    name = f"model.layers.1.{weight}"

    def plant(model: Any) -> None:
        module = model.get_submodule(name)
        module.weight.data = change(module.weight.data).contiguous()

    trace = trace_models(base, changed(base, plant, dtype), DOCUMENTS)
    assert trace.suspects[0].module == name
    assert trace.suspects[0].fault == "weights"
    assert looks in trace.suspects[0].operation


def quantise(*names: str) -> Any:
    def change(model: Any) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and any(part in name for part in names):
                weight = module.weight.data
                values = round_weights(weight.float().numpy(), "int8 per channel")
                module.weight.data = torch.from_numpy(np.array(values)).to(weight.dtype)

    return change


@pytest.mark.parametrize("dtype", HALF[:2])
def test_weights_that_only_their_own_layer_can_read_are_compared_by_what_it_computes(
    dtype: torch.dtype,
) -> None:
    base = make_llama()
    trace = trace_models(base, changed(base, pack, dtype), DOCUMENTS)
    assert trace.suspects == ()
    assert trace.twin is not None
    assert trace.twin.weights == "int8 per channel"

    def plant(model: Any) -> None:
        projection = model.model.layers[1].self_attn.q_proj
        projection.weight.data = projection.weight.data.T.contiguous()
        pack(model)

    (suspect,) = trace_models(base, changed(base, plant, dtype), DOCUMENTS).suspects
    assert suspect.module == "model.layers.1.self_attn.q_proj"
    assert "looks transposed" in suspect.operation


@pytest.mark.parametrize("dtype", HALF[:2])
def test_what_is_quantised_alike_in_all_layers_is_a_choice_and_one_layer_is_not(
    dtype: torch.dtype,
) -> None:
    base = make_llama()
    said = {"weights": "int8"}
    for choice in ((".",), ("q_proj",)):
        candidate = changed(base, quantise(*choice), dtype)
        assert trace_models(base, candidate, DOCUMENTS, said=said).suspects == ()
    candidate = changed(base, quantise("layers.1.mlp"), dtype)
    trace = trace_models(base, candidate, DOCUMENTS, said=said)
    named = {suspect.module for suspect in trace.suspects}
    assert named == {f"model.layers.1.mlp.{part}_proj" for part in ("gate", "up", "down")}
    assert all("rounded to int8" in suspect.operation for suspect in trace.suspects)


def test_a_norm_in_bfloat16_is_a_fault_of_precision() -> None:
    base = make_llama()

    def plant(model: Any) -> None:
        norm = model.model.layers[1].input_layernorm
        own = norm.forward
        norm.forward = lambda x: own(x.bfloat16()).float()

    trace = trace_models(base, changed(base, plant), DOCUMENTS)
    (suspect,) = trace.suspects
    assert (suspect.module, suspect.fault) == ("model.layers.1.input_layernorm", "precision")
    assert "computed in bfloat16" in suspect.operation


def test_nan_is_told_with_the_module_where_it_arises() -> None:
    base = make_llama()

    def plant(model: Any) -> None:
        model.model.layers[1].mlp.down_proj.weight[3, 4] = math.nan

    trace = trace_models(base, changed(base, plant), DOCUMENTS)
    assert [s.module for s in trace.suspects] == ["model.layers.1.mlp.down_proj"]
    (origin,) = trace.nonfinite
    assert (origin.side, origin.point) == ("candidate", "model.layers.1.mlp.down_proj:out")
    assert origin.elements == 8


def test_a_trace_leaves_both_models_as_they_were() -> None:
    base, candidate = make_llama(), make_llama().bfloat16()
    base.train()
    before = [p.clone() for p in (*base.parameters(), *candidate.parameters())]
    trace_models(base, candidate, DOCUMENTS)
    after = [*base.parameters(), *candidate.parameters()]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(before, after, strict=True))
    assert base.training
    assert all(module.training for module in base.modules())
    assert base.config.use_cache
    for module in (*base.modules(), *candidate.modules()):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_recorded_activations_that_do_not_fit_in_memory_give_the_same_trace() -> None:
    base = make_llama()
    candidate = changed(base, scale_attention(1, 1.02), torch.bfloat16)
    assert trace_models(base, candidate, DOCUMENTS, memory=4096) == trace_models(
        base, candidate, DOCUMENTS
    )


def test_a_table_of_positions_that_the_candidate_computes_in_its_dtype_is_no_fault() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.register_buffer("table", torch.randn(5, 16), persistent=False)
            self.dense = nn.Linear(16, 16)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.dense(values + self.table)

    base, candidate = Positions(), Positions().bfloat16()
    values = np.random.default_rng(0).standard_normal((1, 5, 16)).astype(np.float32)
    assert trace_models(base, candidate, [{"values": values}]).suspects == ()
    assert base.table.dtype is torch.float32


Two = namedtuple("Two", "sum difference")


class Odd(nn.Module):
    """What is unusual in one: a module that runs twice, one that never runs, named outputs."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, *, left: torch.Tensor, right: torch.Tensor) -> Two:
            return Two(self.inner(left) + right, {"apart": [left - right, None]})

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.shared.weight
        self.unused = nn.Linear(4, 4)
        self.pair = self.Pair()
        self.scale = 1.0
        self.relu = nn.ReLU(inplace=True)

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        once = self.shared(values)
        twice = self.shared(once) * self.scale
        pair = self.pair(left=self.tied(twice), right=once)
        return {"out": self.relu(pair.sum * pair.difference["apart"][0])}


def odd_inputs() -> list[dict[str, Any]]:
    return [{"values": np.random.default_rng(0).standard_normal((1, 5, 4)).astype(np.float32)}]


def test_a_module_that_runs_twice_has_points_for_each_call_and_one_that_never_runs_is_listed() -> (
    None
):
    base = Odd()
    trace = trace_models(base, changed(base, lambda m: setattr(m, "scale", 1.1)), odd_inputs())
    assert [s.point for s in trace.suspects] == ["tied:in"]
    assert trace.never_run == ("unused",)
    points = {layer.point for layer in trace.layers}
    assert {"shared:out", "shared#2:out", "pair:in", "pair:out", "pair:out.1"} <= points
    assert {"relu:in", "relu:out", "(root):out"} <= points


def test_a_weight_that_two_modules_share_is_blamed_on_both() -> None:
    base = Odd()

    def plant(model: Any) -> None:
        model.shared.weight *= 1.1

    trace = trace_models(base, changed(base, plant), odd_inputs())
    assert {s.module for s in trace.suspects} == {"shared", "tied"}


class Tower(nn.Module):
    """Linear layers under names of one's own."""

    def __init__(self, name: str, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.scale = name, scale
        self.add_module(name, nn.ModuleList(nn.Linear(n, n + 1) for n in (4, 5, 6)))
        self.first = nn.LayerNorm(4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.first(values)
        for layer in getattr(self, self.parts):
            values = layer(values).tanh() * self.scale
        return values


def test_modules_under_other_names_are_aligned_by_shape_and_order() -> None:
    trace = trace_models(Tower("layers"), Tower("blocks", 1.1), odd_inputs())
    assert [s.module for s in trace.suspects] == ["(root)"]
    points = {layer.point for layer in trace.layers}
    assert {"layers.0:out", "layers.1:in", "layers.2:out"} <= points
    assert trace.unaligned == ()


def test_points_of_other_shapes_are_listed_and_two_other_models_are_refused() -> None:
    base = make_llama()
    wider = make_llama(intermediate_size=80)
    trace = trace_models(base, wider, DOCUMENTS)
    reasons = {each.name: each.reason for each in trace.unaligned}
    assert "shape" in reasons["model.layers.0.mlp.up_proj:out"]
    with pytest.raises(EvaluationError, match="no module in common"):
        trace_models(base, nn.Sequential(nn.Conv1d(1, 2, 3)), DOCUMENTS)


def test_a_model_that_fails_is_named_with_the_module_in_which_it_did() -> None:
    base = make_llama()

    def plant(model: Any) -> None:
        model.model.layers[1].mlp.act_fn.forward = lambda x: x @ x

    with pytest.raises(EvaluationError, match=r"failed in model\.layers\.1\.mlp\.act_fn"):
        trace_models(base, changed(base, plant), DOCUMENTS)


def test_errors_by_token_and_head_show_which_head_is_wrong() -> None:
    base = make_llama()

    def plant(model: Any) -> None:
        attention = model.model.layers[1].self_attn.o_proj
        attention.register_forward_pre_hook(
            lambda _m, args: torch.cat([args[0][..., :8] * 1.1, args[0][..., 8:]], -1)
        )

    trace = trace_models(
        base, changed(base, plant), DOCUMENTS, detail=["model.layers.1.self_attn.o_proj:in"]
    )
    (detail,) = trace.details
    assert [len(tokens) for tokens in detail.tokens] == [8, 8]
    assert detail.heads[0] == pytest.approx(0.1, rel=1e-3)
    assert max(detail.heads[1:]) < 1e-6
