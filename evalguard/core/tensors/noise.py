"""Noise tables: how large the error of one computation is in each precision, as measured.

``evalguard tensors --calibrate`` measures them; a figure of a test or a bug report is then named
after the precision in whose range it lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.core.settings import Value

# Figures outside all ranges still belong to the nearest one if no further away than this factor:
# greatest differences of other data of the same shape vary by about 2 (300 seeds).
_NEAR = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRange:
    """Least, median and greatest of a figure over all repetitions.

    Attributes:
        low: least of all repetitions.
        median: of all repetitions.
        high: greatest of all repetitions.
    """

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseClass:
    """What one precision (or one benign change) does to the result.

    Attributes:
        name: "float16", "TF32", "same model again".
        family: the class of precision it belongs to: "fp16/TF32"; "float32" for what should not
            matter.
        exact: whether every repetition was bit for bit the same.
    """

    name: str
    family: str
    greatest_absolute: NoiseRange
    greatest_relative: NoiseRange
    relative_l2: NoiseRange
    mismatched_share: NoiseRange
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseTable:
    """Noise of one computation; ``subject`` says which, ``repetitions`` how often.

    Attributes:
        elements: of one result.
        rtol: relative tolerance that ``mismatched_share`` was counted with, and ``atol`` the
            absolute one.
        environment: torch, device, its instruction set.
        subject: operation with its sizes, or a model folder.
        repetitions: seeds of weights and inputs.
        atol: absolute tolerance likewise.
    """

    subject: str
    repetitions: int
    elements: int
    rtol: float
    atol: float
    classes: tuple[NoiseClass, ...]
    environment: Mapping[str, Value] = field(default_factory=dict)

    def families(self) -> dict[str, NoiseRange]:
        """Return family -> the range of greatest absolute differences of all its members."""
        found: dict[str, NoiseRange] = {}
        for one in self.classes:
            own = one.greatest_absolute
            if one.exact or own.high == 0.0:
                continue
            known = found.get(one.family, own)
            found[one.family] = NoiseRange(
                low=min(known.low, own.low),
                median=math.sqrt(known.median * own.median),
                high=max(known.high, own.high),
            )
        return found


def name_noise(table: NoiseTable, *, greatest_absolute: float) -> str:
    """Return the family in whose range a figure lies, or the nearest one; "" if none is near.

    Where ranges overlap ("bf16 or int8"), the one whose middle is nearer comes first.
    """
    if not greatest_absolute > 0.0 or not math.isfinite(greatest_absolute):
        return ""
    families = table.families()
    distances = {
        family: max(0.0, _log(own.low, greatest_absolute), _log(greatest_absolute, own.high))
        for family, own in families.items()
    }
    middles = {family: abs(_log(own.median, greatest_absolute)) for family, own in families.items()}
    inside = [family for family, distance in distances.items() if distance == 0.0]
    if inside:
        return " or ".join(sorted(inside, key=middles.__getitem__))
    near = min(distances, key=distances.__getitem__, default="")
    return near if near and distances[near] <= math.log(_NEAR) else ""


def _log(part: float, whole: float) -> float:
    return math.log(part / whole) if part > 0.0 else -math.inf
