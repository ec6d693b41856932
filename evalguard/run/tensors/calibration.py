"""``evalguard tensors --calibrate``: noise measured, named, and read back from a file."""

from __future__ import annotations

from pathlib import Path

from evalguard.core.tensors.noise import NoiseTable
from evalguard.errors import UsageError
from evalguard.models.noise.measuring import measure_noise
from evalguard.models.noise.operations import find_subject
from evalguard.regular_file import read_regular_text
from evalguard.report.tensors.contract import parse_noise

_LARGEST_BYTES = 10_000_000


def calibrate_noise(
    subject: str, *, repetitions: int, rtol: float | None = None, atol: float | None = None
) -> NoiseTable:
    """Measure the noise of an operation or of a model in a folder.

    Raises:
        UsageError: no such operation or folder.
        EvaluationError: the model cannot be loaded.
    """
    return measure_noise(
        find_subject(subject),
        repetitions=repetitions,
        rtol=1.3e-6 if rtol is None else rtol,
        atol=1e-5 if atol is None else atol,
    )


def read_noise(path: Path) -> NoiseTable:
    """Read a table that ``--calibrate --json`` wrote.

    Raises:
        UsageError: there is no such file.
        StoreError: it is no noise table.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"{path} is too large for a noise table")
        text = read_regular_text(path)
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(
            f"{path} cannot be read: {said}",
            hint="write one with evalguard tensors --calibrate WHAT --json > noise.json",
        ) from error
    return parse_noise(text, str(path))
