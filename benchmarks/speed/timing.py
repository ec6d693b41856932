"""CPU seconds of this process, of several sides that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Medians of repeated measurements."""

    cpu: float
    wall: float
    repeats: int

    @property
    def text(self) -> str:
        """CPU seconds, and wall seconds behind them."""
        return f"{self.cpu:.2f} ({self.wall:.2f})"


def medians(spent: list[tuple[float, float]]) -> Seconds:
    """Medians of (CPU, wall) seconds."""
    return Seconds(
        cpu=statistics.median(cpu for cpu, _ in spent),
        wall=statistics.median(wall for _, wall in spent),
        repeats=len(spent),
    )


def cpu_seconds(work: Callable[..., Any], *given: Any) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work(*given)
    return time.process_time() - start


def alternating(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Seconds]:
    """Let the sides take turns, each ``repeats`` times, after one turn that does not count."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for work in sides.values():
        work()
    for _ in range(repeats):
        for name, work in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: medians(of) for name, of in spent.items()}
