"""Weights that are others times, or plus, one number: the same number of all is one mistake."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from evalguard.core.reports.tensors_report import Likeness
from evalguard.models.weight_places import WeightPlace
from evalguard.run.bisection.stored_names import StoredNames

# Two tensors with one of these differ alike only if it is by the same number.
_SHIFTED, _SCALED = "plus a constant", "scaled"
_BY_A_NUMBER = frozenset({_SHIFTED, _SCALED})


_CLOSE = 0.01  # of the largest weight, or of a number: what bfloat16 may hide
_TELLING = 0.05  # of the largest weight: a smaller number may be a rounding's


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """What weights became others by. ``either``: both a factor and a constant explain it."""

    fault: str
    by: float
    either: float | None = None


def find_numbers(
    stored: StoredNames,
    places: Mapping[str, WeightPlace],
    differing: Iterable[str],
    likenesses: Mapping[str, Likeness],
    matrices: Collection[str],
) -> Iterator[tuple[str, list[str]]]:
    """Yield by which number weights of a kind are off, and which.

    Norm weights that hardly scatter are shifted as well as scaled: what those beside them are
    decides.
    """
    told: dict[str, _Number] = {}
    for name in differing:
        likeness = likenesses.get(name)
        known = likeness.name if likeness is not None and likeness.name in _BY_A_NUMBER else ""
        if name in stored.base and (known or name not in matrices):
            number = _read_number(name, stored, known)
            if number is not None:
                told[name] = number
    shifts = {(places[n].kind, one.by) for n, one in told.items() if one.fault == _SHIFTED}
    for name, number in told.items():
        if number.either is not None and any(
            kind == places[name].kind and _close(by, number.either) for kind, by in shifts
        ):
            told[name] = _Number(fault=_SHIFTED, by=number.either)
    groups: list[tuple[str, str, float, list[str]]] = []
    for name, number in told.items():
        kind = places[name].kind
        for other, fault, by, tensors in groups:
            if (other, fault) == (kind, number.fault) and _close(by, number.by):
                tensors.append(name)
                break
        else:
            groups.append((kind, number.fault, number.by, [name]))
    for _, fault, by, tensors in groups:
        yield f"{fault}, {_number_text(fault, by)}", tensors


def _number_text(fault: str, by: float) -> str:
    """As few digits as a rounding on top leaves; of a factor near 1 all that tell it from 1."""
    sign = "+" if fault == _SHIFTED else ""
    text = next(
        (text for digits in (1, 2) if _close(float(text := f"{by:{sign}.{digits}g}"), by)),
        f"{by:{sign}.3g}",
    )
    if fault == _SHIFTED:
        return text
    return f"by {by:.6g}" if _close(by, 1.0) else f"by {text}"


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _CLOSE * max(abs(one), abs(other))


def _read_number(name: str, stored: StoredNames, known: str) -> _Number | None:
    """By which number a weight is off; None where by none.

    Args:
        known: "scaled" or "plus a constant", where that was recognised; "" else.
    """
    base, candidate = (side.flatten() for side in stored.read(name))
    largest = float(candidate.abs().max())
    if largest == 0.0:  # zeroed: no number is left
        return None
    difference = candidate - base
    shift = float(difference.median())
    apart = float((difference - shift).abs().max())
    scatter = float((base - base.median()).abs().max())
    squares = float(base @ base)
    factor = float(base @ candidate) / squares if squares else 0.0
    left = float((candidate - factor * base).abs().max())
    shifted = apart <= _CLOSE * largest and abs(shift) >= _TELLING * largest
    scaled = squares > 0.0 and left <= _CLOSE * largest and abs(factor - 1.0) >= _TELLING
    if known == _SHIFTED or (shifted and (scatter > 2.0 * _CLOSE * largest or not squares)):
        return _Number(fault=_SHIFTED, by=shift)
    if known == _SCALED or scaled:
        return _Number(fault=_SCALED, by=factor, either=shift if shifted else None)
    return None
