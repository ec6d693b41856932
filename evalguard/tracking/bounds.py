"""Bounds: how long sending may take, whatever the network does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Seconds.

    Attributes:
        start: for the sending process to import the tracker and to start what it needs.
        init: to open a run at the server; ``finish``: to upload it and close it.
    """

    start: float = 25.0
    init: float = 10.0
    finish: float = 60.0

    @property
    def online(self) -> float:
        """After this a process that sends is killed."""
        return self.start + self.init + self.finish

    @property
    def local(self) -> float:
        """After this a process that only writes to this machine is killed."""
        return self.start + self.finish
