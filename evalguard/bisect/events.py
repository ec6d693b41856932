"""What a search tells while it runs: for progress on a screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evalguard.bisect.search_probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """Something is about to be measured: these settings at their candidate value.

    ``documents`` are asked now, of those that were not measured before; ``cost`` is theirs, in
    full evaluations.
    """

    settings: tuple[str, ...]
    documents: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnded:
    """A measurement ended, as ``probe`` says; ``spent`` is the cost of all so far."""

    probe: Probe
    spent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """These settings are no longer suspected. A later measurement may change that."""

    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """This setting is shown to be guilty on all documents."""

    setting: str
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the rest is expected to cost, in full evaluations, and who is suspected most."""

    remaining: float
    suspects: tuple[str, ...]


Event = ProbeStarted | ProbeEnded | Cleared | Accepted | Expected
Listener = Callable[[Event], None]
