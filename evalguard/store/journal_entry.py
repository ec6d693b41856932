"""Entry of a journal: how one block of documents went under one assignment of the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.oracle import Refusal
from evalguard.bisect.probe import Outcome
from evalguard.settings import Value, digest_of

_OUTCOMES: tuple[str, ...] = ("scored", *get_args(Refusal))
_CHECK = "check"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """How one block of documents went under one assignment of the settings.

    Attributes:
        assignment: digest of the effective assignment, the code and the environment.
        block: digest of the block; "" where the model could not even be loaded.
        outcome: "scored", or why there are no scores.
        values: float64, shape (n,), of the block's documents; None unless scored.
        reason: what went wrong, in one line.
        seconds: what it took.
        settings: those at their candidate value, for people to read.
    """

    assignment: str
    block: str
    outcome: Outcome
    values: NDArray[np.float64] | None = None
    reason: str = ""
    seconds: float = 0.0
    settings: tuple[str, ...] = ()

    def told(self) -> dict[str, Value]:
        """Return the entry as plain JSON data."""
        values = None if self.values is None else [_number(v) for v in self.values.tolist()]
        return {
            "assignment": self.assignment,
            "block": self.block,
            "settings": list(self.settings),
            "outcome": self.outcome,
            "reason": self.reason,
            "seconds": round(self.seconds, 6),
            "values": values,  # type: ignore[dict-item]
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Entry:
        """Read an entry back.

        Raises:
            ValueError, TypeError, KeyError: it is none, or one of another version.
        """
        values = record["values"]
        outcome = record["outcome"]
        if outcome not in _OUTCOMES or (outcome == "scored") != (values is not None):
            raise ValueError(f"no outcome: {outcome}")
        return cls(
            assignment=str(record["assignment"]),
            block=str(record["block"]),
            outcome=outcome,
            values=None if values is None else np.array([float(v) for v in values]),
            reason=str(record["reason"]),
            seconds=float(record["seconds"]),
            settings=tuple(record["settings"]),
        )


def to_line(record: Mapping[str, Value]) -> bytes:
    """Return a record as one line, with a digest of itself."""
    line = json.dumps({**record, _CHECK: digest_of(dict(record))}, allow_nan=False)
    return f"{line}\n".encode()


def from_line(line: bytes) -> dict[str, Any] | None:
    """Return a line's record; None unless it is whole, and as it was written."""
    try:
        record = json.loads(line)
        check = record.pop(_CHECK)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if check == digest_of(record) else None


def _number(value: float) -> float | str:
    """JSON has no number for NaN and infinity."""
    return value if np.isfinite(value) else str(value)
