"""Packed checkpoints are read as the libraries that pack them dequantise them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from system_models import run_in

from evalguard.store.tensor_files import open_tensors

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


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_format_of_a_library_is_read_as_it_dequantises_it(
    tmp_path: Path, cache_dir: Path, library: str
) -> None:
    script = Path(__file__).parent / "owners_packing.py"
    run_in(REQUIREMENTS, cache_dir, str(script), library, str(tmp_path))
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == LIBRARIES[library]
    assert {one.name: read_difference(one) for one in folders} == {
        one.name: pytest.approx(0.0, abs=5e-7) for one in folders
    }


def read_difference(folder: Path) -> float:
    """The greatest difference of an element, beside the greatest element of its tensor."""
    worst = 0.0
    with (
        open_tensors(folder / "expected.safetensors") as owners,
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
