"""Sixty nights of the demo with a planted step: when does `evalguard nightly` say so?

Every night is a real one: a guard file, ``evalguard.nightly``, its history and its night.json. What
varies is the attention scale of the candidate: it is set so that sigma follows a planted series
(a level, jitter of 0.3 sigma between nights, a step in the middle).

    python -m benchmarks.nightly_simulation [--nights 60] [--pairs 1] [--out FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import evalguard
from benchmarks.output import deliver
from evalguard.nights.history_questions import HistorySelection, find_trends

TASK, METRIC = "evalguard_rolling", "byte_perplexity"
DOCUMENTS = 24
REFERENCE = 0.22360679774997896
SCALES = np.array([0.2, 0.18, 0.17, 0.165, 0.16, 0.155, 0.15, 0.145, 0.14, 0.135])
LEVEL, JITTER, STEPS = 1.5, 0.3, (0.0, 1.0, 2.0)
SEED = 20_261_121
_ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Series:
    """A pair over nights: what was planted, what was seen, and when steps were told of."""

    name: str
    step: float
    planted: NDArray[np.float64]
    scales: NDArray[np.float64]
    seen: list[float] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)


def guard_text(scales: Mapping[str, float]) -> str:
    """A guard file with one candidate per attention scale."""
    models = "\n".join(
        f"  {name}: {{extends: orig, settings: {{attn_scale: {{reference: {REFERENCE!r}, "
        f'candidate: {float(scale)!r}, target: "attr:model.layers.*.self_attn.scaling"}}}}}}'
        for name, scale in scales.items()
    )
    pairs = "\n".join(f"  - {{base: orig, cand: {name}}}" for name in scales)
    return (
        f"models:\n  orig: {{model_args: {{pretrained: {_ROOT / 'demo' / 'model'}, "
        f"dtype: float32}}}}\n{models}\npairs:\n{pairs}\ntasks: [{TASK}]\n"
        f"include_path: {_ROOT / 'tasks'}\n"
        f"run: {{limit: {DOCUMENTS}, bisect: never, distributions: 'off', track: [none]}}\n"
    )


def night(folder: Path, scales: Mapping[str, float]) -> evalguard.NightlyResult:
    """One night of these candidates."""
    folder.mkdir(exist_ok=True)
    config = folder / "guard.yaml"
    config.write_text(guard_text(scales))
    return evalguard.nightly(
        config=config, output_path=folder, cache_dir=folder / "cache", quiet=True
    )


def sigma_of(result: evalguard.NightlyResult, name: str) -> float:
    """Sigma of a candidate in a night."""
    pair = next(pair for pair in result.pairs if pair.candidate == name)
    found = next(one.sigma for one in pair.metrics if one.metric == METRIC)
    assert found is not None
    return found


def calibrated(folder: Path) -> NDArray[np.float64]:
    """Sigma at each of ``SCALES``, by one night with a candidate for each."""
    names = {f"at{place}": scale for place, scale in enumerate(SCALES)}
    result = night(folder, names)
    return np.array([sigma_of(result, name) for name in names])


def planned(nights: int, pairs: int, sigmas: NDArray[np.float64]) -> list[Series]:
    """The series of all pairs: a level with jitter, and a step in the middle."""
    rng = np.random.default_rng(SEED)
    series = []
    for step in STEPS:
        for number in range(pairs):
            level = LEVEL + step * (np.arange(nights) >= nights // 2)
            planted = level + rng.normal(0.0, JITTER, nights)
            scales = np.interp(planted, sigmas, SCALES)
            series.append(
                Series(name=f"step{step:g}-{number}", step=step, planted=planted, scales=scales)
            )
    return series


def simulate(folder: Path, nights: int, series: Sequence[Series]) -> Path:
    """Run all nights; returns the history."""
    for number in range(nights):
        result = night(folder, {one.name: float(one.scales[number]) for one in series})
        changes = {one.candidate: one for one in result.report.changes}
        for one in series:
            one.seen.append(sigma_of(result, one.name))
            for step in changes[one.name].steps:
                if step.key[2] == METRIC:
                    one.told.append((number, step.created))
        print(f"night {number + 1} of {nights}: exit code {result.exit_code}", flush=True)
    return Path(result.report.history)


def first_told(one: Series) -> str:
    """After how many nights of the new level a step was first told of."""
    middle = len(one.seen) // 2
    after = [night for night, _ in one.told if night >= middle]
    return str(after[0] - middle + 1) if one.step and after else "never"


def false_alarms(one: Series) -> int:
    """Nights that told of a step where none had been planted yet, or ever."""
    middle = len(one.seen) // 2 if one.step else len(one.seen)
    return len({night for night, _ in one.told if night < middle})


def row(one: Series, history: Path) -> str:
    """A row of the table: what the history says after the last night."""
    (trend,) = find_trends(
        history, HistorySelection(base="orig", candidate=one.name, task=TASK, metric=METRIC)
    ).trends
    middle = len(one.seen) // 2
    points = trend.scan.points
    found = ", ".join(
        f"night {point.position + 1} ({point.earliest + 1} to {point.latest + 1}): "
        f"{point.step:+.2f} ± {point.stderr:.2f}"
        for point in points
    )
    inside = sum(bool(one.step) and p.earliest <= middle <= p.latest for p in points)
    cells = (
        one.name,
        f"{one.step:g}",
        found or "none",
        str(len(points) - inside),
        first_told(one) if one.step else "-",
        str(false_alarms(one)),
    )
    return f"| {' | '.join(cells)} |"


def report(nights: int, series: Sequence[Series], history: Path) -> str:
    """The page."""
    error = max(float(np.max(np.abs(np.array(one.seen) - one.planted))) for one in series)
    rows = "\n".join(row(one, history) for one in series)
    looks = sum(nights // 2 if one.step else nights for one in series)
    early = sum(map(false_alarms, series))
    return f"""# Nights with a planted step

`python -m benchmarks.nightly_simulation`: {nights} nights through `evalguard nightly` and its \
history, of {len(series)} candidates of the demo ({TASK}, {DOCUMENTS} documents, {METRIC}). Each \
night the attention scale of every candidate is set so that sigma follows a planted series: level \
{LEVEL:g}, jitter between nights {JITTER:g} (standard deviation), and from night {nights // 2 + 1} \
on the step. Sigma as it was measured is within {error:.2f} of the planted one.

| candidate | planted step, sigma | change points after the last night (range at 95%) \
| false ones | nights of the new level until the morning summary told of it \
| mornings that told of a step before there was one |
|---|---|---|---|---|---|
{rows}

Mornings without a step that told of one: {early} of {looks}. The chance of any is at most 5% for \
a pair in 365 mornings; a change point is told of for a week from the morning that found it.
"""


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/nightly_simulation.md")
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sigmas = calibrated(Path(folder) / "calibration")
        print("sigma at", dict(zip(SCALES.tolist(), sigmas.round(2).tolist(), strict=True)))
        assert np.all(np.diff(sigmas) > 0.0), "sigma must grow with the distance"
        series = planned(given.nights, given.pairs, sigmas)
        history = simulate(Path(folder) / "nights", given.nights, series)
        deliver([report(given.nights, series, history).rstrip()], given.out)
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
