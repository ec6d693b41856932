"""Gemma 2 by TransformerLens: HookedTransformer of two versions, TransformerBridge of two more."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from system_models import (
    MODEL,
    ORIGINAL,
    Compare,
    healthy,
    kl_mean,
    largest_difference,
    list_refusals,
    named,
)

pytestmark = [pytest.mark.systems, pytest.mark.nightly]

LENS: dict[str, Any] = {
    "model": "transformer_lens",
    "model_args": {"pretrained": str(MODEL), "dtype": "float32", "api": "hooked"},
    "requirements": ["torch==2.13.0", "transformers==5.23.0", "transformer-lens==3.5.1"],
}
BRIDGE: dict[str, Any] = {
    "model": "transformer_lens",
    "model_args": {"pretrained": str(MODEL), "dtype": "float32", "api": "bridge"},
    "requirements": ["torch==2.13.0", "transformers==5.23.0", "transformer-lens==4.3.0"],
}
OLD = {"package.transformer-lens": {"reference": "3.5.1", "candidate": "2.3.0 typeguard<3"}}
LIMIT = {"metrics": {"kl_mean": 1e-6}}
WINDOW = 16  # of the sliding layers, so that the demo's short documents feel it


def of_argument(name: str, reference: Any, candidate: Any) -> dict[str, Any]:
    return {"reference": reference, "candidate": candidate, "target": f"model_args.{name}"}


# What a conversion of this family is known to get wrong; references are the checkpoint's.
FIELDS = {
    "scale": of_argument("attn_scale", math.sqrt(20), math.sqrt(128 / 4)),
    "attention_cap": of_argument("attn_scores_soft_cap", 40.0, -1.0),
    "logit_cap": of_argument("output_logits_soft_cap", 30.0, -1.0),
    "types": of_argument("attn_types", ["local", "global"] * 2, ["global", "local"] * 2),
    "rope": of_argument("rotary_base", 4000.0, 10000.0),
    "activation": of_argument("act_fn", None, "gelu_pytorch_tanh"),  # the same one: inert
}


@pytest.fixture
def windowed(tmp_path: Path) -> dict[str, Any]:
    """The demo's model with a window that its documents are longer than."""
    folder = tmp_path / "windowed"
    shutil.copytree(MODEL, folder)
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**told, "sliding_window": WINDOW}))
    return {"pretrained": str(folder), "dtype": "float32"}


def test_transformer_lens_3_5_1_is_the_model(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": LENS}, "--distributions", "reference",
    )  # fmt: skip
    assert largest_difference(found) < 1e-4
    assert kl_mean(found) < 1e-8


def test_transformer_lens_2_3_0_has_another_attention_scale_and_the_upgrade_is_named(
    compare: Compare, tmp_path: Path
) -> None:
    """Of a checkpoint that the library knows by its scale: 2b, 16 where 2.3.0 has 14.97."""
    folder = tmp_path / "of2b"
    shutil.copytree(MODEL, folder)
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**told, "query_pre_attn_scalar": 256}))
    given = {"pretrained": str(folder), "dtype": "float32"}
    original = {"model_args": {**given, "attn_implementation": "eager"}}
    settings = {**OLD, "bos": of_argument("add_bos_token", True, None)}
    port = {**LENS, "model_args": {**LENS["model_args"], **given}, "settings": settings}
    found = compare({"original": original, "port": port}, "--bisect", "auto", code=1, gate=LIMIT)
    assert named(found) == {"package.transformer-lens"}


def test_a_hooked_transformer_with_the_checkpoints_own_pattern_of_attention_is_the_model(
    compare: Compare, windowed: dict[str, Any]
) -> None:
    original = {"model_args": {**windowed, "attn_implementation": "eager"}}
    port = {**LENS, "model_args": {**LENS["model_args"], **windowed}, "settings": FIELDS}
    found = compare({"original": original, "port": port}, *healthy(FIELDS), gate=LIMIT)
    assert kl_mean(found) < 1e-8


@pytest.mark.parametrize(
    "planted",
    [{"scale", "types"}, {"attention_cap"}, {"logit_cap", "scale"}, {"rope"}],
    ids=lambda planted: "+".join(sorted(planted)),
)
def test_wrong_fields_of_the_configuration_are_named_beside_the_others(
    compare: Compare, windowed: dict[str, Any], planted: set[str]
) -> None:
    original = {"model_args": {**windowed, "attn_implementation": "eager"}}
    # Left to itself the library takes the checkpoint's, except for the pattern of attention.
    settings = {
        name: one if name in planted else {**one, "candidate": None}
        for name, one in FIELDS.items()
        if name in planted or name != "types"
    }
    own = {"attn_types": FIELDS["types"]["reference"]}
    port = {**LENS, "model_args": {**LENS["model_args"], **windowed, **own}, "settings": settings}
    found = compare({"original": original, "port": port}, "--bisect", "auto", code=1, gate=LIMIT)
    assert named(found) == planted


def test_transformer_lens_4_3_0_wraps_the_model_and_is_the_model(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": BRIDGE}, "--distributions", "reference",
    )  # fmt: skip
    assert largest_difference(found) < 1e-4
    assert kl_mean(found) < 1e-12


def test_the_compatibility_mode_of_3_5_1_is_off_and_the_version_is_named(compare: Compare) -> None:
    versions = {"package.transformer-lens": {"reference": "4.3.0", "candidate": "3.5.1"}}
    port = {
        **BRIDGE,
        "model_args": {**BRIDGE["model_args"], "compatibility_mode": True},
        "settings": {**versions, "bos": of_argument("add_bos_token", True, None)},
    }
    found = compare({"original": ORIGINAL, "port": port}, "--bisect", "auto", code=1, gate=LIMIT)
    assert named(found) == set(versions)


def test_an_attention_that_the_model_does_not_have_is_an_error_and_no_verdict(
    compare: Compare,
) -> None:
    """A bridge hooks into eager attention; Gemma 2 in it has no other."""
    port = {**BRIDGE, "model_args": {**BRIDGE["model_args"], "attn_implementation": "sdpa"}}
    found = compare({"original": ORIGINAL, "port": port}, code=3)
    assert "'port' cannot be loaded" in found["error"]["message"]


def test_a_field_that_makes_no_sense_or_is_of_the_other_class_is_a_usage_error(
    cache_dir: Path,
) -> None:
    """The library takes most of them, and fails in the middle of a text, or does nothing."""
    wrong: list[tuple[str, Any, str]] = [
        ("attn_scale", "banana", "attn_scale: 'banana' is no number"),
        ("attn_scores_soft_cap", True, "attn_scores_soft_cap: True is no number"),
        ("output_logits_soft_cap", "banana", "is no number"),
        ("eps", [1e-6], "is no number"),
        ("rotary_base", "1e4", "rotary_base: '1e4' is no number"),
        ("window_size", "banana", "no whole number from 1 on"),
        ("use_attn_scale", "banana", "neither true nor false"),
        ("act_fn", "banana", "act_fn: 'banana' is not known"),
        ("act_fn", 5, "act_fn: 5 is not known"),
        ("attn_types", ["local", "banana"], "is no list of local and global"),
        ("attn_types", "local", "is no list of local and global"),
        ("attn_types", ["local", "global"], "has 2 entries, and the model 4 layers"),
        ("device", "tpu", "'tpu' is not a device"),
        ("compatibility_mode", True, "is of a TransformerBridge"),
        ("attn_implementation", "sdpa", "is of a TransformerBridge"),
        ("attn_implementation", "banana", "attn_implementation: 'banana' is not known"),
    ]
    given = LENS["model_args"]
    asked = [given, *({**given, name: value} for name, value, _ in wrong)]
    right, *told = list_refusals("transformer_lens", LENS["requirements"], asked, cache_dir)
    assert right == ("", "")
    for (name, value, said), (error, message) in zip(wrong, told, strict=True):
        assert error == "UsageError", (name, value)
        assert said in message, (name, value)


def test_packages_that_exclude_each_other_cannot_be_built_and_that_is_said(
    compare: Compare,
) -> None:
    port = {**LENS, "requirements": ["transformer-lens==3.5.1", "typeguard<3"]}
    found = compare({"original": ORIGINAL, "port": port}, code=3)
    assert "cannot be made of" in found["error"]["message"]
    assert "typeguard" in found["error"]["message"]
