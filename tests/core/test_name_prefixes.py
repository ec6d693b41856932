"""Names that agree but for what stands in front of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.tensors.tensor_pairs import find_name_prefixes

PARTS = [
    f"layers.{n}.{name}.weight" for n in range(3) for name in ("self_attn.q_proj", "mlp.up_proj")
]
MODEL = [*(f"model.{name}" for name in PARTS), "lm_head.weight"]


@pytest.mark.parametrize(
    ("base", "candidate", "prefixes"),
    [
        (MODEL, [f"_orig_mod.{name}" for name in MODEL], ("", "_orig_mod.")),
        ([f"module._fsdp.{name}" for name in MODEL], MODEL, ("module._fsdp.", "")),
        (PARTS, MODEL, ("", "model.")),
        (MODEL, [f"language_model.{name}" for name in MODEL], ("", "language_model.")),
        (
            MODEL,
            [*(f"model.language_model.{name}" for name in PARTS), "lm_head.weight", "vision.x"],
            ("model.", "model.language_model."),
        ),
        (MODEL, [f"language_model.model.{name}" for name in PARTS], ("", "language_model.")),
    ],
)
def test_modules_in_front_of_one_sides_names_are_found(
    base: list[str], candidate: list[str], prefixes: tuple[str, str]
) -> None:
    found = find_name_prefixes(base, candidate, common=len({*base} & {*candidate}))
    assert found is not None
    assert (found.base, found.candidate) == prefixes
    pairs = found.name_map.align(dict.fromkeys(base), dict.fromkeys(candidate)).pairs
    assert len(pairs) >= len(PARTS)


@pytest.mark.parametrize(
    "candidate",
    [
        MODEL,
        [f"transformer.{name}" for name in PARTS],  # another name of a module, not one more
        [f"model.encoder.{n}.mlp.up_proj.weight" for n in range(9)],
        ["model.layers.0.mlp.up_proj.weight", "lm_head.weight", *(f"x.{n}" for n in range(9))],
        [],
    ],
)
def test_nothing_is_found_where_names_agree_or_are_others(candidate: list[str]) -> None:
    assert find_name_prefixes(MODEL, candidate, common=len({*MODEL} & {*candidate})) is None


@given(st.lists(st.sampled_from(["a", "b", "module", "0"]), max_size=3))
def test_any_modules_in_front_are_taken_off(front: list[str]) -> None:
    text = "".join(f"{one}." for one in front)
    found = find_name_prefixes(MODEL, [text + name for name in MODEL], common=0)
    if not text:
        assert found is None
        return
    assert found is not None
    aligned = found.name_map.align(
        dict.fromkeys(MODEL), dict.fromkeys(text + name for name in MODEL)
    )
    assert {(one.base, one.cand) for one in aligned.pairs} == {(n, text + n) for n in MODEL}
