"""A name map is proposed from values, else from shapes, and where neither decides nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.name_map import NameMap
from evalguard.tracing.name_proposals import NamedTensor, ProposedRule, propose_rules

Array = np.ndarray[Any, Any]
LAYERS, FRAMES, WIDTH, HEADS = 3, 7, 12, 4


def drawn(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensors(values: Mapping[str, Array]) -> list[NamedTensor]:
    return [
        NamedTensor(name, value.shape, lambda value=value: value)  # type: ignore[misc]
        for name, value in values.items()
    ]


MODEL = {
    "conv:out": drawn(1, 5, 9, seed=99),
    **{
        f"layers.{n}.{module}": drawn(1, FRAMES, WIDTH, seed=10 * n + place)
        for n in range(LAYERS)
        for place, module in enumerate(("attn:in", "attn:out", "mlp:out"))
    },
    "(root):out": drawn(1, FRAMES, 20, seed=98),
}


def propose(values: Mapping[str, Array], model: Mapping[str, Array] = MODEL) -> list[ProposedRule]:
    return list(propose_rules(tensors(model), tensors(values)))


def bases(found: list[ProposedRule]) -> dict[str, str | None]:
    return {one.cand: None if one.rule is None else one.rule.base for one in found}


def test_each_family_of_tensors_gets_the_point_whose_values_it_has() -> None:
    port = {
        "out": MODEL["(root):out"] + 1e-6,
        **{f"ffn-{n}": MODEL[f"layers.{n}.mlp:out"] for n in range(LAYERS)},
        **{f"kqv-{n}": MODEL[f"layers.{n}.attn:in"] * 1.0001 for n in range(LAYERS)},
    }
    assert bases(propose(port)) == {
        "out": "(root):out", "ffn-*": "layers.*.mlp:out", "kqv-*": "layers.*.attn:in"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("laid_out", "rule"),
    [
        (lambda one: one, {}),
        (lambda one: one[0], {}),
        (lambda one: one[0].T, {"transpose": (1, 0)}),
        (lambda one: one.transpose(0, 2, 1), {"transpose": (0, 2, 1)}),
        (lambda one: one[0].reshape(FRAMES, HEADS, -1), {"reshape": (-1, WIDTH)}),
    ],
    ids=["alike", "without batch", "transposed", "transposed with batch", "by head"],
)
def test_a_proposed_rule_lays_a_tensor_out_as_the_model_has_it(laid_out: Any, rule: Any) -> None:
    port = {f"x{n}": np.ascontiguousarray(laid_out(MODEL[f"layers.{n}.mlp:out"])) for n in range(3)}
    (found,) = propose(port)
    assert found.rule is not None
    layout = found.rule.layout
    assert {key: getattr(layout, key) for key in rule} == rule
    given_points = NameMap(rules=(found.rule,)).align(MODEL, port).pairs
    assert len(given_points) == LAYERS
    for n in range(LAYERS):
        base = MODEL[f"layers.{n}.mlp:out"]
        assert np.array_equal(layout.apply(port[f"x{n}"]).reshape(base.shape), base)


def test_layers_that_are_counted_from_one_get_a_rule_each() -> None:
    """A pattern would give each layer its neighbour: the wildcards stand for the same text."""
    port = {f"ffn-{n + 1}": MODEL[f"layers.{n}.mlp:out"] for n in range(LAYERS)}
    assert bases(propose(port)) == {f"ffn-{n + 1}": f"layers.{n}.mlp:out" for n in range(LAYERS)}


def test_one_layers_tensor_is_that_layers_point() -> None:
    assert bases(propose({"mlp": MODEL["layers.2.mlp:out"]})) == {"mlp": "layers.2.mlp:out"}


def test_what_one_module_gives_and_the_next_takes_is_the_first_of_the_two() -> None:
    model = {"a:out": MODEL["conv:out"], "b:in": MODEL["conv:out"], "b:out": drawn(1, 5, 9, seed=1)}
    assert bases(propose({"x": MODEL["conv:out"]}, model)) == {"x": "a:out"}


def test_a_port_that_is_far_off_gets_the_only_point_of_its_shape_and_it_is_said() -> None:
    (found,) = propose({"result": drawn(FRAMES, 20, seed=5)})
    assert found.rule is not None
    assert (found.rule.base, found.error) == ("(root):out", None)


def test_where_several_points_have_the_shape_none_is_proposed() -> None:
    (found,) = propose({f"l-{n}": drawn(FRAMES, WIDTH, seed=70 + n) for n in range(LAYERS)})
    assert found.rule is None
    assert found.alternatives == tuple(
        f"layers.*.{one}" for one in ("attn:in", "attn:out", "mlp:out")
    )


@pytest.mark.parametrize(
    "values", [np.zeros((3, 5)), np.full((5, 9), np.nan), np.zeros((0,)), np.ones((2, 2))]
)
def test_a_tensor_that_is_like_nothing_gets_no_rule_by_values(values: Array) -> None:
    (found,) = propose({"scratch": values.astype(np.float32)})
    assert found.error is None


def test_two_points_that_a_tensor_is_equally_near_are_named_and_not_chosen() -> None:
    model = {"a:out": MODEL["conv:out"], "b:out": MODEL["conv:out"] * np.float32(1.002)}
    (found,) = propose({"x": MODEL["conv:out"] * np.float32(1.001)}, model)
    assert found.rule is None
    assert set(found.alternatives) == {"a:out", "b:out"}


@given(st.permutations(list(MODEL)), st.randoms(use_true_random=False))
def test_names_of_a_port_say_nothing(order: list[str], random: Any) -> None:
    """Whatever a port calls its tensors, each gets the point that it is."""
    names = [f"t{random.random()}x" for _ in order]
    port = {name: MODEL[point] for name, point in zip(names, order, strict=True)}
    for one in propose(port, MODEL):
        if one.rule is not None and one.error is not None:
            assert np.array_equal(MODEL[one.rule.base], port[one.cand])
