"""Arrays of a megabyte, freed and made again, are the same pages: the kernel clears none anew."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

_COUNT_FAULTS = """
import resource, sys
import numpy as np
from evalguard.tensor_files.opening import open_tensors
if sys.argv[1:]:
    open_tensors(sys.argv[1]).close()
def fill():
    several = [np.full(1 << 20, 1, np.uint8) for _ in range(8)]
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = 20 * 8 * 256


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators, other habits")
def test_once_tensors_were_opened_freed_arrays_are_given_out_again(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"weight": np.ones(4, np.float32)}, file)
    assert _faults(str(file)) < _PAGES / 20
    assert _faults() > _PAGES / 2, "nothing was to be mended"


def _faults(*words: str) -> int:
    command = [sys.executable, "-c", _COUNT_FAULTS, *words]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
