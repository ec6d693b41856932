"""Score tables of finished runs of evalguard, read from their run folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.stopping_populations import pair_of
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import Aggregation


def tables_of(folder: Path) -> Iterator[tuple[str, PairedScores]]:
    """Yield every mean, perplexity and ratio of a run, with its name.

    A run folder holds lm-eval's items per document; a pair of numbers is a log-likelihood with
    the words or bytes of its document.
    """
    import pyarrow.parquet as pq

    run = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    settings = run["candidate"]["settings"]
    changed = [one["name"] for one in settings if one["value"] != one["reference"]]
    only = f" ({', '.join(changed)} only)" if 0 < len(changed) < len(settings) else ""
    pair = f"{run['base']['name']} / {run['candidate']['name']}{only}"
    for file in sorted((folder / "samples").glob("*.parquet")):
        table = pq.read_table(file, columns=["base:scores", "candidate:scores"])
        base, candidate = ([json.loads(row) for row in table[name].to_pylist()]
                           for name in table.column_names)  # fmt: skip
        for filter_name, metrics in base[0].items():
            for metric in metrics:
                sides = [[row[filter_name][metric] for row in rows] for rows in (base, candidate)]
                yield f"{pair}, {file.stem}, {metric}", _paired(metric, sides[0], sides[1])


def _paired(metric: str, base: list[Any], candidate: list[Any]) -> PairedScores:
    if isinstance(base[0], list):
        weights = np.array([weight for _, weight in base], dtype=np.float64)
        aggregation: Aggregation = (
            "bits_per_byte" if metric == "bits_per_byte" else "weighted_perplexity"
        )
        values = [np.array([v for v, _ in side], dtype=np.float64) for side in (base, candidate)]
        return pair_of(values[0], values[1], aggregation, weights)
    aggregation = "perplexity" if metric == "perplexity" else "mean"
    values = [np.array(side, dtype=np.float64) for side in (base, candidate)]
    return pair_of(values[0], values[1], aggregation)
