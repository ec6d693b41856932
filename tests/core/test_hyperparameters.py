"""Hyper-parameters of two runtimes: what differs, what is equal once rounded, what is hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.hyperparameters import (
    ABSENT,
    HeldValue,
    add_declared,
    compare_hyperparameters,
    compare_values,
    modules_text,
    name_modules,
)

LAYERS = [f"layers.{number}.norm" for number in range(4)]


def held(name: str, value: object, module: str = "", **more: object) -> HeldValue:
    return HeldValue(name=name, value=value, module=module, source=name, **more)  # type: ignore[arg-type]


def test_an_eps_in_float32_is_the_eps_that_was_written() -> None:
    """ggml #915: 9.99999975e-06 was suspected, and is float32(1e-5)."""
    (row,) = compare_hyperparameters([held("norm_eps", 1e-5)], [held("norm_eps", 9.99999975e-06)])
    assert row.verdict == "equal as float32"
    (row,) = compare_hyperparameters([held("norm_eps", 1e-5)], [held("norm_eps", 1e-6)])
    assert row.verdict == "differs"


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_is_equal_to_itself_in_float32_and_no_other_is(number: float) -> None:
    assert compare_values(held("a", number), held("a", float(np.float32(number)))) == "equal"
    with np.errstate(over="ignore"):
        neighbour = float(np.nextafter(np.float32(number), np.float32(np.inf)))
    if np.isfinite(neighbour):
        assert compare_values(held("a", number), held("a", neighbour)) == "differs"


def test_a_number_in_a_narrow_tensor_is_the_number_that_it_was_rounded_from() -> None:
    """sqrt(2048) of the first Gemma ports, 45.25 in bfloat16."""
    scale = 2048.0**0.5
    narrow = held("embedding_scale", 45.25, dtype="bfloat16")
    assert compare_values(held("embedding_scale", scale), narrow) == "equal as bfloat16"
    assert compare_values(held("embedding_scale", scale), held("a", 45.25)) == "differs"
    assert compare_values(held("a", 45.75), narrow) == "differs"
    half = held("a", float(np.float16(scale)), dtype="float16")
    assert compare_values(held("a", scale), half) == "equal as float16"


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_rounding_to_bfloat16_is_torchs(number: float) -> None:
    import torch

    rounded = float(torch.tensor(number, dtype=torch.float32).to(torch.bfloat16))
    if np.isfinite(rounded):
        narrow = held("a", rounded, dtype="bfloat16")
        assert compare_values(held("a", number), narrow).startswith("equal")


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (10000, 10000.0, "equal"),
        (1, True, "differs"),
        (None, None, "equal"),
        (None, 0, "differs"),
        ([1e-5, "a"], [9.99999975e-06, "a"], "equal as float32"),
        ([1.0], [1.0, 1.0], "differs"),
        ({"factor": 8.0}, {"factor": 8}, "equal"),
        ("silu", "gelu (erf)", "differs"),
    ],
)
def test_values_compare_by_what_they_mean(one: object, other: object, verdict: str) -> None:
    assert compare_values(held("a", one), held("a", other)) == verdict


def test_a_value_that_one_side_does_not_show_is_no_difference() -> None:
    (row,) = compare_hyperparameters([held("norm_eps", 1e-5)], [])
    assert (row.verdict, row.base_source, row.candidate_source) == (
        "one side only", "norm_eps", "",
    )  # fmt: skip


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_what_is_only_declared_is_never_equal_and_may_differ(sides: tuple[bool, bool]) -> None:
    held = [HeldValue(name="norm_eps", value=1e-6, declared=declared) for declared in sides]
    (row,) = compare_hyperparameters([held[0]], [held[1]])
    assert row.verdict == "declared alike"
    (row,) = compare_hyperparameters([held[0]], [replace(held[1], value=1e-5)])
    assert row.verdict == "differs"


def test_a_number_that_is_shown_in_few_digits_is_not_equal_to_one_that_agrees_in_them() -> None:
    shown = HeldValue(name="attention_scale", value=0.18, within=0.005)
    for scale, verdict in (
        (32**-0.5, "declared alike"),
        (0.18, "declared alike"),
        (0.2, "differs"),
    ):
        exact = HeldValue(name="attention_scale", value=scale)
        for sides in ([shown], [exact]), ([exact], [shown]):
            (row,) = compare_hyperparameters(*sides)
            assert row.verdict == verdict


def test_what_is_declared_stands_beside_all_that_the_modules_hold() -> None:
    own = [held("norm_eps", 1e-5 if "1" in one else 1e-6, one) for one in LAYERS]
    shown = HeldValue(name="rope_theta", value=1e4, within=50.0)
    told = [held(name, value) for name, value in
            (("norm_eps", 1e-6), ("rope_theta", 10001.0), ("heads", 4))]  # fmt: skip
    found = add_declared([*own, shown], told)
    assert found[: len(own)] == own
    assert [(one.name, one.value, one.declared) for one in found[len(own) :]] == [
        ("rope_theta", 10001.0, True), ("heads", 4, True),
    ]  # fmt: skip
    assert add_declared([replace(shown, value=9000.0)], told)[0].value == 9000.0


def test_of_modules_with_the_same_names_the_one_that_differs_is_named() -> None:
    base = [held("norm_eps", 1e-6, module) for module in LAYERS]
    candidate = [held("norm_eps", 1e-5 if "2" in one else 1e-6, one) for one in LAYERS]
    rows = compare_hyperparameters(base, candidate)
    assert [(row.verdict, row.where) for row in rows] == [
        ("differs", "layers.2.norm"), ("equal", "layers.0.norm, layers.1.norm, layers.3.norm"),
    ]  # fmt: skip


def test_of_modules_with_other_names_values_are_compared_over_all() -> None:
    base = [held("norm_eps", 1e-6, module) for module in LAYERS]
    (row,) = compare_hyperparameters(base, [held("norm_eps", 1e-6, "blk.0.attn_norm")])
    assert (row.verdict, row.where) == ("equal", "")
    mixed = [*base, held("norm_eps", 1e-5, "norm")]
    (row,) = compare_hyperparameters(mixed, [held("norm_eps", 1e-6)])
    assert (row.verdict, row.base) == ("differs", [1e-6, 1e-5])


def test_a_window_of_some_layers_is_the_window_of_the_config() -> None:
    windows = [held("attention_window", 16 if n % 2 else ABSENT, f"l.{n}") for n in range(4)]
    (row,) = compare_hyperparameters(windows, [held("attention_window", 16)])
    assert row.verdict == "equal"


def test_names_of_a_library_are_left_out_where_they_are_equal_or_the_modules_others() -> None:
    own = held("sinks", 4, "layers.0.norm", common=False)
    assert compare_hyperparameters([own], [own]) == ()
    (row,) = compare_hyperparameters([own], [held("sinks", 5, "layers.0.norm", common=False)])
    assert row.verdict == "differs"
    assert compare_hyperparameters([own], [held("norm_eps", 1.0, "blk.0")])[0].name == "norm_eps"


def test_what_differs_comes_first() -> None:
    base = [held("a", 1), held("b", 1e-5), held("c", 1), held("d", 2)]
    candidate = [held("a", 1), held("b", 9.99999975e-06), held("d", 3)]
    verdicts = [row.verdict for row in compare_hyperparameters(base, candidate)]
    assert verdicts == ["differs", "one side only", "equal as float32", "equal"]


def test_modules_are_named_by_globs_that_name_no_other() -> None:
    assert name_modules(LAYERS, LAYERS) == ("layers.*.norm",)
    assert name_modules(LAYERS[:2], LAYERS) == ("layers.0.norm", "layers.1.norm")
    assert name_modules([""], ["", *LAYERS]) == ()
    kinds = [f"layers.{n}.{kind}" for n in range(2) for kind in ("q", "k", "v", "o")]
    assert name_modules(kinds, kinds) is None
    assert modules_text(None) == "every module that has it"
    four = name_modules(kinds, [*kinds, "head"])
    assert modules_text(four) == "layers.*.q, layers.*.k, layers.*.v and 1 more"


def test_what_one_side_has_for_the_whole_model_is_compared_with_what_all_modules_hold() -> None:
    """Though its norms are the base's by name, and compared one by one."""
    norms = [held("norm_eps", 1e-6, module) for module in LAYERS]
    base = [*norms, *(held("dtype", "float32", module) for module in LAYERS)]
    for dtype, verdict in (("float32", "equal"), ("bfloat16", "differs")):
        whole = [*norms, held("dtype", dtype)]
        for sides in ((base, whole), (whole, base)):
            rows = {row.name: row.verdict for row in compare_hyperparameters(*sides)}
            assert rows == {"norm_eps": "equal", "dtype": verdict}
    mixed = [
        *norms,
        *(held("dtype", f"float{16 * n + 16}", one) for n, one in enumerate(LAYERS[:2])),
    ]
    rows = compare_hyperparameters(mixed, [*norms, held("dtype", "float32")])
    assert {row.verdict for row in rows if row.name == "dtype"} == {"one side only"}
