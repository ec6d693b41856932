"""Documents that three tests need to see the same conversion: measured on real models.

    python -m benchmarks.power --output benchmarks/results/power.md

Scores the demo's model, and stories260K where ``--shared-data`` is at hand, in float32 and
converted (bfloat16; int8 with a scale per output channel; int4 with a scale per 32 inputs), by
``evalguard.compare`` on one thread. From the documents' scores: how many of them the unpaired
two-sample z-test, McNemar's exact test and the paired test of log-likelihoods need, one-sided at
0.05 with power 0.8. Random draws of so many documents then go through the tests themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.needed import (
    DRAWS,
    MOST_DRAWN,
    RESAMPLES,
    Scatter,
    mcnemar_rule,
    needed,
    paired_rule,
    rejects_paired,
    rejects_unpaired,
    unpaired_rule,
)
from benchmarks.output import deliver
from benchmarks.published import published
from benchmarks.quantised import GROUP, quantised_copy
from benchmarks.tables import scored
from evalguard.core.pairing import PairedScores

SEED = 20261120
ROOT = Path(__file__).parent.parent
STORIES_TASK = "stories_lastword"
CONVERSIONS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "int8": {"bits": 8, "group": None},
    "int4": {"bits": 4, "group": GROUP},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, its tasks, and the folder of those that are not built in."""

    name: str
    folder: Path
    tasks: tuple[str, ...]
    include: tuple[Path, ...] = ()


def main() -> None:
    """Score, compute, measure; print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--limit", type=int, help="only so many documents of a task")
    parser.add_argument("--shared-data", type=Path, help="folder with stories260K",
                        default=os.environ.get("EVALGUARD_SHARED_DATA", ROOT.parent / "shared/data"))  # fmt: skip # noqa: E501
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = [*_models(Path(options.shared_data), Path(folder))]
        lines = [*report(models, Path(folder), options.limit)]
    if (Path(options.shared_data) / "README.md").is_file():
        lines += published(Path(options.shared_data))
    deliver([*lines, _versions()], options.output)


def _models(shared_data: Path, folder: Path) -> Iterator[Model]:
    tasks = ("evalguard_lastword", "evalguard_rolling")
    yield Model(name="demo", folder=ROOT / "demo" / "model", tasks=tasks)
    data = shared_data / "stories260K"
    if data.is_dir():
        text = f"""
task: {STORIES_TASK}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {json.dumps(str(data / "tinystories_lastword.jsonl"))}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
        (folder / f"{STORIES_TASK}.yaml").write_text(text, encoding="utf-8")
        yield Model(
            name="stories260K", folder=data / "hf", tasks=(STORIES_TASK,), include=(folder,)
        )


def report(models: list[Model], folder: Path, limit: int | None) -> Iterator[str]:
    """Yield the table in Markdown."""
    yield "# Documents needed to see a conversion\n"
    yield "`python -m benchmarks.power --output benchmarks/results/power.md`\n"
    yield (
        "One-sided at 0.05, power 0.8. In brackets: what 90% of "
        f"{RESAMPLES:,} resamples of the documents give, and the share of {DRAWS} random draws of "
        "so many documents (with replacement, from those scored) in which the test itself saw the "
        f"conversion (not drawn above {MOST_DRAWN:,}; two-percent Monte Carlo error). *More than*: "
        "in over 5% of the resamples the candidate is no worse, so that there is no upper end; the "
        f"5th percentile is given. *Not seen*: in over 95% of them it is no worse. Seed {SEED}.\n"
    )
    yield "| model, task | conversion | scored | drift: sigma, paired z | unpaired z, accuracy | unpaired z, log-likelihood | McNemar | paired log-likelihood |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|"
    for model in models:
        for conversion in CONVERSIONS:
            comparisons = _compared(model, conversion, folder, limit)
            for task in model.tasks:
                yield _row(model, task, conversion, comparisons)


def _versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("lm_eval", "torch", "transformers"))
    return f"\nevalguard {version('lm-evalguard')}, {packages}, Python {platform.python_version()}."


Scores = dict[tuple[str, str], PairedScores]


def _compared(model: Model, conversion: str, folder: Path, limit: int | None) -> Scores:
    """Score a model and its conversion, and read the documents back from the run folder."""
    import evalguard

    candidate, arguments = model.folder, {"dtype": "float32"}
    if conversion == "bf16":
        arguments = {"dtype": "bfloat16"}
    else:
        candidate = quantised_copy(
            model.folder, folder / f"{model.name}-{conversion}", **CONVERSIONS[conversion]
        )
    result = evalguard.compare(
        model.folder, candidate, tasks=model.tasks, include_path=model.include, limit=limit,
        base_model_args={"dtype": "float32"}, cand_model_args=arguments, device="cpu", threads=1,
        quiet=True, cache_dir=folder / "cache", output_path=folder / "reports",
    )  # fmt: skip
    assert result.report.run_folder is not None
    samples = Path(result.report.run_folder) / "samples"
    return {
        (task, metric): paired
        for task in model.tasks
        for metric, paired in _read(samples / f"{task}.parquet").items()
    }


def _read(path: Path) -> dict[str, PairedScores]:
    """Paired scores of a task's metrics, from its samples file."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(path, columns=["base:scores", "candidate:scores"]).to_pydict()
    sides = [[json.loads(text)["none"] for text in table[f"{side}:scores"]]
             for side in ("base", "candidate")]  # fmt: skip
    found = {}
    for metric in sides[0][0]:
        items = [np.array([scores[metric] for scores in side], dtype=np.float64) for side in sides]
        if metric == "bits_per_byte":
            weights = items[0][:, 1]
            found[metric] = scored(items[0][:, 0], items[1][:, 0], "bits_per_byte", weights=weights)
        elif metric in ("perplexity", "acc"):
            kind = "perplexity" if metric == "perplexity" else "mean"
            found[metric] = scored(items[0], items[1], kind)
    return found


def _picked(paired: PairedScores, rows: np.ndarray) -> PairedScores:
    """The same comparison on documents that may repeat."""
    ids = np.arange(rows.shape[0])
    sides = [
        replace(
            table,
            doc_ids=ids,
            values=table.values[rows],
            weights=None if table.weights is None else table.weights[rows],
        )
        for table in (paired.base, paired.candidate)
    ]
    return PairedScores(base=sides[0], candidate=sides[1])


def _row(model: Model, task: str, conversion: str, scores: Scores) -> str:
    answers = scores.get((task, "acc"))
    likelihoods = scores.get((task, "perplexity")) or scores[task, "bits_per_byte"]
    of = Scatter.of(likelihoods)
    n = likelihoods.base.n
    z = of.drift / of.paired * np.sqrt(n) if of.paired else 0.0
    rng = np.random.default_rng([SEED, n, list(CONVERSIONS).index(conversion)])
    find = partial(needed, picked=_picked, rng=rng)
    columns = [
        f"{model.name}, {task}",
        conversion,
        f"{n:,}",
        f"{of.change / of.base * np.sqrt(n):+.2f}, {z:+.1f}",
        find(answers, unpaired_rule, rejects_unpaired).text if answers else "",
        find(likelihoods, unpaired_rule, rejects_unpaired).text,
        find(answers, mcnemar_rule, rejects_paired).text if answers else "",
        find(likelihoods, paired_rule, rejects_paired).text,
    ]
    return f"| {' | '.join(columns)} |"


if __name__ == "__main__":
    main()
