"""Activations of a runtime: seen one after the other while a text is read, and replaced if asked.

Points are those of the Hugging Face model of the same architecture (core/tracing/points.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from queue import Queue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import EvaluationError

if TYPE_CHECKING:
    import torch

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

    def __init__(self, files: Sequence[Mapping[str, str]], *, precision: str) -> None:
        self.precision = precision
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


# torch modules: hooks on the submodules whose values are points.


@contextlib.contextmanager
def hook_modules(root: Any, names: Mapping[str, str], visit: Visit) -> Iterator[None]:
    """Show the inputs and outputs of submodules while the block runs.

    A submodule's input is its first argument that holds floating-point numbers.

    Args:
        root: the torch module.
        names: what a submodule is called in the names of its points, by its path.
    """
    calls: dict[str, int] = {}
    handles = []

    def show(name: str, side: str, part: str, value: torch.Tensor) -> torch.Tensor | None:
        number = "" if calls[name] == 1 else f"#{calls[name]}"
        point = f"{name}{number}:{side}{part}"
        given = visit(point, lambda: to_numpy(value))
        return None if given is None else replace_values(given, value, point)

    def before(name: str) -> Callable[..., Any]:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return _replace_argument(args, kwargs, lambda value: show(name, "in", "", value))

        return hook

    def after(name: str) -> Callable[..., Any]:
        def hook(_module: Any, _args: Any, output: Any) -> Any:
            return _replace_outputs(output, lambda part, value: show(name, "out", part, value))

        return hook

    modules = dict(root.named_modules())
    try:
        for path, name in names.items():
            module = modules[path]
            # First, so that casts by hooks of the module's own are its own doing.
            handles.append(
                module.register_forward_pre_hook(before(name), prepend=True, with_kwargs=True)
            )
            handles.append(module.register_forward_hook(after(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def to_numpy(value: torch.Tensor) -> NDArray[np.float32]:
    """Return a tensor's values in float32."""
    found: NDArray[np.float32] = value.detach().float().cpu().numpy()
    return found


def replace_values(given: Array, value: torch.Tensor, point: str) -> torch.Tensor:
    """Return what is forced at a point as a tensor like the model's own.

    Raises:
        EvaluationError: it has another number of elements.
    """
    import torch

    if given.size != value.numel():
        raise EvaluationError(
            f"the value to be forced at {point} has shape {given.shape}, the model's own "
            f"{tuple(value.shape)}"
        )
    tensor = torch.from_numpy(np.ascontiguousarray(given)).reshape(value.shape)
    return tensor.to(device=value.device, dtype=value.dtype)


def _is_values(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _replace_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], show: Callable[[Any], Any]
) -> Any:
    """Show the first argument that holds floating-point numbers; None where it stays."""
    for place, value in enumerate(args):
        if _is_values(value):
            given = show(value)
            return None if given is None else ((*args[:place], given, *args[place + 1 :]), kwargs)
    for name, value in kwargs.items():
        if _is_values(value):
            given = show(value)
            return None if given is None else (args, {**kwargs, name: given})
    return None


def _replace_outputs(output: Any, show: Callable[[str, Any], Any]) -> Any:
    """Show the outputs that hold floating-point numbers; None where they stay."""
    if _is_values(output):
        return show("", output)
    if not isinstance(output, tuple | list):
        return None
    found, tensors = list(output), 0
    for place, value in enumerate(output):
        if _is_values(value):
            given = show(f".{tensors}" if tensors else "", value)
            tensors += 1
            found[place] = value if given is None else given
    changed = any(one is not other for one, other in zip(found, output, strict=True))
    return type(output)(found) if changed else None
