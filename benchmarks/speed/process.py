"""A command in a process of its own: CPU seconds, with those of its children."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# One thread for both sides: a tiny model runs as fast on one, and CPU seconds can be compared.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
# An installed package has its bytecode; a checkout gets it in the first run, which does not count.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended, and what it printed."""

    cpu: float
    wall: float
    code: int
    out: str


def run(command: Sequence[object], env: Mapping[str, str], *, codes: Sequence[int] = (0,)) -> Ran:
    """Run a command to its end.

    Raises:
        RuntimeError: if it ends with a code that is not among ``codes``.
    """
    words = [str(word) for word in command]
    whole = {**os.environ, **ONE_THREAD, **OFFLINE, **COMPILED, "PYTHONPATH": str(ROOT), **env}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(words, stdout=out, stderr=err, env=whole)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        code = process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    if code not in codes:
        raise RuntimeError(f"{' '.join(words)} ended with {code}:\n{texts[1][-2000:]}")
    cpu = used.ru_utime + used.ru_stime
    return Ran(cpu=cpu, wall=wall, code=code, out=texts[0])
