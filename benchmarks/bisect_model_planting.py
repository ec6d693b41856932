"""Guilty settings planted at random in a sampled model, and the truth about all settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log

import numpy as np

from benchmarks.bisect_knobs import Knob, knobs
from benchmarks.bisect_truth import Floats, Truth
from benchmarks.sampled_models import Sampled
from evalguard.core.settings import Setting

FEWEST, MOST = 12, 16  # settings
SMALLEST, LARGEST = 2.5, 25.0  # sigma of a culprit alone
_INNOCENT = 0.15  # sigma: an innocent setting changes less, alone and in context
_GUILTY = 1.25  # a guilty one changes more, alone or in context
STRENGTHS = tuple(0.02 * 2.0**step for step in range(10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A candidate's settings, who is guilty, and what each really does.

    ``alone`` and ``in_context``: drift of each setting in yardsticks, measured on all documents by
    itself, and as what it adds to all others.
    """

    place: Sampled
    settings: tuple[Setting, ...]
    guilty: frozenset[str]
    truth: Truth
    alone: Mapping[str, float]
    in_context: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Dials:
    """How far every knob of a model must be turned; measured once, then interpolated."""

    place: Sampled
    catalogue: Mapping[str, Knob]
    curves: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]

    @classmethod
    def measured(cls, place: Sampled) -> Dials:
        """Turn each knob from harmless to more than the largest drift wanted, or to its end."""
        catalogue = knobs(place.kind, place.model)
        base = Truth(place, ()).scores(frozenset())
        curves = {name: _curve(place, knob, base) for name, knob in catalogue.items() if knob.dial}
        return cls(place, catalogue, {n: c for n, c in curves.items() if _serves(*c)})

    def at(self, name: str, sigma: float) -> Setting:
        """The setting that costs about so many sigma alone, or as much as it can."""
        strengths, sigmas = self.curves[name]
        strength = exp(float(np.interp(log(sigma), np.log(sigmas), np.log(strengths))))
        knob = self.catalogue[name]
        assert knob.dial is not None
        return knob.setting(knob.dial(float(f"{strength:.3g}")))


def _curve(place: Sampled, knob: Knob, base: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Strengths, and drift in sigma at each; both rise."""
    assert knob.dial is not None
    strengths, sigmas = [], []
    for strength in STRENGTHS:
        turned = Truth(place, (knob.setting(knob.dial(strength)),), base=base)
        sigma = turned.sigma(frozenset({knob.name}))
        if sigma > max(sigmas, default=0.1):
            strengths.append(strength)
            sigmas.append(sigma)
        if sigma > LARGEST:
            break
    return tuple(strengths), tuple(sigmas or [0.0])


def _serves(strengths: tuple[float, ...], sigmas: tuple[float, ...]) -> bool:
    """Whether a knob can be turned to sizes that are wanted."""
    return len(strengths) > 1 and sigmas[0] < LARGEST and sigmas[-1] > SMALLEST


def planted(dials: Dials, rng: np.random.Generator) -> Planted:
    """Plant 1 to 3 culprits; again, until the truth about every setting is beyond doubt."""
    while True:
        guilty = _culprits(dials, rng)
        innocent = [name for name in dials.catalogue if name not in guilty]
        count = int(rng.integers(FEWEST, MOST + 1)) - len(guilty)
        chosen = set(rng.permutation(innocent)[:count])
        settings = tuple(
            guilty.get(name) or knob.setting(knob.harmless)
            for name, knob in dials.catalogue.items()
            if name in guilty or name in chosen
        )
        found = examined(dials.place, settings, frozenset(guilty))
        if found is not None:
            return found


def examined(
    place: Sampled, settings: tuple[Setting, ...], guilty: frozenset[str]
) -> Planted | None:
    """Measure every setting alone and in context; None where the guilty are not clearly these."""
    truth = Truth(place, settings)
    everything = frozenset(truth.settings)
    total = truth.drift(everything)
    if total < _GUILTY or abs(truth.drift(everything - guilty)) > 2.0 * _INNOCENT:
        return None
    alone, context = {}, {}
    for name in sorted(truth.settings, key=lambda name: name not in guilty):
        alone[name] = truth.drift(frozenset({name}))
        context[name] = total - truth.drift(everything - {name})
        size = max(abs(alone[name]), abs(context[name]))
        if size < _GUILTY if name in guilty else size > _INNOCENT:
            return None
    return Planted(
        place=place, settings=settings, guilty=guilty, truth=truth, alone=alone, in_context=context
    )


def _culprits(dials: Dials, rng: np.random.Generator) -> dict[str, Setting]:
    names = [str(name) for name in rng.permutation(sorted(dials.curves))]
    sizes = np.exp(rng.uniform(log(SMALLEST), log(LARGEST), size=int(rng.integers(1, 4))))
    return {name: dials.at(name, float(size)) for name, size in zip(names, sizes, strict=False)}
