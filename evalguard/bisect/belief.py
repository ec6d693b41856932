"""Belief: how probable each answer is, by what was measured so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from evalguard.bisect.components import Component
from evalguard.bisect.oracle import Floats
from evalguard.bisect.posterior import Posterior
from evalguard.bisect.structure import NOTHING, Structure, material

_SPELT_OUT = 0.01  # of the best model's weight, and of a class: what has less is not spelt out
_NEGLIGIBLE = 1e-4  # probability of a structure
_Components = tuple[Component, ...]
_MOST = 1000  # combinations of members of a model's classes


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


def belief_of(posterior: Posterior, *, margin: float, n: int) -> Belief:
    """Add up the models' weights by the settings that each blames, the immaterial left out."""
    chance: dict[tuple[bool, frozenset[int]], float] = defaultdict(float)
    best: dict[tuple[bool, frozenset[int]], tuple[float, _Components]] = {}
    for diffuse, components, share in _spelt_out(posterior, margin):
        key = (diffuse, frozenset(one for c in components for one in c.members))
        chance[key] += share
        if key not in best or best[key][0] < share:
            best[key] = (share, components)
    inclusion = np.zeros(n)
    for (_, members), share in chance.items():
        inclusion[list(members)] += share
    nothing = (False, frozenset[int]())
    best.setdefault(nothing, (0.0, NOTHING.components))
    top = max(chance, key=lambda key: chance[key], default=nothing)
    shares = np.array(list(chance.values()))
    rest = max(1.0 - float(shares.sum()), 0.0)
    return Belief(
        structure=Structure(components=best[top][1], diffuse=top[0]),
        probability=chance.get(top, 0.0),
        inclusion=inclusion,
        diffuse=posterior.diffuse,
        entropy=float(-np.sum(shares * np.log(shares))) + rest * float(np.log(n)),
    )


def _spelt_out(posterior: Posterior, margin: float) -> Iterator[tuple[bool, _Components, float]]:
    """Grounds with components and their probability; what is spread over very many is left out."""
    choices: dict[int, list[tuple[Component, float]]] = {}
    for number, weight in enumerate(posterior.weights):
        if weight < _SPELT_OUT * posterior.weights[0]:
            break
        ground, model = posterior.models[number]
        kept = material(posterior.likely_sizes(number), margin)
        classes = [model.classes[at] for at in kept]
        for which in classes:
            if which not in choices:
                choices[which] = _likely_members(posterior, which)
        if prod(len(choices[which]) for which in classes) > _MOST:
            continue
        for picked in product(*(choices[which] for which in classes)):
            share = float(weight) * prod([chance for _, chance in picked])
            if share < _NEGLIGIBLE:
                continue
            yield ground, tuple([component for component, _ in picked]), share


def _likely_members(posterior: Posterior, which: int) -> list[tuple[Component, float]]:
    numbers, chances = posterior.members(which)
    return [
        (posterior.components[int(number)], float(chance))
        for number, chance in zip(numbers, chances, strict=True)
        if chance >= _SPELT_OUT
    ]
