"""A guard file for a sampled model and a candidate with settings, as a user would write it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from benchmarks.bisect_truth import model_args
from benchmarks.sampled_models import TASK, Sampled
from evalguard.core.settings import Setting

BASE, CANDIDATE = "orig", "port"


def write_guard(path: Path, place: Sampled, settings: Iterable[Setting], **run: object) -> Path:
    """Write the guard file of one comparison; ``run`` is its block of that name."""
    declared = {
        setting.name: {
            "reference": setting.reference,
            "candidate": setting.candidate,
            "target": str(setting.target),
        }
        for setting in settings
    }
    guard = {
        "models": {
            BASE: {"model": "hf", "model_args": model_args(place)},
            CANDIDATE: {"extends": BASE, "settings": declared},
        },
        "tasks": [TASK],
        "include_path": [str(place.tasks)],
        "run": run,
    }
    path.write_text(yaml.safe_dump(guard, sort_keys=False), encoding="utf-8")
    return path
