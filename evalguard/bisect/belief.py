"""Belief: how probable each answer is, by what was measured so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from evalguard.bisect.answer_structure import (
    Structure,
    blame_pair,
    blame_setting,
    material,
    overlapping,
)
from evalguard.bisect.components import Component
from evalguard.bisect.oracle import Floats
from evalguard.bisect.posterior import Posterior

_SPELT_OUT = 0.01  # of the best model's weight, and of a class: what has less is not spelt out
_NEGLIGIBLE = 1e-4  # probability of a structure
_MOST = 1000  # combinations of members of a model's classes

_Share = tuple[int, float]  # a component by number, and its share of its class
_Key = tuple[bool, frozenset[int]]  # diffuse ground? settings that are blamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed.

    Attributes:
        structure: the most probable answer: of the most probable set of settings, the best.
        probability: of that set of settings, with the same ground.
        inclusion: (n_settings,) probability of each to be among the culprits.
        diffuse: probability that the drift is spread over all settings, culprits or not.
        entropy: of the answers, in nats.
    """

    structure: Structure
    probability: float
    inclusion: Floats
    diffuse: float
    entropy: float


class _Guess(NamedTuple):
    """An answer: components of a model, one of each class.

    ``kept``: those that are material, by number; ``beside``: others, of which there is only one of
    its class; ``places``: of both in the model.
    """

    model: int
    diffuse: bool
    kept: tuple[int, ...]
    beside: tuple[int, ...]
    places: tuple[int, ...]
    share: float


def belief_of(posterior: Posterior, *, margin: float, n: int) -> Belief:
    """Add up the models' weights by the settings that each blames, the immaterial left out."""
    chance: dict[_Key, float] = defaultdict(float)
    best: dict[_Key, tuple[float, tuple[int, ...]]] = {}
    component = cache(posterior.components.__getitem__)
    for guess in _spelt_out(posterior, margin):
        numbers, key = guess.kept, (guess.diffuse, frozenset(guess.kept))
        if max((*numbers, *guess.beside), default=0) >= n:  # not only single settings
            numbers, members = _blamed(posterior, guess, component, margin)
            key = (guess.diffuse, members)
        chance[key] += guess.share
        if key not in best or best[key][0] < guess.share:
            best[key] = (guess.share, numbers)
    inclusion = np.zeros(n)
    for (_, members), share in chance.items():
        inclusion[list(members)] += share
    nothing: _Key = (False, frozenset())
    best.setdefault(nothing, (0.0, ()))
    top = max(chance, key=lambda key: chance[key], default=nothing)
    shares = np.array(list(chance.values()))
    rest = max(1.0 - float(shares.sum()), 0.0)
    return Belief(
        structure=Structure(
            components=tuple([component(number) for number in best[top][1]]),
            diffuse=top[0],
            members=top[1],
        ),
        probability=chance.get(top, 0.0),
        inclusion=inclusion,
        diffuse=posterior.diffuse,
        entropy=float(-np.sum(shares * np.log(shares))) + rest * float(np.log(n)),
    )


def _blamed(
    posterior: Posterior,
    guess: _Guess,
    component: Callable[[int], Component],
    margin: float,
) -> tuple[tuple[int, ...], frozenset[int]]:
    """The components of an answer that count, and the settings that it blames."""
    kept = [component(number) for number in guess.kept]
    several = [*kept, *(component(number) for number in guess.beside)]
    members = None
    if overlapping(several):
        mean, root = posterior.effects(guess.model)
        at = list(guess.places)
        members = blame_pair(several, mean[at], root[at], margin)
    if members is None:
        return guess.kept, blame_setting(kept)
    return (*guess.kept, *guess.beside) if members else (), members


def _spelt_out(posterior: Posterior, margin: float) -> Iterator[_Guess]:
    """Answers and their probability; what is spread over very many is left out."""
    choices: dict[int, list[_Share]] = {}
    weights: list[float] = posterior.weights.tolist()
    for number, weight in enumerate(weights):
        if weight < _SPELT_OUT * weights[0]:
            break
        ground, model = posterior.models[number]
        for which in model.classes:
            if which not in choices:
                choices[which] = _likely_members(posterior, which)
        kept = material(posterior.likely_sizes(number), margin)
        known = [at for at, which in enumerate(model.classes) if len(choices[which]) == 1]
        beside = [at for at in known if at not in kept]
        classes = [model.classes[at] for at in kept]
        if prod(len(choices[which]) for which in classes) > _MOST:
            continue
        for picked in product(*(choices[which] for which in classes)):
            share = weight * prod([part for _, part in picked])
            if share >= _NEGLIGIBLE:
                yield _Guess(
                    model=number,
                    diffuse=ground,
                    kept=tuple([number for number, _ in picked]),
                    beside=tuple([choices[model.classes[at]][0][0] for at in beside]),
                    places=(*kept, *beside),
                    share=share,
                )


def _likely_members(posterior: Posterior, which: int) -> list[_Share]:
    numbers, chances = posterior.members(which)
    likely = chances >= _SPELT_OUT
    return list(zip(numbers[likely].tolist(), chances[likely].tolist(), strict=True))
