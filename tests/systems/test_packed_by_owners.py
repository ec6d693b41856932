"""Packed checkpoints are read as the libraries that pack them dequantise them; what was packed is
healthy, and what is damaged then is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from system_models import run_in

from evalguard.tensor_files.opening import open_tensors
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_report import TensorsReport

Tensors = dict[str, torch.Tensor]
UP = "model.layers.0.mlp.up_proj"
pytestmark = [pytest.mark.systems, pytest.mark.nightly]

REQUIREMENTS = [
    "torch==2.13.0",
    "numpy",
    "safetensors",
    "compressed-tensors==0.20.0",
    "torchao==0.18.0",
    "bitsandbytes==0.50.2",
    "optimum-quanto==0.2.7",
    "transformers==5.24.0",
    "mlx[cpu]==0.32.4",
]
LIBRARIES = {"compressed-tensors": 11, "torchao": 7, "bitsandbytes": 5, "quanto": 4, "mlx": 9}


@pytest.fixture(scope="module", params=LIBRARIES)
def folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache_dir: Path
) -> list[Path]:
    """What a library packed: a folder for each of its formats."""
    script, made = Path(__file__).parent / "owners_packing.py", tmp_path_factory.mktemp("packed")
    run_in(REQUIREMENTS, cache_dir, str(script), request.param, str(made))
    found = sorted(one for one in made.iterdir() if one.is_dir())
    assert len(found) == LIBRARIES[request.param]
    return found


def test_every_format_of_a_library_is_read_as_it_dequantises_it(folders: list[Path]) -> None:
    assert {one.name: read_difference(one) for one in folders} == {
        one.name: pytest.approx(0.0, abs=5e-7) for one in folders
    }


def read_difference(folder: Path) -> float:
    """The greatest difference of an element, beside the greatest element of its tensor."""
    worst = 0.0
    with (
        open_tensors(folder.parent / f"{folder.name}-expected.safetensors") as owners,
        open_tensors(folder) as packed,
    ):
        for name, wanted in owners.tensors.items():
            found = packed.tensors[name]
            assert (found.fault, bool(found.packing)) == ("", True)
            numbers, right = found.load(), wanted.load()
            if not found.shape_known:  # quanto's groups: the file does not say how many rows
                numbers = numbers.reshape(right.shape)
            assert numbers.shape == right.shape
            worst = max(worst, float(np.abs(numbers - right).max() / np.abs(right).max()))
    return worst


def test_every_format_is_healthy_as_it_was_packed(folders: list[Path], tmp_path: Path) -> None:
    for folder in folders:
        report = compare(folder, load_file(folder / "model.safetensors"), tmp_path)
        assert (folder.name, report.exit_code, report.missing) == (folder.name, 0, ())


# Parts by what follows the module's name; the first that is there.
CODES = (
    ".weight_packed", "._weight_qdata", ".weight._data._data", ".weight._data", ".weight",
)  # fmt: skip
SCALES = (".weight_scale", "._weight_scale", ".weight._scale", ".scales", ".weight.absmax", ".SCB")
ZEROS = (".weight_zero_point", "._weight_zero_point", ".weight._shift", ".biases")


def damage_block(tensors: Tensors) -> set[str]:
    """Change the codes of some neighbours."""
    codes = find(tensors, CODES)
    assert codes is not None
    raw = codes.view(torch.uint8).view(-1)
    raw[len(raw) // 2 :][:8] ^= 0x5A
    return {"blocks damaged"}


def swap_scales(tensors: Tensors) -> set[str]:
    """Exchange the greatest scale with the least; what a code begins at moves with it."""
    scales = find(tensors, SCALES)
    if scales is None or scales.numel() < 2:
        return set()
    order = scales.view(torch.uint8) if scales.itemsize == 1 else scales  # positive: in order
    flat, places = order.view(-1), order.float().view(-1)
    first, last = int(places.argmin()), int(places.argmax())
    flat[first], flat[last] = flat[last].clone(), flat[first].clone()
    return {"blocks scaled", "rows scaled", "zero points off", "blocks damaged"}


def move_zero_point(tensors: Tensors) -> set[str]:
    """Move where a group begins by one step."""
    zeros, scales = find(tensors, ZEROS), find(tensors, SCALES)
    if zeros is None or scales is None:
        return set()
    flat, middle = zeros.view(-1), zeros.numel() // 2
    if zeros.dtype == torch.int32:  # packed
        flat[middle] ^= 1
    else:
        flat[middle] += 1 if zeros.dtype == torch.int8 else scales.view(-1)[middle].to(zeros.dtype)
    return {"zero points off"}


@pytest.mark.parametrize("plant", [damage_block, swap_scales, move_zero_point])
def test_a_fault_in_any_format_is_named(
    folders: list[Path], tmp_path: Path, plant: Callable[[Tensors], set[str]]
) -> None:
    for folder in folders:
        tensors = load_file(folder / "model.safetensors")
        names = plant(tensors)
        if not names:
            continue
        report = compare(folder, tensors, tmp_path)
        assert (folder.name, report.exit_code) == (folder.name, 1)
        (delta,) = (one for one in report.deltas if not one.passed)
        assert delta.name == f"{UP}.weight"
        assert {one.fault for one in delta.damage} <= names, folder.name
        assert delta.damage, folder.name


def find(tensors: Tensors, suffixes: tuple[str, ...]) -> torch.Tensor | None:
    return next((tensors[UP + one] for one in suffixes if UP + one in tensors), None)


def compare(folder: Path, tensors: Tensors, place: Path) -> TensorsReport:
    """Compare what was packed, perhaps changed, with what it was packed from."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    changed = place / folder.name
    changed.mkdir()
    save_file(tensors, changed / "model.safetensors", metadata=metadata)
    shutil.copy(folder / "config.json", changed)
    base = folder.parent / "base.safetensors"
    return compare_tensors(str(base), str(changed), TensorOptions())
