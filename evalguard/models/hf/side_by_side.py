"""Two models of this process that compute at the same time, each in a thread of its own."""

from __future__ import annotations

import contextvars
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from evalguard.models.identity import usable_cores
from evalguard.models.process_state import use_threads

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
# Whose modules keep what they compute to themselves. Code that comes with a checkpoint, or with a
# setting, may keep it for all models, and two threads would then read each other's.
_IN_THREADS = frozenset({"torch", "transformers", "evalguard"})


def threads_side_by_side(
    models: tuple[torch.nn.Module | None, torch.nn.Module | None], threads: tuple[int, int]
) -> int:
    """Return the CPU threads of each of two models that are to compute at the same time; 0: not.

    They are where one of them leaves as many cores idle as it uses, and where torch's and
    transformers' own code alone computes. The number of threads stays,
    and with it every digit, so that nobody can tell from scores whether they were.

    Args:
        threads: that each computes with; 0: as many as torch uses.
    """
    import torch

    base, candidate = models
    if base is None or candidate is None or base is candidate:
        return 0
    if torch.get_default_device().type != "cpu" or not (_on_cpu(base) and _on_cpu(candidate)):
        return 0
    if not (_keeps_to_itself(base) and _keeps_to_itself(candidate)):
        return 0
    ours, theirs = (number or torch.get_num_threads() for number in threads)
    return ours if ours == theirs and 2 * ours <= usable_cores() else 0


def _on_cpu(model: torch.nn.Module) -> bool:
    return all(weight.device.type == "cpu" for weight in model.parameters())


def _keeps_to_itself(model: torch.nn.Module) -> bool:
    """Whether libraries alone compute: no module or hook of others, no other ``forward``."""
    return all(
        "forward" not in vars(module)
        and all(
            (getattr(code, "__module__", "") or "").partition(".")[0] in _IN_THREADS
            for code in (
                type(module),
                *module._forward_hooks.values(),
                *module._forward_pre_hooks.values(),
            )
        )
        for module in model.modules()
    )


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


@contextmanager
def computed_beside(stream: Iterator[T], *, threads: int) -> Iterator[Iterator[T]]:
    """Let a stream be computed in a thread, one item ahead of who takes them.

    What it raises is raised where the next item is taken. The thread has ended when this is left:
    of an interrupted stream, after the item that is being computed.

    Args:
        threads: CPU threads of torch, there and here.
    """
    ready: Queue[T | _Ended] = Queue(maxsize=1)
    stopped = threading.Event()

    def compute() -> None:
        error: BaseException | None = None
        try:
            with use_threads(threads):
                # each item is let go of before the next one is made
                while not stopped.is_set() and _hand_over(stream, ready):
                    pass
        except BaseException as raised:  # noqa: BLE001 - raised where the item is taken
            error = raised
        ready.put(_Ended(error))

    # what is set for a context (transformers' own switches) is set there, too
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(compute,), daemon=True, name="side by side"
    )
    with use_threads(threads):
        thread.start()
        try:
            yield _taken(ready)
        finally:
            stopped.set()
            while thread.is_alive():
                _drop(ready)
                thread.join(0.01)


def _hand_over(stream: Iterator[T], ready: Queue[T | _Ended]) -> bool:
    """Compute an item and wait until there is room for it; False: there is none."""
    for item in stream:
        ready.put(item)
        return True
    return False


def _taken(ready: Queue[T | _Ended]) -> Iterator[T]:
    while not isinstance(item := ready.get(), _Ended):
        taken = [item]
        del item
        yield taken.pop()
    if item.error is not None:
        raise item.error


def _drop(ready: Queue[T]) -> None:
    try:
        ready.get_nowait()
    except Empty:
        return


def random_states() -> tuple[object, ...]:
    """Return where the generators of this process stand; two are equal where nobody drew."""
    import torch

    kind, keys, *rest = np.random.get_state(legacy=True)
    return (
        random.getstate(),
        (kind, np.asarray(keys).tobytes(), *rest),
        torch.default_generator.get_state().numpy().tobytes(),
    )
