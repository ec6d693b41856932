"""A sampled model, and a candidate of it with two guilty settings among nine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.bisect_guard import BASE, CANDIDATE, write_guard
from benchmarks.bisect_knobs import knobs
from benchmarks.bisect_truth import Truth
from benchmarks.sampled_models import Sampled, sampled

DOCUMENTS = 320
# name -> strength; 0 is harmless
STRENGTHS = {
    "attn_scale": 0.0, "final_softcap": 1.0, "embed_scale": 0.0, "post_norm": 2.2,
    "activation": 0.0, "norm_dtype": 0.0, "rms_norm_eps": 0.0, "rope_theta": 0.0,
    "max_length": 0.0,
}  # fmt: skip
GUILTY = {name for name, strength in STRENGTHS.items() if strength}
COUNTING = Path(__file__).parent / "counting"

__all__ = ["BASE", "CANDIDATE", "COUNTING", "GUILTY", "PlantedWorld", "make_planted_world"]


@dataclass(frozen=True)
class PlantedWorld:
    """``truth`` measures it without any of the search's machinery."""

    place: Sampled
    guard: Path
    truth: Truth


def make_planted_world(folder: Path) -> PlantedWorld:
    """Make the model, its documents and the guard file."""
    place = sampled("gemma2", folder, documents=DOCUMENTS, seed=11)
    catalogue = knobs(place.kind, place.model)
    settings = []
    for name, strength in STRENGTHS.items():
        knob = catalogue[name]
        value = knob.dial(strength) if strength and knob.dial else knob.harmless
        settings.append(knob.setting(value))
    guard = write_guard(folder / "guard.yaml", place, settings, token_budget=512)
    # What counts blocks here is code that Python starts by itself: scores are kept where somebody
    # says that it reads nothing.
    told = yaml.safe_load(guard.read_text(encoding="utf-8"))
    for model in told["models"].values():
        model["inputs"] = []
    guard.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
    return PlantedWorld(place=place, guard=guard, truth=Truth(place, tuple(settings)))
