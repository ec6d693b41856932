"""Peak memory of processes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from evalguard.worker.process_family import peak_memory

ONLY_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_the_peak_grows_with_what_is_held() -> None:
    before = peak_memory()
    assert before is not None
    held = np.ones(2**25)  # 256 MiB
    after = peak_memory()
    assert after is not None
    del held
    assert after >= before
    assert after >= 2**28


@ONLY_LINUX
def test_a_child_does_not_inherit_the_peak_of_its_parent() -> None:
    held = np.ones(2**25)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        found = peak_memory(child.pid)
        child.kill()
    assert found is not None
    assert found < held.nbytes
    assert peak_memory(os.getpid()) >= held.nbytes  # type: ignore[operator]


@ONLY_LINUX
def test_a_process_that_is_gone_has_no_peak() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert peak_memory(child.pid) is None
