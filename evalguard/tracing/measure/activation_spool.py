"""A spool: activations of a model that ran elsewhere, in memory and then on disk."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from evalguard.core.trace_points import ModelRounding
from evalguard.errors import EvaluationError
from evalguard.tensor_files.activation_dumps import Array

if TYPE_CHECKING:
    from types import TracebackType

    import torch

_ALIVE = 16  # tensors of late points that are held, to see whether a later point is the same one


@dataclass(slots=True)
class ActivationSpool:
    """Tensors under (sequence, point). The file has no name, so that nothing of it can be left.

    A point that is the same tensor object as one shortly before it (a module's output that is the
    next module's input) is stored once.
    """

    budget: int
    _held: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    _filed: dict[tuple[int, str], tuple[int, torch.dtype, torch.Size]] = field(default_factory=dict)
    _same: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    _order: dict[int, list[str]] = field(default_factory=dict)
    _late: deque[tuple[torch.Tensor, int, tuple[int, str]]] = field(
        default_factory=lambda: deque(maxlen=_ALIVE)
    )
    _bytes: int = 0
    _file: IO[bytes] | None = None

    def __enter__(self) -> ActivationSpool:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._held.clear()
        self._late.clear()
        if self._file is not None:
            self._file.close()

    def points(self, sequence: int) -> Sequence[str]:
        """Give the points of a sequence in the order in which they were stored."""
        return self._order.get(sequence, [])

    def stored_as(self, sequence: int, point: str) -> str:
        """Give the first point that is the same tensor."""
        return self._same.get((sequence, point), (sequence, point))[1]

    def put(self, sequence: int, point: str, value: torch.Tensor) -> None:
        """Store a copy.

        Raises:
            EvaluationError: the temporary folder has no room.
        """
        key = (sequence, point)
        self._order.setdefault(sequence, []).append(point)
        for tensor, version, earlier_key in self._late:
            if tensor is value and version == value._version and earlier_key[0] == sequence:
                self._same[key] = earlier_key
                return
        self._late.append((value, value._version, key))
        copy = value.detach().to("cpu", copy=True).contiguous()
        size = copy.numel() * copy.element_size()
        if self._bytes + size <= self.budget:
            self._bytes += size
            self._held[key] = copy
        else:
            self._write(key, copy)

    def get(self, sequence: int, point: str) -> torch.Tensor | None:
        """Give what was stored, to be read only; None where nothing was."""
        key = self._same.get((sequence, point), (sequence, point))
        if key in self._held:
            return self._held[key]
        return self._read(*self._filed[key]) if key in self._filed else None

    def _write(self, key: tuple[int, str], value: torch.Tensor) -> None:
        import torch

        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="evalguard-trace-")  # noqa: SIM115
            offset = self._file.seek(0, 2)
            self._file.write(value.reshape(-1).view(torch.uint8).numpy().data)
        except OSError as error:
            raise EvaluationError(
                f"the activations of {self._bytes / 2**30:.1f} GiB and more found no room in "
                f"{tempfile.gettempdir()}: {error.strerror or error}",
                hint="trace fewer or shorter documents, or name a larger folder in TMPDIR",
            ) from error
        self._filed[key] = (offset, value.dtype, value.shape)

    def _read(self, place: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        import torch

        assert self._file is not None
        values: Any = torch.empty(shape, dtype=dtype)
        raw = values.reshape(-1).view(torch.uint8).numpy()
        self._file.seek(place)
        read = self._file.readinto(memoryview(raw))  # type: ignore[attr-defined]
        if read != raw.nbytes:
            raise EvaluationError("the temporary file of recorded activations was cut short")
        tensor: torch.Tensor = values
        return tensor


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
        self._files += [{point: Path(file) for point, file in files.items()} for files in written]

    def names(self, sequence: int) -> Sequence[str]:
        """Points of a sequence, in the order in which they were written."""
        return list(self._files[sequence])

    def read(self, sequence: int, point: str) -> Array:
        """Read one value."""
        return np.asarray(np.load(self._files[sequence][point], allow_pickle=False))

    def files(self, sequence: int) -> Mapping[str, str]:
        """Paths of the ``.npy`` files of a sequence by point, for a worker of this machine."""
        return {point: str(file) for point, file in self._files[sequence].items()}
