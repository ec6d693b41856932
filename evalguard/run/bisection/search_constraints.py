"""A variant's constraints as a search knows them: settings at candidate, or at reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalguard.core.settings import Constraint, Setting, Value, Variant

_SIDES = ("candidate", "reference")


def constraints_among(variant: Variant, searched: Sequence[str]) -> tuple[Constraint, ...]:
    """Return what the constraints say about the settings that are searched.

    Every other setting stays at its value. A value that is neither of a setting's two is one that
    it never has.
    """
    rules = []
    for constraint in variant.constraints:
        when = _searched_sides(constraint.when, variant, searched)
        then = _searched_sides(constraint.then, variant, searched)
        if when is None or (then is None and not when):
            continue  # it never applies; or it breaks the candidate, which was scored
        if then is None:  # always broken where it applies: what applies cannot be
            name, side = next(iter(when.items()))
            then = {name: _SIDES[1 - _SIDES.index(side)]}
        if then:
            rules.append(Constraint(when=when, then=then))
    return tuple(rules)


def _searched_sides(
    values: Mapping[str, Value], variant: Variant, searched: Sequence[str]
) -> dict[str, Value] | None:
    """The part about searched settings; None if the values can never be."""
    settings = {setting.name: setting for setting in variant.settings}
    sides: dict[str, Value] = {}
    for name, value in values.items():
        if name in searched:
            side = _side(settings[name], variant.assignment.get(name), value)
            if side is None:
                return None
            sides[name] = side
        elif variant.assignment.get(name) != value:
            return None
    return sides


def _side(setting: Setting, candidate: Value, value: Value) -> str | None:
    if value == candidate:
        return "candidate"
    return "reference" if value == setting.reference else None
