"""Loads: how often a search had a model, and in which way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """How often a search had a model, and in which way it came about.

    Attributes:
        started: in a new worker process.
        loaded: in the worker process of the one before.
        reassigned: by other values for settings of the one before, without loading it.
    """

    started: int = 0
    loaded: int = 0
    reassigned: int = 0

    def __add__(self, other: Loads) -> Loads:
        """Of several workers together."""
        return Loads(
            started=self.started + other.started,
            loaded=self.loaded + other.loaded,
            reassigned=self.reassigned + other.reassigned,
        )
