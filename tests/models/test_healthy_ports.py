"""What a healthy port rounds is no fault, however it sums; what is no rounding stays a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hubert_port import NONE, Faults, Port, Sums, make_hubert, make_wave
from traced_models import Recording

from evalguard.core.trace_points import ModelRounding
from evalguard.core.trace_record import Trace
from evalguard.tracing.measure.forced_trace import trace_models
from evalguard.tracing.measure.suspects import THRESHOLD, plain_sum_error

CONV, LAYER = "feature_extractor.conv_layers", "encoder.layers.0"
# Points of a dump: all that the port shows; a few, with up to thirty operations between two.
DENSE: tuple[str, ...] = ("",)
COARSE = (f"{CONV}.0.conv:in", "projection:out", "final_layer_norm:out", "(root):out")
ENDS = (f"{CONV}.0.conv:in", "(root):out")


Ran = tuple[Any, Any, dict[str, Any]]


def ported(
    sums: Sums, faults: Faults = NONE, *, hidden: int = 64, layers: int = 1, frames: int = 24
) -> Ran:
    """A model, its input, and what flows in a port of it."""
    model, wave = make_hubert(hidden, layers), make_wave(frames)
    return model, wave, Port(model, sums, faults)(wave)


def trace_port(ran: Ran, kept: tuple[str, ...]) -> Trace:
    model, wave, found = ran
    shown = {name: one for name, one in found.items() if any(part in name for part in kept)}
    recording = Recording(ModelRounding(precision="float32"), [shown])
    return trace_models(model, recording, [{"input_values": wave}])


def largest(trace: Trace) -> float:
    return max(one.local_ratio or 0.0 for one in trace.layers)


@pytest.mark.parametrize("sums", ["naive", "pairwise", "float64"])
@pytest.mark.parametrize("hidden", [64, 256])
def test_a_healthy_port_is_not_blamed_however_it_sums(hidden: int, sums: Sums) -> None:
    ran = ported(sums, hidden=hidden)
    for kept in (DENSE, COARSE, ENDS):
        trace = trace_port(ran, kept)
        assert not trace.suspects
        assert largest(trace) < 0.5 * THRESHOLD


@pytest.mark.parametrize(
    ("hidden", "frames"),
    [
        pytest.param(1024, 24, marks=pytest.mark.slow),
        pytest.param(64, 2000, marks=pytest.mark.slow),
        pytest.param(4096, 8, marks=pytest.mark.nightly),
    ],
)
def test_nor_is_one_with_long_sums(hidden: int, frames: int) -> None:
    """Of 16,384 terms in the positional convolution, of 4,000 frames in the group norm."""
    ran = ported("naive", hidden=hidden, frames=frames)
    for kept in (DENSE, COARSE, ENDS):
        trace = trace_port(ran, kept)
        assert not trace.suspects
        assert largest(trace) < 0.6 * THRESHOLD


# What is wrong in the port, and where it shows in a dense dump.
PLANTED: dict[str, tuple[Faults, str]] = {
    "epsilon of a layer norm": (
        Faults(epsilon={f"{LAYER}.layer_norm": 1e-12}), f"{LAYER}.layer_norm:out",
    ),
    "epsilon of the group norm": (
        Faults(epsilon={f"{CONV}.0.layer_norm": 1e-12}), f"{CONV}.0.layer_norm:out",
    ),
    "tanh for erf in a convolution": (
        Faults(tanh_gelu=frozenset({f"{CONV}.1.activation"})), f"{CONV}.1.activation:out",
    ),
    "tanh for erf in a layer": (
        Faults(tanh_gelu=frozenset({f"{LAYER}.feed_forward.intermediate_act_fn"})),
        f"{LAYER}.feed_forward.intermediate_act_fn:out",
    ),
    "1 / sqrt(d + 1)": (
        Faults(scale={f"{LAYER}.attention": (32 / 33) ** 0.5}), f"{LAYER}.attention.out_proj:in",
    ),
    "no bias": (
        Faults(no_bias=frozenset({f"{LAYER}.attention.v_proj"})), f"{LAYER}.attention.v_proj:out",
    ),
    "queries by the keys' weights": (
        Faults(swapped={f"{LAYER}.attention.q_proj": f"{LAYER}.attention.k_proj"}),
        f"{LAYER}.attention.q_proj:out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_located_where_it_is(name: str) -> None:
    faults, point = PLANTED[name]
    (suspect,) = trace_port(ported("naive", faults), DENSE).suspects
    assert suspect.point == point
    assert suspect.local_ratio > 4 * THRESHOLD


@pytest.mark.parametrize("name", [one for one in PLANTED if "of a layer norm" not in one])
def test_a_fault_in_a_long_segment_is_located_in_that_segment(name: str) -> None:
    faults, point = PLANTED[name]
    (suspect,) = trace_port(ported("naive", faults), COARSE).suspects
    behind = f"{LAYER}.final_layer_norm:out" if LAYER in point else "projection:out"
    assert suspect.point.endswith(behind)


def test_the_headline_is_no_excess_of_roundings_size_before_a_fault() -> None:
    small = PLANTED["epsilon of the group norm"][0].epsilon
    swapped = PLANTED["queries by the keys' weights"][0].swapped
    trace = trace_port(ported("naive", Faults(epsilon=small, swapped=swapped)), COARSE)
    assert len(trace.suspects) == 2
    assert min(one.local_ratio for one in trace.suspects) < 4 * THRESHOLD
    assert trace.first == trace.suspects[0]
    alone = trace_port(ported("naive", Faults(epsilon=small)), COARSE)
    assert alone.first == alone.suspects[0]


def test_the_smallest_error_that_is_seen_grows_with_the_root_of_the_longest_sum() -> None:
    """Nothing above three parts in a million is lost in a segment of 20 operations of 256."""

    model, wave, found = ported("naive", hidden=256)
    name = "feature_projection.projection:out"
    noise = np.random.default_rng(0).standard_normal(found[name].shape)

    def seen(size: float, kept: tuple[str, ...]) -> bool:
        moved = (found[name] * (1 + size * noise)).astype(np.float32)
        return bool(trace_port((model, wave, {**found, name: moved}), kept).suspects)

    assert seen(2e-6, DENSE)
    assert seen(4e-6, COARSE)


@pytest.mark.parametrize(
    "draw", [np.random.Generator.standard_normal, np.random.Generator.random],
    ids=["of any sign", "of one sign"],
)  # fmt: skip
@pytest.mark.parametrize("terms", [64, 1024, 16384])
def test_a_running_sum_rounds_as_the_formula_says(
    terms: int, draw: Callable[[Any, tuple[int, int]], Any]
) -> None:
    values = draw(np.random.default_rng(0), (terms, 500)).astype(np.float32)
    exact = values.sum(axis=0, dtype=np.float64)
    running = np.add.accumulate(values, axis=0)[-1]
    error = np.linalg.norm(running - exact) / np.linalg.norm(exact)
    assert 0.5 < error / plain_sum_error(terms) < 1.2


# Module, its sums, and whether what it is given is rounded or its weights alone.
HALF: dict[str, tuple[str, Sums, bool]] = {
    "a convolution": (f"{CONV}.1.conv", "naive", True),
    "the first one": (f"{CONV}.0.conv", "float64", True),
    "its weights alone": (f"{CONV}.2.conv", "naive", False),
    "a linear module": (f"{LAYER}.attention.v_proj", "naive", True),
    "one behind an activation": (f"{LAYER}.feed_forward.output_dense", "pairwise", True),
}


@pytest.mark.parametrize("name", HALF)
def test_products_in_float16_are_named_as_such_though_their_sums_are_float32(name: str) -> None:
    module, sums, inputs = HALF[name]
    where = frozenset({module})
    faults = Faults(half_input=where) if inputs else Faults(half_weight=where)
    (suspect,) = trace_port(ported(sums, faults), DENSE).suspects
    assert suspect.module == module
    assert suspect.fault == "precision"
    assert suspect.operation.endswith("computed in float16")


@pytest.mark.parametrize("name", ["tanh for erf in a convolution", "1 / sqrt(d + 1)"])
def test_a_fault_as_large_as_float16_is_another_computation(name: str) -> None:
    (suspect,) = trace_port(ported("naive", PLANTED[name][0]), DENSE).suspects
    assert suspect.fault == "operation"


DROPPED = {
    "in the middle": (f"{CONV}.2.conv", 5, "shifted (from row 5 on, 1 row deleted)"),
    "the first": (f"{CONV}.2.conv", 0, "shifted (from row 0 on, 1 row deleted)"),
    "the last": (f"{CONV}.2.conv", 23, "rows cut off (1 row at the end, from row 23 on)"),
    "of many": (f"{CONV}.0.conv", 50, "shifted (from row 50 on, 1 row deleted)"),
    "two": (f"{CONV}.0.conv", slice(3, 5), "shifted (from row 3 on, 2 rows deleted)"),
}


@pytest.mark.parametrize("name", DROPPED)
def test_a_dropped_frame_is_located_and_named(name: str) -> None:
    module, frame, said = DROPPED[name]
    trace = trace_port(ported("naive", Faults(dropped_frame={module: frame})), DENSE)
    (suspect,) = trace.suspects
    assert suspect.module == module
    assert suspect.operation.endswith(said)


def test_frames_that_were_not_recorded_or_pad_the_end_are_named_and_no_fault() -> None:
    model, wave, found = ported("naive")
    name = "feature_projection.projection:out"
    for kept in (
        found[name][:, -1:],
        found[name][:, :12],
        np.pad(found[name], [(0, 0), (0, 1), (0, 0)]),
    ):
        trace = trace_port((model, wave, {**found, name: kept}), DENSE)
        assert not trace.suspects
        assert any("row" in one.reason for one in trace.missed)


def test_a_segment_names_the_point_that_would_tell_its_modules_apart() -> None:
    norm = f"{LAYER}.layer_norm"
    model, wave = make_hubert(), make_wave()
    port = Port(model, "naive", Faults(epsilon={norm: 1e-12}))
    found = port(wave)
    trace = trace_port((model, wave, found), DENSE)
    (suspect,) = trace.suspects
    assert suspect.module == LAYER
    (point,) = [one for one in trace.layers if one.point == suspect.point]
    assert point.separating == f"{norm}:in"
    told = {**found, point.separating: port.inputs[point.separating]}
    assert [one.module for one in trace_port((model, wave, told), DENSE).suspects] == [norm]
