"""Packed checkpoints against their base: a healthy one is never called different; a damaged block,
a swapped scale and a wrong zero point are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packed_pairs import (
    COLUMNS,
    GROUP,
    ROWS,
    UP,
    Tensors,
    compare,
    find,
    make_weights,
    pack_act_order,
    pack_awq,
    pack_gptq,
    pack_int8,
    pack_mlx,
    pack_nvfp4,
    plain,
    words,
)


@pytest.fixture(scope="module")
def weights() -> Tensors:
    return make_weights()


FORMATS: dict[str, tuple[Callable[[torch.Tensor], Tensors], str, str]] = {
    "ModelOpt NVFP4": (pack_nvfp4, "weight", "weight_scale"),
    "GPTQ": (pack_gptq, "qweight", "scales"),
    "GPTQ, act-order": (pack_act_order, "qweight", "scales"),
    "AWQ": (pack_awq, "qweight", "scales"),
    "int8 a row": (pack_int8, "weight", "weight_scale"),
    "MLX": (pack_mlx, "weight", "scales"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_healthy_one_is_equal_under_the_weights_own_name(
    tmp_path: Path, weights: Tensors, name: str
) -> None:
    packed = FORMATS[name][0](weights[f"{UP}.weight"])
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert (report.exit_code, report.missing) == (0, ())
    assert {delta.name for delta in report.deltas} == {*weights}
    assert find(report, "lm_head.weight").state == "identical", "what is left out is plain"


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_block_is_named(tmp_path: Path, weights: Tensors, name: str) -> None:
    pack, codes, _scale = FORMATS[name]
    packed = pack(weights[f"{UP}.weight"])
    raw = packed[f"{UP}.{codes}"].view(torch.uint8)
    raw[9, 40:48] ^= 0x5A
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert (report.exit_code, [d.name for d in report.deltas if not d.passed]) == (
        1,
        [f"{UP}.weight"],
    )
    # GPTQ's and AWQ's words lie across rows
    hit = {"GPTQ": range(10, 12), "GPTQ, act-order": range(10, 12), "AWQ": range(80, 96)}
    rows = {*hit.get(name, (9,))}
    (damage,) = find(report).damage
    assert (damage.fault, {*damage.first}) == ("blocks damaged", rows)


@pytest.mark.parametrize("name", FORMATS)
def test_swapped_scales_are_named(tmp_path: Path, weights: Tensors, name: str) -> None:
    pack, _codes, kind = FORMATS[name]
    packed = pack(weights[f"{UP}.weight"])
    scale = packed[f"{UP}.{kind}"]
    if name.startswith(("GPTQ", "AWQ")):
        scale = scale.T  # (rows, groups), a view
    raw = scale.view(torch.uint8) if scale.dtype == torch.float8_e4m3fn else scale
    first = scale.float()[:, 0]
    other = int((first / first[5] - 1.5).abs().argmin())
    raw[5, 0], raw[other, 0] = raw[other, 0].clone(), raw[5, 0].clone()
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    faults = {one.fault: {*one.first} for one in find(report).damage}
    assert set().union(*faults.values()) == {5, other}
    # MLX's values begin at a bias: by another scale they move, too
    wanted = {"zero points off"} if name == "MLX" else {"blocks scaled", "rows scaled"}
    assert faults.keys() & wanted


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize(
    ("name", "axis"),
    [(one, axis) for one in FORMATS for axis in (0, 1) if (one, axis) != ("int8 a row", 1)],
)
def test_scales_that_all_groups_have_of_their_neighbours_are_one_fault(
    tmp_path: Path, weights: Tensors, name: str, axis: int, step: int
) -> None:
    pack, _codes, kind = FORMATS[name]
    packed = pack(weights[f"{UP}.weight"])
    scale = packed[f"{UP}.{kind}"]
    raw = scale.view(torch.uint8) if scale.dtype == torch.float8_e4m3fn else scale
    packed[f"{UP}.{kind}"] = raw.roll(step, axis).view(scale.dtype)
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert (report.exit_code, find(report).damage) == (1, ())
    where = "before" if step > 0 else "behind"
    assert words(report).startswith("scales rolled (each ")
    assert f"has the scale of the one {where} it" in words(report)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_codes_that_moved_without_their_scales_are_named_as_what_moved(
    tmp_path: Path, weights: Tensors, name: str, reverse: bool
) -> None:
    pack, codes, _scale = FORMATS[name]
    packed = pack(weights[f"{UP}.weight"])
    stored = packed[f"{UP}.{codes}"]
    raw = stored.view(torch.int32) if stored.dtype == torch.uint32 else stored
    outputs = int(name.startswith(("GPTQ", "AWQ")))  # the axis
    moved = raw.flip(outputs) if reverse else raw.roll(1, outputs)
    packed[f"{UP}.{codes}"] = moved.contiguous().view(stored.dtype)
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    told = "shifted (codes without their scales, by one along axis 0"
    if reverse:
        told = "rows permuted (codes without their scales, all 128 rows reversed"
    if name == "AWQ":  # eight rows to a word
        told = "rows permuted (codes without their scales, 16 blocks of 8 rows"
    assert words(report).startswith(told)


@pytest.mark.parametrize("name", FORMATS)
def test_scales_of_one_group_in_each_row_that_moved_are_blocks(
    tmp_path: Path, weights: Tensors, name: str
) -> None:
    pack, _codes, kind = FORMATS[name]
    packed = pack(weights[f"{UP}.weight"])
    scale = packed[f"{UP}.{kind}"]
    raw = scale.view(torch.uint8) if scale.dtype == torch.float8_e4m3fn else scale
    group = (raw.T if name.startswith(("GPTQ", "AWQ")) else raw)[:40, 0]
    group[:] = group.roll(1).clone()
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    assert not words(report).startswith("scales rolled")


@pytest.mark.parametrize("name", [one for one in FORMATS if one != "MLX"])  # has no level at 0
@pytest.mark.parametrize("kept", [0, 2])
def test_what_was_pruned_before_it_was_packed_never_passes(
    tmp_path: Path, weights: Tensors, name: str, kept: int
) -> None:
    """Zeros that no rounding makes passed for a quantiser that moves errors."""
    exact = weights[f"{UP}.weight"]
    groups = exact.abs().reshape(-1, 4)
    least = groups.sort(1).values[:, -kept:] if kept else groups.median().reshape(1, 1)
    packed = FORMATS[name][0](exact * (groups >= least[:, :1]).reshape(exact.shape))
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    assert words(report).startswith(f"pruned ({'2:4' if kept else 'the smallest'}, otherwise ")


def test_a_wrong_zero_point_is_named(tmp_path: Path, weights: Tensors) -> None:
    packed = pack_gptq(weights[f"{UP}.weight"])
    packed[f"{UP}.qzeros"][2, 0] ^= 1  # of the first row's third group
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    assert words(report).startswith("zero points off (row 0, columns 128 to 191, values shifted by")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_scales_that_mlx_rounds_once_the_codes_are_chosen_are_healthy(
    tmp_path: Path, bits: int, dtype: torch.dtype
) -> None:
    weights = make_weights()
    # bfloat16 is coarsest just above 2^-8, where the scale of these 8 bits is
    weights[f"{UP}.weight"][:64] = torch.linspace(-1.0234375, 0.0, GROUP).repeat(COLUMNS // GROUP)
    base = {name: one.to(dtype) for name, one in weights.items()}
    packed = pack_mlx(base[f"{UP}.weight"].float(), bits, dtype)
    told = {"bits": bits, "group_size": 64}
    report = compare(tmp_path, weights, {**plain(base), **packed}, **told)
    assert (report.exit_code, find(report).state) == (0, "within")


@pytest.mark.parametrize(
    ("block", "names"),
    [
        ("mlp", {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}),
        ("block_sparse_moe", {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}),
    ],
)
def test_experts_that_mlx_stacks_are_slices_of_the_stack(
    tmp_path: Path, block: str, names: dict[str, str]
) -> None:
    stem, generator = f"model.layers.3.{block}", torch.Generator().manual_seed(5)
    base, packed = {}, {}
    for name, stacked in names.items():
        experts = [0.02 * torch.randn(ROWS, COLUMNS, generator=generator) for _ in range(3)]
        parts = [pack_mlx(one) for one in experts]
        base |= {f"{stem}.experts.{n}.{name}.weight": one for n, one in enumerate(experts)}
        for part in ("weight", "scales", "biases"):
            stack = [one[f"{UP}.{part}"].view(torch.uint8) for one in parts]
            kind = parts[0][f"{UP}.{part}"].dtype
            packed[f"{stem}.switch_mlp.{stacked}.{part}"] = torch.stack(stack).view(kind)
    report = compare(tmp_path, base, packed)
    assert (report.exit_code, report.missing, len(report.deltas)) == (0, (), 9)
    damaged = f"{stem}.experts.1.{next(iter(names))}.weight"
    packed[f"{stem}.switch_mlp.gate_proj.weight"].view(torch.uint8)[1, 9, 40:48] ^= 0x5A
    report = compare(tmp_path, base, packed)
    assert [delta.name for delta in report.deltas if not delta.passed] == [damaged]


def test_a_wrong_bias_is_named_as_a_zero_point(tmp_path: Path, weights: Tensors) -> None:
    packed = pack_mlx(weights[f"{UP}.weight"])
    packed[f"{UP}.biases"][7, 1] += packed[f"{UP}.scales"][7, 1]
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    assert words(report).startswith("zero points off (row 7, columns 64 to 127, values shifted by")


@pytest.mark.parametrize("pack", [pack_gptq, pack_act_order])
def test_all_zero_points_off_by_one_are_named_and_no_moved_errors(
    tmp_path: Path, weights: Tensors, pack: Callable[[torch.Tensor], Tensors]
) -> None:
    """Version 1 of GPTQ's format read as version 2, or the other way round."""
    config = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    packed = pack(weights[f"{UP}.weight"])
    report = compare(tmp_path, weights, {**plain(weights), **packed}, **config)
    assert report.exit_code == 1
    every = "128 rows: 0 to 127, values shifted by one step up"
    assert words(report).startswith(f"zero points off ({every}")


@pytest.mark.parametrize("group", [GROUP, COLUMNS])
@pytest.mark.parametrize("share", [1, 2, 3])
def test_zero_points_of_int8_that_are_off_by_one_are_named_however_many_they_are(
    tmp_path: Path, weights: Tensors, group: int, share: int
) -> None:
    groups = weights[f"{UP}.weight"].reshape(ROWS, -1, group)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scale = (high - low) / 255
    zero = (-128 - low / scale).round()
    codes = ((groups / scale[..., None]).round() + zero[..., None]).clamp(-128, 127)
    zero[::share] += 1
    packed = {
        f"{UP}.weight": codes.reshape(ROWS, COLUMNS).to(torch.int8),
        f"{UP}.weight_scale": scale,
        f"{UP}.weight_zero_point": zero.clamp(-128, 127).to(torch.int8),
    }
    config = {"num_bits": 8, "type": "int", "symmetric": False, "group_size": group}
    config["strategy"] = "group" if group < COLUMNS else "channel"
    told = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"all": {"targets": ["Linear"], "weights": config}},
    }
    report = compare(tmp_path, weights, {**plain(weights), **packed}, **told)
    assert report.exit_code == 1
    (damage,) = find(report).damage
    assert (damage.fault, damage.rows) == ("zero points off", len(range(0, ROWS, share)))
    assert "values shifted by one step down" in damage.detail


def pack_few_bits(weight: torch.Tensor, bits: int, *, per_row: bool, kept: float) -> Tensors:
    """Integers of a few bits, a byte each as libraries without a kernel for them store it."""
    groups = weight if per_row else weight.reshape(1, -1)
    top = 2 ** (bits - 1) - 1
    scale = torch.quantile(groups.abs(), kept, dim=1, keepdim=True) / top
    codes = (groups / scale).round().clamp(-top - 1, top).to(torch.int8)
    stored = scale if per_row else scale.reshape(1)
    return {f"{UP}.weight": codes.reshape(weight.shape), f"{UP}.weight_scale": stored}


@pytest.mark.parametrize("tails", [30, 4, 2])
@pytest.mark.parametrize(
    ("bits", "per_row", "kept"),
    [(4, True, 0.99), (4, False, 0.999), (4, False, 1.0), (6, True, 1.0)],
)
def test_integers_of_fewer_bits_than_a_byte_are_judged_by_the_levels_that_their_codes_show(
    tmp_path: Path, weights: Tensors, tails: int, bits: int, per_row: bool, kept: float
) -> None:
    generator = torch.Generator().manual_seed(4)
    normal = torch.randn(128, 256, generator=generator)
    squares = torch.randn(128, 256, tails, generator=generator).square().mean(-1)
    base = {**weights, f"{UP}.weight": 0.02 * normal / squares.sqrt()}  # Student's t
    packed = pack_few_bits(base[f"{UP}.weight"], bits, per_row=per_row, kept=kept)
    assert compare(tmp_path, base, {**plain(base), **packed}).exit_code == 0


def test_a_scale_that_wastes_levels_is_no_precision_of_fewer_bits(
    tmp_path: Path, weights: Tensors
) -> None:
    scale = weights[f"{UP}.weight"].abs().amax(1, keepdim=True) / 11  # codes of -11 to 11
    codes = (weights[f"{UP}.weight"] / scale).round().to(torch.int8)
    packed = {f"{UP}.weight": codes, f"{UP}.weight_scale": scale}
    assert compare(tmp_path, weights, {**plain(weights), **packed}).exit_code == 1


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scale", [float("nan"), 0.0, -1.0])
def test_a_scale_that_is_none_is_unreadable_or_a_difference_and_never_passes(
    tmp_path: Path, weights: Tensors, name: str, scale: float
) -> None:
    pack, _codes, kind = FORMATS[name]
    packed = pack(weights[f"{UP}.weight"])
    stored = packed[f"{UP}.{kind}"].contiguous().clone()
    stored.view(-1)[3] = torch.tensor(scale).to(stored.dtype)
    report = compare(tmp_path, weights, {**plain(weights), **packed, f"{UP}.{kind}": stored})
    assert report.exit_code == (3 if scale != scale else 1)
    assert find(report).state == ("unreadable" if scale != scale else "beyond")


def test_two_formats_in_one_checkpoint_are_both_read(tmp_path: Path, weights: Tensors) -> None:
    gate = UP.replace("up_proj", "gate_proj")
    weight = weights[f"{UP}.weight"]
    other = {name.replace(UP, gate): one.clone() for name, one in pack_gptq(weight).items()}
    base = {**weights, f"{gate}.weight": weight.clone()}
    packed = {**plain(weights), **pack_nvfp4(weight), **other}
    for config in ({}, {"quant_method": "gptq"}, {"quant_method": "nobody's"}):
        assert compare(tmp_path, base, packed, **config).exit_code == 0
