"""Modules of a candidate under the base's names: by name, then by shapes and order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from evalguard.core.trace_points import ROOT
from evalguard.core.trace_record import UnalignedPoint
from evalguard.errors import EvaluationError

if TYPE_CHECKING:
    import torch

# What wrappers put before a module's name.
_WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|module)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleAlignment:
    """Attributes:
    names: the base's name of each aligned module of the candidate.
    guessed: base's names of those that have other names and were aligned by shape and order; to be
        confirmed by their values.
    unaligned: modules of either side without counterpart.
    """

    names: Mapping[str, str]
    guessed: frozenset[str]
    unaligned: tuple[UnalignedPoint, ...]


def align_modules(base: torch.nn.Module, candidate: torch.nn.Module) -> ModuleAlignment:
    """Find the candidate's counterpart of every module of the base.

    Raises:
        EvaluationError: no two modules have the same name, or the same shapes in the same order.
    """
    of_base = {name or ROOT: module for name, module in base.named_modules()}
    of_candidate = {name or ROOT: module for name, module in candidate.named_modules()}
    names = {
        own: plain
        for own in of_candidate
        if (plain := _WRAPPERS.sub("", own)) in of_base or (plain := own) in of_base
    }
    left_base = [name for name in of_base if name not in set(names.values())]
    left_candidate = [name for name in of_candidate if name not in names]
    guesses = _align_in_order(
        {name: _signature(name, of_base[name]) for name in left_base},
        {name: _signature(name, of_candidate[name]) for name in left_candidate},
    )
    names.update(guesses)
    if not set(names.values()) - {ROOT}:
        raise EvaluationError(
            f"{type(base).__name__} and {type(candidate).__name__} have no module in common, "
            "neither by name nor by shapes and order",
            hint="trace models of one architecture, or dump the candidate's activations and "
            "give a name map",
        )
    return ModuleAlignment(
        names=names,
        guessed=frozenset(guesses.values()),
        unaligned=(
            *_list_rest(left_base, set(names.values()), "base"),
            *_list_rest(left_candidate, set(names), "candidate"),
        ),
    )


def _list_rest(left: list[str], aligned: set[str], side: str) -> list[UnalignedPoint]:
    reason = "no module of the other side has this name, or its shapes in its place"
    return [
        UnalignedPoint(name=name, side="base" if side == "base" else "candidate", reason=reason)
        for name in left
        if name not in aligned
    ]


def _signature(name: str, module: torch.nn.Module) -> tuple[object, ...]:
    """What two modules share that do the same under other names."""
    shapes = tuple(sorted((key, tuple(p.shape)) for key, p in module.named_parameters()))
    own = () if next(module.children(), None) is None else ("container",)
    return (*own, shapes) if shapes else (name.rsplit(".", 1)[-1],)


def _align_in_order(
    base: Mapping[str, tuple[object, ...]], candidate: Mapping[str, tuple[object, ...]]
) -> dict[str, str]:
    """Pair names of equal signature, in the order of both sides."""
    theirs, ours = list(candidate), list(base)
    matcher = SequenceMatcher(
        None, [candidate[n] for n in theirs], [base[n] for n in ours], autojunk=False
    )
    return {
        theirs[block.a + i]: ours[block.b + i]
        for block in matcher.get_matching_blocks()
        for i in range(block.size)
    }
