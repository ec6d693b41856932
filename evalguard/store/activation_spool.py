"""A spool: activations of a model that ran elsewhere, kept in a temporary folder."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.core.tracing.points import ModelRounding
from evalguard.errors import EvaluationError
from evalguard.store.activation_dumps import Array


class SpooledActivations:
    """Activations of a pass, written as they come, read one at a time.

    The folder is removed when this is closed, is no longer used, or the process ends.

    Args:
        rounding: of the model that they are of.
    """

    inputs_known = True  # of a model that was asked for these

    def __init__(self, rounding: ModelRounding) -> None:
        self.rounding = rounding
        folder = tempfile.mkdtemp(prefix="evalguard-trace-")
        self._folder = Path(folder)
        self._files: list[dict[str, Path]] = []
        self.close: Callable[[], Any] = weakref.finalize(
            self, shutil.rmtree, folder, ignore_errors=True
        )

    def add(self, values: Iterable[tuple[str, Array]]) -> None:
        """Write the values of one more sequence.

        Raises:
            EvaluationError: the temporary folder has no room.
        """
        files: dict[str, Path] = {}
        folder = self._folder / f"{len(self._files):06}"
        self._files.append(files)
        try:
            folder.mkdir()
            for number, (point, value) in enumerate(values):
                file = folder / f"{number:06}.npy"
                np.save(file, value, allow_pickle=False)
                files[point] = file
        except OSError as error:
            raise EvaluationError(
                f"recorded activations found no room in {self._folder}: {error.strerror or error}",
                hint="trace fewer or shorter documents, or name a larger folder in TMPDIR",
            ) from error

    @property
    def folder(self) -> Path:
        """Where others may write; see ``adopt``."""
        return self._folder

    def adopt(self, written: Sequence[Mapping[str, str]]) -> None:
        """Take files that another process has written into the folder, by point, of sequences."""
        self._files += [{point: Path(file) for point, file in one.items()} for one in written]

    def names(self, sequence: int) -> Sequence[str]:
        """Points of a sequence, in the order in which they were written."""
        return list(self._files[sequence])

    def read(self, sequence: int, point: str) -> Array:
        """Read one value."""
        return np.asarray(np.load(self._files[sequence][point], allow_pickle=False))

    def files(self, sequence: int) -> Mapping[str, str]:
        """Paths of the ``.npy`` files of a sequence by point, for a worker of this machine."""
        return {point: str(file) for point, file in self._files[sequence].items()}
