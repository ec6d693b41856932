"""Activations of a runtime: seen one after the other while a text is read, and replaced if asked.

Points are those of the Hugging Face model of the same architecture (core/tracing/points.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from queue import Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tracing.points import ModelRounding
from evalguard.errors import EvaluationError

Array = NDArray[Any]
Activation = tuple[str, NDArray[np.float32]]


# Sees a point while the model runs: its name, and what gives its value (what nobody wants is not
# copied). Returns what is to stand in the value's place, of as many elements; None: it stays.
Visit = Callable[[str, Callable[[], Array]], Array | None]


def stream_activations(
    read: Callable[[Visit], None],
    wanted: Collection[str] = (),
    forced: Mapping[str, str] | None = None,
) -> Iterator[Activation]:
    """Yield what flows at points while ``read`` runs, one value at a time.

    The model waits in a thread of its own until a value has been taken, so that never more than one
    is in memory. Left unfinished, the pass is broken off.

    Args:
        read: runs the model once and shows every point to its argument.
        wanted: points; empty: all.
        forced: files by point, ``.npy``: what is to stand in place of the model's own value, which
            is yielded first.

    Raises:
        EvaluationError: a file is damaged.
        Exception: what the pass raised.
    """
    points, files = frozenset(wanted), forced or {}
    values: Queue[Activation | BaseException | None] = Queue()
    taken = threading.Semaphore(0)
    stopped = threading.Event()

    def visit(point: str, value: Callable[[], Array]) -> Array | None:
        if stopped.is_set():
            raise _StoppedError
        given = _read_file(files[point], point) if point in files else None
        if given is not None or not points or point in points:
            values.put((point, np.array(value(), dtype=np.float32)))
            taken.acquire()
        return given

    def run() -> None:
        try:
            read(visit)
            values.put(None)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  raised where the values are taken
            values.put(error)

    thread = threading.Thread(target=run, name="evalguard-activations", daemon=True)
    thread.start()
    try:
        while (found := values.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found
            taken.release()
    finally:
        stopped.set()
        taken.release()
        thread.join()


class _StoppedError(Exception):
    """Nobody takes the values of this pass any more."""


def _read_file(file: str, point: str) -> Array:
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{file}, the value at {point}, cannot be read: {error}") from error


class FiledActivations:
    """Activations of another model in ``.npy`` files, by point (``RecordedActivations``)."""

    inputs_known = True  # it was asked for these

    def __init__(self, files: Sequence[Mapping[str, str]], rounding: ModelRounding) -> None:
        self.rounding = rounding
        self._files = files

    def names(self, sequence: int) -> Sequence[str]:
        """Points of a sequence."""
        return list(self._files[sequence])

    def read(self, sequence: int, point: str) -> Array:
        """Read one value.

        Raises:
            EvaluationError: its file is damaged.
        """
        return _read_file(self._files[sequence][point], point)
