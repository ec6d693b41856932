"""Scales of activations and of the cache of keys and values decide as weights do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_page import render_tensors
from evalguard.tensors.tensors_report import TensorsReport

Tensors = dict[str, torch.Tensor]
LAYERS = 3
STATIC = {"num_bits": 8, "type": "float", "dynamic": False}
GROUPS = {"group_0": {"weights": STATIC, "input_activations": STATIC}}
COMPRESSED = {
    "quant_method": "compressed-tensors", "kv_cache_scheme": STATIC, "config_groups": GROUPS,
}  # fmt: skip
CACHE_ONLY = {"quant_method": "compressed-tensors", "kv_cache_scheme": STATIC}
DYNAMIC: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def attention(layer: int) -> str:
    return f"model.layers.{layer}.self_attn"


def weights() -> Tensors:
    draw = torch.Generator().manual_seed(3)
    return {
        f"{attention(layer)}.{part}_proj.weight": torch.randn(16, 16, generator=draw)
        for layer in range(LAYERS)
        for part in "qkv"
    }


def quantise(*, cache: bool = True, inputs: bool = True) -> Tensors:
    """FP8 weights, with healthy scales of the cache and of inputs."""
    draw, found = torch.Generator().manual_seed(4), Tensors()
    for name, weight in weights().items():
        scale = weight.abs().max() / 448
        found[name] = (weight / scale).to(torch.float8_e4m3fn)
        found[f"{name}_scale"] = scale.reshape(1)
        if inputs:
            stem = name.removesuffix(".weight")
            found[f"{stem}.input_scale"] = 0.1 * torch.rand(1, generator=draw)
    for layer in range(LAYERS) if cache else ():
        for part in "kv":
            found[f"{attention(layer)}.{part}_scale"] = 1e-4 * torch.rand(1, generator=draw)
    return found


def save(folder: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    folder.mkdir()
    save_file({name: one.clone() for name, one in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def compare(
    folder: Path,
    base: Tensors,
    candidate: Tensors,
    config: dict[str, Any] | None = None,
    of_candidate: dict[str, Any] | None = None,
) -> TensorsReport:
    config = COMPRESSED if config is None else config
    here = save(folder / "base", base, config)
    there = save(folder / "candidate", candidate, of_candidate or config)
    return compare_tensors(str(here), str(there), TensorOptions())


def ending(tensors: Tensors, *ends: str) -> list[str]:
    return [name for name in tensors if name.endswith(ends)]


def filled(value: float, *ends: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name: torch.full_like(one, value) if name.endswith(ends) else one
        for name, one in tensors.items()
    }


def without(*ends: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: one for n, one in tensors.items() if not n.endswith(ends)}


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): one for name, one in tensors.items()}


def keys_as_values(tensors: Tensors) -> Tensors:
    other = {".k_scale": ".v_scale", ".v_scale": ".k_scale"}
    return {n[:-8] + other.get(n[-8:], n[-8:]): one for n, one in tensors.items()}


def next_layer(tensors: Tensors) -> Tensors:
    names = ending(tensors, ".k_scale")
    moved = dict(zip(names, names[1:] + names[:1], strict=True))
    return {moved.get(name, name): one for name, one in tensors.items()}


def times(factor: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name: one * factor if name.endswith((".k_scale", ".v_scale")) else one
        for name, one in tensors.items()
    }


DAMAGED: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "cache never calibrated": (
        filled(1.0, ".k_scale", ".v_scale"),
        "6 tensors beyond tolerance, look like never calibrated (all exactly 1.0)",
    ),
    "inputs never calibrated": (
        filled(1.0, ".input_scale"),
        "9 tensors beyond tolerance, look like never calibrated (all exactly 1.0)",
    ),
    "one of them": (
        filled(1.0, "layers.1.self_attn.v_scale"),
        "1 tensor beyond tolerance, looks like never calibrated (all exactly 1.0)",
    ),
    "keys and values exchanged": (keys_as_values, "6 tensors beyond tolerance, look like swapped"),
    "layers exchanged": (next_layer, "3 tensors beyond tolerance, look like swapped"),
    "all twice as large": (times(2.0), "6 tensors beyond tolerance, look like scaled (by 2)"),
    "one a little larger": (
        lambda tensors: {**tensors, "model.layers.2.self_attn.k_scale": torch.tensor([9e-6])},
        "1 tensor beyond tolerance, like nothing known",
    ),
    "one missing": (without("layers.1.self_attn.k_scale"), "1 tensor missing on one side"),
    "all of the cache missing": (without(".k_scale", ".v_scale"), "6 tensors missing on one side"),
    "all of the inputs missing": (without(".input_scale"), "9 tensors missing on one side"),
    "not a number": (filled(torch.nan, "layers.0.self_attn.k_scale"), "1 of 24 tensors beyond"),
    "zero": (filled(0.0, ".v_scale"), "3 of 24 tensors beyond tolerance"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_scales_that_are_not_the_bases_are_named(tmp_path: Path, what: str) -> None:
    change, said = DAMAGED[what]
    report = compare(tmp_path, quantise(), change(quantise()))
    shown = " ".join(render_tensors(report, width=100, color=False).split())
    assert (report.exit_code, said in shown) == (1, True), shown


def test_what_is_swapped_is_said_with_the_name_that_it_has_there(tmp_path: Path) -> None:
    report = compare(tmp_path, quantise(), keys_as_values(quantise()))
    seen = {one.name: one.likeness.detail for one in report.deltas if one.likeness is not None}
    assert seen[f"{attention(0)}.k_scale"] == f"it is {attention(0)}.v_scale"


HEALTHY: dict[str, tuple[Callable[[Tensors], Tensors], dict[str, Any]]] = {
    "a copy": (dict, COMPRESSED),
    "stored in another dtype": (
        lambda t: {n: x.double() if n.endswith("k_scale") else x for n, x in t.items()},
        COMPRESSED,
    ),
    "stored without an axis": (
        lambda t: {n: x.reshape(()) if n.endswith("input_scale") else x for n, x in t.items()},
        COMPRESSED,
    ),
    "as ModelOpt calls them": (
        lambda t: renamed(".k_scale", ".k_proj.k_scale")(renamed(".v_s", ".v_proj.v_s")(t)),
        COMPRESSED,
    ),
    "as Quark calls them": (renamed(".k_scale", ".k_proj.output_scale"), COMPRESSED),
    "as vLLM calls them": (renamed("self_attn.k_scale", "self_attn.attn.k_scale"), COMPRESSED),
    "in a model with a wrapper": (renamed("model.", "model.language_model."), COMPRESSED),
    "of activations that are scaled as they come": (
        without(".k_scale", ".v_scale", ".input_scale"), DYNAMIC,
    ),
    "of weights alone": (without(".k_scale", ".v_scale", ".input_scale"), {"quant_method": "fp8"}),
    "one module in full": (
        lambda t: {
            **without("0.self_attn.k_proj.weight_scale", "0.self_attn.k_proj.input_scale")(t),
            f"{attention(0)}.k_proj.weight": weights()[f"{attention(0)}.k_proj.weight"],
        },
        COMPRESSED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HEALTHY)
def test_healthy_scales_are_no_difference(tmp_path: Path, what: str) -> None:
    change, config = HEALTHY[what]
    report = compare(tmp_path, quantise(), change(quantise()), of_candidate=config)
    assert (report.exit_code, report.missing, report.scale_faults) == (0, (), ())


# Of a base without scales

ALONE: dict[str, tuple[Callable[[Tensors], Tensors], dict[str, Any], int, str]] = {
    "calibrated": (dict, COMPRESSED, 0, ""),
    "all of one kind are 1.0": (filled(1.0, ".v_scale"), COMPRESSED, 3, "never calibrated"),
    "inputs of 1.0": (filled(1.0, ".input_scale"), COMPRESSED, 3, "never calibrated"),
    "one of them is 1.0": (filled(1.0, "layers.0.self_attn.v_scale"), COMPRESSED, 0, ""),
    "1.0, which nothing says is read": (
        filled(1.0, ".v_scale"), {"quant_method": "fp8"}, 0, "never calibrated"
    ),
    "1.0, and nothing is quantised with it": (
        filled(1.0, ".input_scale"), {**CACHE_ONLY, "config_groups": {"g": {"weights": STATIC}}},
        0, "",
    ),
    "infinite": (filled(torch.inf, "layers.0.self_attn.k_scale"), COMPRESSED, 1, "not finite"),
    "zero": (filled(0.0, "layers.0.self_attn.k_scale"), COMPRESSED, 1, "zero"),
    "negative": (filled(-0.1, ".input_scale"), COMPRESSED, 1, "negative"),
    "no cache's, which the config asks for": (
        without(".k_scale", ".v_scale"), COMPRESSED, 1, "missing"
    ),
    "no inputs', which the config asks for": (without(".input_scale"), COMPRESSED, 1, "missing"),
    "no cache's, as ModelOpt asks for it": (
        without(".k_scale", ".v_scale"),
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        1, "missing",
    ),
    "probabilities, which end at 1": (
        lambda t: {**t, "model.layers.0.self_attn.prob_scale": torch.ones(1)}, COMPRESSED, 0, ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ALONE)
def test_scales_that_the_base_has_not_are_judged_by_themselves(tmp_path: Path, what: str) -> None:
    change, config, code, said = ALONE[what]
    report = compare(tmp_path, weights(), change(quantise()), {}, config)
    assert (report.exit_code, "".join(one.fault for one in report.scale_faults)) == (code, said)
    shown = " ".join(render_tensors(report, width=100, color=False).split())
    assert ("of activations or caches:" in shown) == bool(said)


def test_a_checkpoint_that_lacks_what_its_config_asks_for_is_its_own_copy(tmp_path: Path) -> None:
    lacking = quantise(cache=False)
    report = compare(tmp_path, lacking, lacking)
    assert (report.exit_code, report.scale_faults) == (0, ())


def test_quanto_stores_scales_of_weights_alone_that_say_nothing(tmp_path: Path) -> None:
    folder = save(tmp_path / "quanto", filled(1.0, ".input_scale")(quantise(cache=False)), {})
    told = {"model.layers.0.self_attn.q_proj": {"weights": "qfloat8", "activations": "none"}}
    (folder / "quanto_qmap.json").write_text(json.dumps(told))
    base = save(tmp_path / "base", weights(), {})
    report = compare_tensors(str(base), str(folder), TensorOptions())
    assert report.scale_faults == ()
