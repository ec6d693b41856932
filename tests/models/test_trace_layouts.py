"""What is laid out otherwise and undone by what reads it is no suspect; what is not, is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from other_layouts import (
    LAYOUTS,
    fold_and_rotate,
    fold_attention_scale,
    fold_latent_norm,
    fold_norm,
    fold_router_scale,
    fold_value_biases,
    interleave_everywhere,
    layer_of,
    layers_of,
    make,
    reorder_experts,
    reorder_heads,
    reorder_queries,
    roll_rows,
    scale_norms,
    scale_rotary_pairs,
    scale_values,
    turn_residual,
)
from traced_models import Recording, changed, make_sequences

from evalguard.core.trace_points import ModelRounding
from evalguard.core.trace_record import Trace
from evalguard.core.weight_precision import round_weights
from evalguard.tracing.measure.forced_trace import trace_models

DOCUMENTS = make_sequences(count=2, length=16)
EVERY = ["values", "heads", "norm", "norm and heads"]
# One of each other architecture: all of them take minutes.
OTHERS = [
    ("gemma2", "norm"),
    ("mixtral", "experts"),
    ("gpt2", "heads"),
    ("gpt_neox", "values"),
    ("deepseek_v3", "rotary_rows"),
]
KINDS = [
    *(pytest.param("llama", layout) for layout in EVERY),
    *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS),
]


def trace(base: Any, candidate: Any) -> Trace:
    return trace_models(base, candidate, DOCUMENTS)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        read = [model(torch.from_numpy(one["input_ids"])).logits for one in DOCUMENTS]
    return torch.cat(read)


def suspects(found: Trace) -> list[str]:
    return [one.module for one in found.suspects]


@pytest.mark.parametrize(("kind", "layout"), KINDS)
def test_another_layout_with_the_same_logits_is_no_suspect(kind: str, layout: str) -> None:
    base = make(kind)
    candidate = changed(base, lambda model: LAYOUTS[kind][layout](layer_of(model, 1)))
    assert torch.dist(logits(candidate), logits(base)) < 1e-5 * logits(base).norm()
    found = trace(base, candidate)
    assert suspects(found) == []
    assert found.first is None
    assert len(found.other_layouts) >= 2
    assert all(one.cancels_at for one in found.other_layouts)
    assert {point.cancels_at for point in found.layers} > {""}


@pytest.mark.slow
@pytest.mark.parametrize("layout", EVERY)
@pytest.mark.parametrize("number", [0, 2])
def test_a_fault_before_or_behind_it_is_the_only_suspect(layout: str, number: int) -> None:
    base = make("llama")
    faults: list[str] = []

    def change(model: Any) -> None:
        LAYOUTS["llama"][layout](layer_of(model, 1))
        faults.append(roll_rows(layer_of(model, number)))

    found = trace(base, changed(base, change))
    named = [one.rpartition(f".{number}.")[2] for one in suspects(found)]
    assert named == faults
    assert found.other_layouts


def reorder_heads_and_scale(layer: Any) -> None:
    """A fault of the queries beside another layout, which attention makes a small one."""
    reorder_heads(layer)
    layer.self_attn.q_proj.weight.mul_(1.02)


# In 16 bits the first two are within the floor behind attention.
NEARLY: list[tuple[str, Callable[[Any], None], str, torch.dtype]] = [
    ("llama", partial(scale_values, undone=3.99), "self_attn.v_proj", torch.bfloat16),
    ("llama", reorder_heads_and_scale, "self_attn.q_proj", torch.bfloat16),
    ("mixtral", partial(reorder_experts, left=True), "mlp.gate", torch.float32),
]


@pytest.mark.parametrize(
    ("kind", "change", "first", "dtype"), NEARLY, ids=["values", "queries", "experts"]
)
def test_what_nearly_cancels_is_a_fault(
    kind: str, change: Callable[[Any], None], first: str, dtype: torch.dtype
) -> None:
    base = make(kind)
    found = trace(base, changed(base, lambda model: change(layer_of(model, 1)), dtype))
    assert found.first is not None
    assert found.first.module.endswith(f".1.{first}")
    assert found.other_layouts == ()


def test_nothing_is_said_to_cancel_in_weights_that_are_rounded_to_integers() -> None:
    base = make("llama")

    def change(model: Any) -> None:
        reorder_heads(layer_of(model, 1))
        for layer in model.model.layers:
            for module in layer.modules():
                if isinstance(module, torch.nn.Linear):
                    rounded = round_weights(module.weight.numpy(), "int8 per channel")
                    module.weight.copy_(torch.from_numpy(rounded))

    found = trace_models(base, changed(base, change), DOCUMENTS, said={"weights": "int8"})
    assert found.twin is not None
    assert found.twin.weights == "int8 per channel"
    assert "model.layers.1.self_attn.q_proj" in suspects(found)
    assert found.other_layouts == ()


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_it_cancels_in_16_bits_too(kind: str) -> None:
    base = make("llama")
    with torch.no_grad():
        for parameter in base.parameters():  # numbers that 16 bits hold, as in most checkpoints
            parameter.data = parameter.data.bfloat16().to(getattr(torch, kind))
    change = reorder_heads
    candidate = changed(base, lambda model: change(layer_of(model, 1)), torch.bfloat16)
    found = trace(base, candidate)
    assert suspects(found) == []
    assert len(found.other_layouts) >= 2


def in_bfloat16(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


def fold_everywhere(model: Any) -> None:
    for layer in model.model.layers:
        fold_and_rotate(layer)


WHOLE: dict[str, Callable[[Any], None]] = {
    "folded": fold_everywhere,
    "rotated": turn_residual,
    "permuted": partial(turn_residual, rotate=False),
}


@pytest.mark.parametrize("layout", ["folded", "rotated"])
def test_a_layout_that_16_bits_rounded_anew_is_no_suspect(layout: str) -> None:
    base = make("llama", num_hidden_layers=2)
    found = trace_models(base, in_bfloat16(changed(base, WHOLE[layout])), DOCUMENTS[:1])
    assert suspects(found) == []
    assert len(found.other_layouts) >= 12
    assert all(one.cancels_at for one in found.other_layouts)


def fold_logits_scale(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight / model.config.logits_scaling)
    model.config.logits_scaling = 1.0


def fold_embedding_scale(model: Any) -> None:
    model.model.embed_tokens.weight.mul_(32**0.5)
    model.model.embed_tokens.embed_scale = torch.tensor(1.0)


def in_all_layers(change: Callable[[Any], None]) -> Callable[[Any], None]:
    def of_all(model: Any) -> None:
        for layer in layers_of(model):
            change(layer)

    return of_all


# What porters fold: the architecture, and what makes the port.
CONVENTIONS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "rotary pairs": ("llama", in_all_layers(scale_rotary_pairs)),
    "value biases": ("opt", in_all_layers(fold_value_biases)),
    "fused value biases": ("gpt2", in_all_layers(fold_value_biases)),
    "attention scale": ("llama", in_all_layers(fold_attention_scale)),
    "its root in each": ("llama", in_all_layers(partial(fold_attention_scale, in_keys=True))),
    "norms of queries and keys": ("qwen3", in_all_layers(scale_norms)),
    "norms that add 1": ("gemma", in_all_layers(fold_norm)),
    "latent norm": ("deepseek_v3", in_all_layers(fold_latent_norm)),
    "router scale": ("deepseek_v3", in_all_layers(fold_router_scale)),
    "logits scale": ("granite", fold_logits_scale),
    "embedding scale": ("gemma", fold_embedding_scale),
}
_QUICK = ("rotary pairs", "value biases")


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in _QUICK else pytest.mark.slow) for one in CONVENTIONS],
)
def test_a_convention_that_was_folded_and_rounded_to_16_bits_is_no_suspect(name: str) -> None:
    kind, change = CONVENTIONS[name]
    base = make(kind, num_hidden_layers=2, tie_word_embeddings=False)
    found = trace_models(base, in_bfloat16(changed(base, change)), DOCUMENTS[:1])
    assert suspects(found) == []
    assert len(found.other_layouts) >= 1


# A fault in such a layer, and the modules of which it is one.
NOT_UNDONE: dict[str, tuple[str, Callable[[Any], object], set[str]]] = {
    "rotary pairs": (
        "llama", partial(scale_rotary_pairs, undone=0.99), {"self_attn.q_proj"},
    ),
    "by less than a rounding": (
        "llama", partial(scale_rotary_pairs, undone=0.9975),
        {"self_attn.q_proj", "self_attn.k_proj"},
    ),
    "value biases": ("opt", partial(fold_value_biases, share=0.9), {"self_attn.out_proj"}),
    "beside": (
        "llama", lambda layer: (scale_rotary_pairs(layer), roll_rows(layer)), {"mlp.up_proj"},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_UNDONE)
def test_a_folded_convention_that_is_not_quite_undone_is_a_fault(name: str) -> None:
    kind, fault, guilty = NOT_UNDONE[name]
    base = make(kind, num_hidden_layers=2)
    candidate = in_bfloat16(changed(base, lambda model: fault(layer_of(model, 1))))
    named = suspects(trace_models(base, candidate, DOCUMENTS[:1]))
    assert {one.rpartition("layers.1.")[2] for one in named} == guilty


@pytest.mark.parametrize("place", ["o_proj", pytest.param("q_proj", marks=pytest.mark.slow)])
def test_a_fault_beside_rotary_rows_and_the_switch_that_says_their_order_is_the_only_suspect(
    place: str,
) -> None:
    base = make("deepseek_v3", num_hidden_layers=2)

    def change(model: Any) -> None:
        interleave_everywhere(model)
        layer_of(model, 1).self_attn.get_submodule(place).weight[3] = 0.0

    candidate = in_bfloat16(changed(base, change))
    found = trace_models(base, candidate, DOCUMENTS[:1])
    assert suspects(found) == [f"model.layers.1.self_attn.{place}"]
    moved = {f"model.layers.{one}.self_attn.{of}" for one in (0, 1) for of in _ROTATED}
    assert {one.module for one in found.other_layouts} == moved - {*suspects(found)}


_ROTATED = ("q_proj", "kv_a_proj_with_mqa")


@pytest.mark.slow
def test_rotary_rows_whose_switch_says_another_order_are_suspects() -> None:
    base = make("deepseek_v3", num_hidden_layers=2)

    def change(model: Any) -> None:
        interleave_everywhere(model)
        model.config.rope_interleave = False
        model.config.use_cache = not model.config.use_cache  # another one, that says nothing of it

    found = trace_models(base, changed(base, change), DOCUMENTS[:1])
    named = {f"model.layers.{one}.self_attn.{of}" for one in (0, 1) for of in _ROTATED}
    assert {*suspects(found)} == named
    assert found.other_layouts == ()


def roll_up(model: Any) -> str:
    return f"model.layers.1.{roll_rows(layer_of(model, 1))}"


def scale_query(model: Any) -> str:
    layer_of(model, 1).self_attn.q_proj.weight.mul_(1.02)
    return "model.layers.1.self_attn.q_proj"


def zero_a_value(model: Any) -> str:
    layer_of(model, 0).self_attn.v_proj.weight[3] = 0.0
    return "model.layers.0.self_attn.v_proj"


def turn_back_a_writer(model: Any) -> str:
    layer_of(model, 1).mlp.down_proj.weight.copy_(layer_of(model, 0).mlp.down_proj.weight)
    return "model.layers.1.mlp.down_proj"


FAULTS = [roll_up, scale_query, zero_a_value, turn_back_a_writer]


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        ("rotated", scale_query),
        *(
            pytest.param(layout, fault, marks=pytest.mark.slow)
            for layout in WHOLE
            for fault in FAULTS
            if (layout, fault) != ("rotated", scale_query)
        ),
    ],
)
def test_a_fault_in_such_a_layout_is_the_only_suspect(
    layout: str, fault: Callable[[Any], str]
) -> None:
    base = make("llama", num_hidden_layers=2)
    faulty: list[str] = []

    def change(model: Any) -> None:
        WHOLE[layout](model)
        faulty.append(fault(model))

    found = trace_models(base, in_bfloat16(changed(base, change)), DOCUMENTS[:1])
    if (layout, fault) == ("folded", turn_back_a_writer):
        # the order of rows is told by what reads them, and that is another matrix here
        faulty += ["model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"]
    assert sorted(suspects(found)) == sorted(faulty)
    assert found.other_layouts


def test_it_has_to_cancel_in_every_document() -> None:
    """In the second one alone the heads are put out of their order before they are read."""
    base = make("llama")
    candidate = changed(base, lambda model: reorder_heads(layer_of(model, 1)))
    second = torch.from_numpy(DOCUMENTS[1]["input_ids"])
    reads: list[bool] = []
    reader = candidate.model.layers[1].self_attn.o_proj
    own = reader.forward
    reader.forward = lambda x: own(x.roll(8, -1) if reads[-1] else x)
    candidate.model.embed_tokens.register_forward_pre_hook(
        lambda _module, ids: reads.append(torch.equal(ids[0], second))
    )
    found = trace(base, candidate)
    assert "model.layers.1.self_attn.q_proj" in suspects(found)
    assert found.other_layouts == ()


def record(candidate: Any, keep: Callable[[str], bool] = lambda _name: True) -> Recording:
    return Recording.of(
        candidate, DOCUMENTS, rounding=ModelRounding(precision="float32"), keep=keep
    )


def test_so_it_is_of_recorded_activations() -> None:
    base = make("llama")

    def change(model: Any) -> None:
        reorder_heads(layer_of(model, 1))

    found = trace(base, record(changed(base, change)))
    assert suspects(found) == []
    assert len(found.other_layouts) >= 2

    def with_fault(model: Any) -> None:
        change(model)
        roll_rows(layer_of(model, 2))

    assert suspects(trace(base, record(changed(base, with_fault)))) == [
        "model.layers.2.mlp.up_proj"
    ]


def test_where_the_layers_output_was_not_recorded_either_nothing_is_said_to_cancel() -> None:
    base = make("llama")
    candidate = changed(base, lambda model: scale_values(layer_of(model, 1)))

    def keep(name: str) -> bool:
        return not any(f"layers.{number}" in name for number in (1, 2)) or "1.self_attn.v" in name

    found = trace(base, record(candidate, keep))
    assert "model.layers.1.self_attn.v_proj" in suspects(found)
    assert found.other_layouts == ()


# A port that is healthy: what a module does otherwise is taken away by what reads it, or made up
# for by a number that its code holds.


def scale(model: Any, by: float, *names: str) -> None:
    for name, parameter in model.named_parameters():
        if any(one in name for one in names):
            parameter.mul_(by)


def centre(model: Any) -> None:
    """What every norm takes away from the residual stream, and a softmax from the logits."""
    body = model.transformer
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    written = [one for h in body.h for one in (h.attn.c_proj, h.mlp.c_proj)]
    for weight in (body.wte.weight, body.wpe.weight, *(one.weight for one in written)):
        weight.sub_(weight.mean(-1, keepdim=True))
    for module in written:
        module.bias.sub_(module.bias.mean())
    model.lm_head.weight.sub_(model.lm_head.weight.mean(0, keepdim=True))


def lose_key_biases(model: Any) -> None:
    for h in model.transformer.h:
        h.attn.c_attn.bias[32:64] = 0.0


def shift_routers(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.gate.weight.add_(torch.linspace(-0.5, 0.5, 32))


def multiply_out(model: Any) -> None:
    scale(model, 3.0, "embed_tokens")
    scale(model, 1 / 0.8, "lm_head")
    scale(model, 0.7, "o_proj", "down_proj")
    scale(model, 0.4 * 8**0.5, "q_proj")


def count_from_one(model: Any) -> None:
    """Gemma's norms store their weights from 0, and its embedding scales."""
    scale(model, 32**0.5, "embed_tokens")
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.add_(1.0)


# The base, the activation of the Llama that it becomes ("": it stays what it is), what makes the
# port, and a module of which a fault is inside or beside what was changed.
Port = tuple[str, str, Callable[[Any], None], str]
PORTS: dict[str, Port] = {
    "before a norm": (
        "gemma2", "", lambda model: scale(model, 2.0, "down_proj", "o_proj"), "mlp.down_proj",
    ),
    "key biases": ("gpt2", "", lose_key_biases, "attn.c_attn"),
    "centred": ("gpt2", "", centre, "attn.c_proj"),
    "routers": ("mixtral", "", shift_routers, "mlp.gate"),
    "whole stream": (
        "llama", "", lambda model: scale(model, 4.0, "embed_tokens", "o_proj", "down_proj"),
        "self_attn.o_proj",
    ),
    "multipliers": ("granite", "silu", multiply_out, "self_attn.o_proj"),
    "norms from 0": ("gemma", "gelu_pytorch_tanh", count_from_one, "mlp.down_proj"),
}  # fmt: skip
EACH_PORT = [
    pytest.param(name, marks=() if name == "key biases" else pytest.mark.slow) for name in PORTS
]


def port(name: str, fault: Callable[[torch.Tensor], torch.Tensor] | None = None) -> tuple[Any, Any]:
    kind, activation, change, place = PORTS[name]
    base = make(kind, tie_word_embeddings=False)
    becomes = {"hidden_act": activation} if activation else {}
    candidate = make("llama" if activation else kind, tie_word_embeddings=False, **becomes)
    candidate.load_state_dict(base.state_dict())
    with torch.no_grad():
        change(candidate)
        if fault is not None:
            weight = layer_of(candidate, 1).get_submodule(place).weight
            weight.copy_(fault(weight))
    return base, candidate


@pytest.mark.parametrize("name", EACH_PORT)
def test_what_every_reader_takes_away_is_no_suspect(name: str) -> None:
    base, candidate = port(name)
    ours, theirs = (logits(model).log_softmax(-1) for model in (base, candidate))
    assert torch.dist(ours, theirs) < 1e-5 * ours.norm()
    found = trace_models(base, candidate, DOCUMENTS[:1])
    assert suspects(found) == []
    assert found.other_layouts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["before a norm", "key biases", "whole stream"])
def test_a_fault_in_such_a_port_is_the_only_suspect(name: str) -> None:
    base, candidate = port(name, lambda weight: weight.roll(1, 0))
    found = trace_models(base, candidate, DOCUMENTS[:1])
    assert [one.rpartition(".1.")[2] for one in suspects(found)] == [PORTS[name][-1]]


@pytest.mark.slow
def test_a_multiplier_that_is_wrong_in_one_layer_is_the_only_suspect() -> None:
    base, candidate = port("multipliers", lambda weight: weight * 1.02)
    found = trace_models(base, candidate, DOCUMENTS[:1])
    assert suspects(found) == ["model.layers.1.self_attn.o_proj"]


@pytest.mark.slow
def test_a_factor_of_rows_that_no_token_wakes_is_a_fault() -> None:
    """Nothing behind their ReLU tells, on these documents, by which factor they were multiplied."""
    base = make("opt")
    with torch.no_grad():
        for layer in base.model.decoder.layers:
            layer.fc1.bias.fill_(-50.0)
    candidate = changed(base, lambda model: scale(model, 2.0, "fc1"))
    assert torch.equal(logits(candidate), logits(base))
    named = suspects(trace_models(base, candidate, DOCUMENTS[:1]))
    assert [one for one in named if one.endswith("fc1")] == named
    assert len(named) == 3


@pytest.mark.slow
def test_a_factor_before_a_norm_whose_epsilon_is_felt_is_a_fault() -> None:
    base = make("gemma2", rms_norm_eps=1e-2)
    candidate = changed(base, lambda model: scale(model, 2.0, "down_proj"))
    assert len(suspects(trace_models(base, candidate, DOCUMENTS[:1]))) == 3


@pytest.mark.slow
def test_what_reaches_the_output_comes_first_where_no_layout_is_known() -> None:
    """Weights of eight bits hide whether errors cancel; the first layer's do."""
    base = make("llama")

    def change(model: Any) -> None:
        reorder_queries(layer_of(model, 0))
        roll_rows(layer_of(model, 2))
        for module in model.model.layers.modules():
            if isinstance(module, torch.nn.Linear):
                rounded = round_weights(module.weight.numpy(), "int8 per channel")
                module.weight.copy_(torch.from_numpy(rounded))

    found = trace_models(base, changed(base, change), DOCUMENTS, said={"weights": "int8"})
    assert found.first is not None
    assert found.first.module == suspects(found)[0] == "model.layers.2.mlp.up_proj"
    assert {*suspects(found)[1:]} == {
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.o_proj",
    }
