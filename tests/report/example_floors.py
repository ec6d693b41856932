"""Floor reports that the tests of report/ render."""

from __future__ import annotations

from typing import Any

from evalguard.core.compare_report import RunIdentity
from evalguard.core.noise_floor import (
    DistributionShift,
    Shift,
    Unmeasured,
    Variation,
    distribution_floors,
    metric_floors,
)
from evalguard.floors.floor_report import FloorReport

VARIATIONS = (
    Variation(factor="repeat", name="the same again"),
    Variation(factor="batch_size", name="batch size 1", value=1, default=16),
    Variation(factor="attention", name="eager attention", value="eager", default="sdpa"),
)


def moved(variation: str, metric: str, sigma: float, half: float, **changes: Any) -> Shift:
    """A shift of one metric; half: half of its interval."""
    fields: dict[str, Any] = {
        "variation": variation,
        "task": "lambada_openai",
        "filter": "none",
        "metric": metric,
        "n": 5153,
        "sigma": sigma,
        "sigma_interval": (sigma - half, sigma + half),
        "paired_stderr": half / 2,
        "document_sd": half,
        "largest_difference": 3 * half,
        "largest_document": 4017,
        "flips": (2, 1) if metric == "acc" else None,
        "bit_identical": sigma == half == 0.0,
        "method": "paired-t",
        "confidence": 0.95,
    }
    return Shift(**{**fields, **changes})


SHIFTS = (
    moved("the same again", "perplexity", 0.0, 0.0),
    moved("the same again", "acc", 0.0, 0.0),
    moved("batch size 1", "perplexity", -0.0123, 0.021),
    moved("batch size 1", "acc", 0.0, 0.0),
    moved("eager attention", "perplexity", 0.031, 0.019),
    moved("eager attention", "acc", 0.0, 0.0),
)


def divergent(variation: str, kl: float, **changes: Any) -> DistributionShift:
    """A shift of one task's distributions."""
    fields: dict[str, Any] = {
        "variation": variation,
        "task": "lambada_openai",
        "n": 5153,
        "positions": 6021,
        "kl": kl,
        "kl_interval": (kl / 2, 2 * kl),
        "kl_bounds": None,
        "kl_max": 30 * kl,
        "top1_changed": 0.0031 if kl else 0.0,
        "top1_changed_interval": (0.001, 0.005),
        "bit_identical": kl == 0.0,
        "confidence": 0.95,
    }
    return DistributionShift(**{**fields, **changes})


DIVERGENT = (
    divergent("the same again", 0.0),
    divergent("batch size 1", 1.8e-4),
    divergent("eager attention", 5.1e-4),
)


def floor_report(*shifts: Shift, **changes: Any) -> FloorReport:
    """A report of these shifts."""
    fields: dict[str, Any] = {
        "model": RunIdentity(
            name="orig", digest="3f2a9c0d11e2b4a7", description="hf, 7.2B parameters, bfloat16"
        ),
        "model_key": "aa11",
        "environment_key": "bb22",
        "environment": {"device": "cpu (x86_64)", "torch": "2.13.0"},
        "task_keys": {shift.task: "cc33" for shift in shifts},
        "computation": {"batch_size": 16, "threads": 1, "attention": "sdpa", "device": None},
        "variations": VARIATIONS,
        "unmeasured": (
            Unmeasured(factor="device", name="device", reason="there is no other kind than cpu"),
        ),
        "shifts": shifts,
        "floors": metric_floors(shifts),
        "distribution_floors": distribution_floors(changes.get("distribution_shifts", ())),
        "seed": 1234,
        "confidence": 0.95,
        "margin": 1.0,
        "exit_code": 0,
        "created": "2026-11-20T11:00:00+00:00",
        "kept": ("/c/floors/a/b/c.json",),
        "version": "0.1.0",
    }
    return FloorReport(**{**fields, **changes})
