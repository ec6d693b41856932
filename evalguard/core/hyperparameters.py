"""Hyper-parameters of two models as their runtimes hold them: which differ, and which do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, get_args

import numpy as np

from evalguard.core.precision_vote import BFLOAT16_BITS, round_mantissa
from evalguard.core.settings import Value, fold_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperparameterDelta:
    """One hyper-parameter of both sides as the runtime holds it.

    Attributes:
        name: of the common vocabulary ("norm_eps"), or as the library calls it.
        base, candidate: values; a list where a side's modules hold several. None: no value.
        verdict: "equal as float32": the same number once both are rounded, as 9.99999975e-06 and
            1e-5; as bfloat16 or float16 where a side holds it in a tensor of that dtype. "declared
            alike": files or arguments of one side say what the other has, and its library does not
            show what it holds, or shows it in few digits.
        where: the modules that hold it, in words; "" for the whole model. ``modules``: as globs; ()
            for the whole model, and for every module that has it.
        base_source, candidate_source: as each side writes it; "" for a side that does not show it.
    """

    name: str
    base: Value
    candidate: Value
    verdict: HyperparameterVerdict
    where: str = ""
    base_source: str = ""
    candidate_source: str = ""
    modules: tuple[str, ...] = ()


HyperparameterVerdict = Literal[
    "differs", "one side only", "declared alike",
    "equal as bfloat16", "equal as float16", "equal as float32", "equal",
]  # fmt: skip
_ORDER: tuple[str, ...] = get_args(HyperparameterVerdict)
# Two models have modules of the same names where at least this share of the smaller one's is in
# both; below that their libraries name modules in their own ways.
_SHARED_NAMES = 0.5
_MOST_MODULES = 3
ROPE_FREQUENCIES = "rope_frequencies"  # and, in brackets, what they are of
_SAME_FREQUENCY = 1e-5  # relative; other kernels round a power otherwise
ABSENT = "none"  # a cap, window or scaling that is switched off


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldValue:
    """One value that a runtime computes with.

    Attributes:
        name: of the common vocabulary ("norm_eps"), or as the library calls it.
        module: that holds it; "" for the whole model.
        source: as it is written there: "variance_epsilon", "config.rms_norm_eps".
        common: whether the name is of the common vocabulary.
        dtype: of the tensor that holds it; "" for a number of Python's.
        declared: whether files or arguments say so, and the runtime does not show it.
        within: half of the last digit that the library writes of a number; 0.0: it shows all.
    """

    name: str
    value: Value
    module: str = ""
    source: str = ""
    common: bool = True
    dtype: str = ""
    declared: bool = False
    within: float = 0.0

    def agrees_with(self, other: HeldValue) -> bool:
        """Whether another one's number may be this one, as far as that is shown."""
        if not isinstance(self.value, (int, float)) or not isinstance(other.value, (int, float)):
            return False
        return abs(self.value - other.value) <= self.within * (1.0 + 1e-6)


def add_declared(held: Sequence[HeldValue], declared: Iterable[HeldValue]) -> list[HeldValue]:
    """Return what a library holds, module by module, and of other names what is only declared.

    Where a library shows few digits, and they are those of what is declared, that is the number.
    """
    by_name = {value.name: replace(value, declared=True) for value in declared}
    named = {value.name for value in held}
    exact = [
        by_name[value.name]
        if value.within and value.name in by_name and value.agrees_with(by_name[value.name])
        else value
        for value in held
    ]
    return [*exact, *(value for name, value in by_name.items() if name not in named)]


def compare_hyperparameters(
    base: Sequence[HeldValue], candidate: Sequence[HeldValue]
) -> tuple[HyperparameterDelta, ...]:
    """Compare what two runtimes hold, what differs first.

    Where both have modules of the same names, module by module, modules with the same answer in one
    row, but for what one side shows for the whole model; else by name alone, over all modules of a
    side. Names outside of the common vocabulary are left out where they are equal, and where the
    modules have other names.
    """
    sides = list(base), list(candidate)
    if _share_modules(*sides):
        whole = _list_whole(*sides)
        rows = [
            *_compare_by_module(
                *([value for value in side if value.name not in whole] for side in sides)
            ),
            *_compare_by_name(
                *([value for value in side if value.name in whole] for side in sides)
            ),
        ]
    else:
        rows = _compare_by_name(*([value for value in side if value.common] for side in sides))
    rows = _drop_repeated_frequencies(rows)
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.verdict)))


def _list_whole(base: Sequence[HeldValue], candidate: Sequence[HeldValue]) -> set[str]:
    """Names of which one side has one value for the whole model, and the other one for all modules.

    Where modules have several, none of them is the whole model's.
    """
    whole_names = set()
    for name in {value.name for value in base if value.common}:
        sides = [[value for value in side if value.name == name] for side in (base, candidate)]
        wholes = [{value.module == "" for value in side} for side in sides]
        one_each = all(len({repr(value.value) for value in side}) == 1 for side in sides)
        if one_each and sorted(map(tuple, wholes)) == [(False,), (True,)]:
            whole_names.add(name)
    return whole_names


def _drop_repeated_frequencies(rows: Sequence[HyperparameterDelta]) -> list[HyperparameterDelta]:
    """Leave out rotary frequencies that say no more than their base, or stand on one side."""
    bases = {(row.name.removeprefix("rope_theta"), row.where): row.verdict for row in rows
             if row.name.startswith("rope_theta")}  # fmt: skip
    remaining = []
    for row in rows:
        if row.name.startswith(ROPE_FREQUENCIES):
            base_verdict = bases.get((row.name.removeprefix(ROPE_FREQUENCIES), row.where))
            if row.verdict != "differs" or base_verdict == "differs":
                continue
        remaining.append(row)
    return remaining


def _share_modules(base: Iterable[HeldValue], candidate: Iterable[HeldValue]) -> bool:
    first, second = ({value.module for value in side} - {""} for side in (base, candidate))
    least = min(len(first), len(second))
    return len(first & second) >= _SHARED_NAMES * least if least else first == second


def _compare_by_module(
    base: Sequence[HeldValue], candidate: Sequence[HeldValue]
) -> list[HyperparameterDelta]:
    sides = [{(value.name, value.module): value for value in side} for side in (base, candidate)]
    holders: dict[str, set[str]] = {}
    for name, module in (*sides[0], *sides[1]):
        holders.setdefault(name, set()).add(module)
    groups: dict[tuple[str, ...], list[tuple[HeldValue | None, HeldValue | None]]] = {}
    for key in dict.fromkeys((*sides[0], *sides[1])):
        pair = sides[0].get(key), sides[1].get(key)
        shown = [repr(None if value is None else value.value) for value in pair]
        groups.setdefault((key[0], compare_values(*pair), *shown), []).append(pair)
    rows = []
    for (name, *_), pairs in groups.items():
        row = _build_row(*pairs[0])
        known = next(value for value in pairs[0] if value is not None)
        if row.verdict == "equal" and not known.common:
            continue
        own = [(first or second).module for first, second in pairs]  # type: ignore[union-attr]
        globs = name_modules(own, holders[name])
        rows.append(replace(row, where=modules_text(globs), modules=globs or ()))
    return rows


def _compare_by_name(
    base: Sequence[HeldValue], candidate: Sequence[HeldValue]
) -> list[HyperparameterDelta]:
    sides = [_merge_modules(side) for side in (base, candidate)]
    names = dict.fromkeys((*sides[0], *sides[1]))
    pairs = ((sides[0].get(name), sides[1].get(name)) for name in names)
    return [_build_row(*_without_absent(*pair)) for pair in pairs]


def _without_absent(
    base: HeldValue | None, candidate: HeldValue | None
) -> tuple[HeldValue | None, HeldValue | None]:
    """Where one side has one value, let "none" of some of the other's modules not count.

    A config names the window that only some layers have.
    """
    if base is None or candidate is None:
        return base, candidate
    return _drop_absent(base, candidate.value), _drop_absent(candidate, base.value)


def _drop_absent(one: HeldValue, other: Value) -> HeldValue:
    if not isinstance(one.value, list) or isinstance(other, list) or other == ABSENT:
        return one
    rest = [value for value in one.value if value != ABSENT]
    return replace(one, value=rest[0]) if len(rest) == 1 else one


def _merge_modules(side: Sequence[HeldValue]) -> dict[str, HeldValue]:
    """One value a name; a list of the distinct ones, in their order, where modules disagree."""
    merged: dict[str, HeldValue] = {}
    by_name = sorted(side, key=lambda value: value.name)
    for name, group in groupby(by_name, key=lambda value: value.name):
        own = list(group)
        values = list({repr(item.value): item.value for item in own}.values())
        merged[name] = HeldValue(
            name=name,
            value=values[0] if len(values) == 1 else values,
            source=own[0].source,
            declared=any(item.declared for item in own),
            within=own[0].within if len(values) == 1 else 0.0,
        )
    return merged


def _build_row(base: HeldValue | None, candidate: HeldValue | None) -> HyperparameterDelta:
    known = base or candidate
    assert known is not None
    return HyperparameterDelta(
        name=known.name,
        verdict=compare_values(base, candidate),
        base=None if base is None else base.value,
        candidate=None if candidate is None else candidate.value,
        base_source="" if base is None else base.source,
        candidate_source="" if candidate is None else candidate.source,
    )


def compare_values(base: HeldValue | None, candidate: HeldValue | None) -> HyperparameterVerdict:
    """Say how one hyper-parameter of both sides compares; None: a side does not show it."""
    if base is None or candidate is None:
        return "one side only"
    verdict = _compare_shown(base, candidate)
    # Equal declarations are no equal models: what a library makes of one is not known.
    return (
        "declared alike"
        if (base.declared or candidate.declared) and verdict != "differs"
        else verdict
    )


def _compare_shown(base: HeldValue, candidate: HeldValue) -> HyperparameterVerdict:
    pairs = (base, candidate), (candidate, base)
    if any(first.within and first.agrees_with(second) for first, second in pairs):
        return "declared alike"
    if _equal(base.value, candidate.value, _as_it_is):
        return "equal"
    if base.name.startswith(ROPE_FREQUENCIES):
        return "equal as float32" if _are_close(base.value, candidate.value) else "differs"
    if _equal(base.value, candidate.value, _as_float32):
        return "equal as float32"
    held_in = {base.dtype, candidate.dtype}
    if "float16" in held_in and _equal(base.value, candidate.value, _as_float16):
        return "equal as float16"
    if "bfloat16" in held_in and _equal(base.value, candidate.value, _as_bfloat16):
        return "equal as bfloat16"
    return "differs"


def _equal(one: Value, other: Value, round_number: Callable[[float], float]) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other or round_number(one) == round_number(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            _equal(a, b, round_number) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            _equal(one[key], other[key], round_number) for key in one
        )
    return one == other


def _are_close(one: Value, other: Value) -> bool:
    if not isinstance(one, list) or not isinstance(other, list) or len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(
        isinstance(a, float) and isinstance(b, float) and abs(a - b) <= _SAME_FREQUENCY * abs(b)
        for a, b in pairs
    )


def _as_it_is(number: float) -> float:
    return number


def _as_float32(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _as_float16(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(number))


def _as_bfloat16(number: float) -> float:
    return float(round_mantissa(np.array([_as_float32(number)]), BFLOAT16_BITS)[0])


def name_modules(modules: Sequence[str], among: Iterable[str] = ()) -> tuple[str, ...] | None:
    """Name modules as globs, ``model.layers.*.self_attn``, where that names no other one.

    Args:
        modules: in order; "" stands for the whole model.
        among: all modules that a glob must not name by mistake.

    Returns:
        () for the whole model; None in place of more than three names where these are all.
    """
    own = [module for module in modules if module]
    unnamed = set(among) - set(own)
    forbidden = {fold_numbers(module) for module in unnamed}
    named: dict[str, None] = {}
    for module in own:
        pattern = fold_numbers(module)
        shared = sum(fold_numbers(name) == pattern for name in own) > 1
        named[pattern if shared and pattern not in forbidden else module] = None
    return None if len(named) > _MOST_MODULES and not unnamed else tuple(named)


def modules_text(globs: tuple[str, ...] | None) -> str:
    """Say what :func:`name_modules` names: at most three, then how many more there are."""
    if globs is None:
        return "every module that has it"
    unlisted = len(globs) - _MOST_MODULES
    return ", ".join(globs[:_MOST_MODULES]) + (f" and {unlisted} more" if unlisted > 0 else "")
